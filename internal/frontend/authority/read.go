package authority

import (
	"bytes"
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Read implements coord.Service, for the caller. A caller sees its own leases, and an admin those of all applications.
func (g *Gate) Read(ctx context.Context, q *coordv1.Question) (*coordv1.Answer, error) {
	c := g.caller(ctx)
	q.Owner = c.visibleTo()
	a, err := g.Service.Read(ctx, q)
	if err != nil {
		return nil, err
	}
	switch r := a.GetResponse().(type) {
	case *coordv1.Answer_LeaseTimeToLive:
		if owner := r.LeaseTimeToLive.GetLease().GetClientId(); !principals.MayUse(owner, c.owner) && !(c.admin && principals.IsApplication(owner)) {
			return nil, fault.Wrap("authority.Read", fault.Refused(fault.NotFound, "lease", "is not known, or belongs to another caller"))
		}
	case *coordv1.Answer_ListLeases:
		for _, l := range r.ListLeases.GetLeases() {
			if !c.learns(l.GetClientId()) {
				l.Id = 0
			}
		}
	case *coordv1.Answer_LockInfo:
		c.hideClaims(r.LockInfo.GetLock())
	case *coordv1.Answer_ListLocks:
		c.hideClaims(r.ListLocks.GetLocks()...)
	case *coordv1.Answer_Range:
		c.hide(r.Range.GetKvs()...)
	}
	return a, nil
}

func (c *caller) hideClaims(locks ...*apiv1.LockState) {
	for _, lock := range locks {
		for _, claims := range [][]*apiv1.LockClaim{lock.GetHolding(), lock.GetWaiting()} {
			for _, claim := range claims {
				if !c.learns(claim.GetHolderId()) {
					claim.LeaseId = 0 // its key ends with the tag
				}
			}
		}
	}
}

// Watch implements coord.Service, for the caller.
func (g *Gate) Watch(ctx context.Context, w *apiv1.WatchKeysRequest, send func(*apiv1.WatchKeysResponse) error) error {
	c := g.caller(ctx)
	return g.Service.Watch(ctx, w, func(b *apiv1.WatchKeysResponse) error {
		for _, e := range b.GetEvents() {
			c.hide(e.GetKv(), e.GetPrevKv())
		}
		return send(b)
	})
}

// hide takes the ids of others' leases out of versions, and from the instances of the directory what their Proto leaves out.
func (c *caller) hide(all ...*apiv1.KeyVal) {
	for _, kv := range all {
		if kv.GetLease() != 0 && !c.learns(kv.GetLeaseOwner()) {
			kv.LeaseTag, kv.Lease = proto.String(coord.LeaseID(kv.GetLease()).Tag()), 0
		}
		if kv != nil {
			kv.LeaseOwner = nil
		}
		if bytes.HasPrefix(kv.GetKey(), []byte(directory.Prefix)) && len(kv.GetValue()) > 0 {
			kv.Value = shown(kv.GetValue())
		}
	}
}

// hideResults hides in the results of steps, and of those within them.
func (c *caller) hideResults(steps []*apiv1.TxnStepResult) {
	for _, step := range steps {
		c.hide(step.GetKvs()...)
		c.hideResults(step.GetResults())
	}
}

// shown returns an entry of the directory for callers; empty for one that this version cannot read.
func shown(entry []byte) []byte {
	i := new(agentv1.Instance)
	if proto.Unmarshal(entry, i) != nil {
		return nil
	}
	i.LeaseId, i.Principal = "", ""
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(i) // what was read can be written
	return b
}
