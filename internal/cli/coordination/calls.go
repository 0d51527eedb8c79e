package coordination

import (
	"context"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// LockState is a lock as the program shows it.
type LockState struct {
	Name    string       `json:"name"`
	Holding []ClaimState `json:"holding"`            // by token
	Waiting []ClaimState `json:"waiting"`            // in order of their turn
	LeftOut uint32       `json:"left_out,omitempty"` // claims behind these
}

// ClaimState is a claim on a lock as the program shows it.
type ClaimState struct {
	Holder      string         `json:"holder_id"`
	Mode        coord.Mode     `json:"mode"`
	Permits     uint32         `json:"permits,omitempty"`
	Count       uint32         `json:"count"` // open claims
	Metadata    []byte         `json:"metadata,omitempty"`
	Key         string         `json:"key"`
	Lease       coord.LeaseID  `json:"lease_id"`
	Token       coord.Token    `json:"fencing_token"`
	Application string         `json:"application,omitempty"`
	ModRevision coord.Revision `json:"mod_revision"`
	Version     int64          `json:"version"`
	AgeMs       int64          `json:"age_ms,omitempty"` // 0: unknown
}

// LeaseState is a lease as the program shows it.
type LeaseState struct {
	coord.Lease
	Tag       string   `json:"tag"`
	Remaining int64    `json:"remaining_ms"`
	Keys      []string `json:"keys,omitempty"` // bound keys, ascending; only of one lease
}

// Page is a list of keys as the program shows it.
type Page struct {
	Revision int64             `json:"revision"` // that was read
	Keys     []*coord.KeyValue `json:"kvs"`
	Next     string            `json:"next,omitempty"`  // first key of the rest; empty at the end
	Count    int64             `json:"count,omitempty"` // of all keys, without the keys
}

// ask asks a question. Errors: Invalid for a name that is not text; those of the group.
func ask(ctx context.Context, c *operator.Client, request proto.Message, field, name string) (*coordv1.Answer, error) {
	if !utf8.ValidString(name) {
		return nil, fault.Invalidf(field, nil, "must be UTF-8")
	}
	return c.Coordination().Read(ctx, coord.QuestionOf("", request))
}

// Locks returns a page of the locks under a prefix, after the lock after; 0: with the limit of the peer.
func Locks(ctx context.Context, c *operator.Client, prefix, after string, limit uint32) (all []LockState, err error) {
	a, err := ask(ctx, c, &apiv1.ListLocksRequest{Prefix: prefix, After: after, Limit: limit}, "prefix", prefix)
	for _, l := range a.GetListLocks().GetLocks() {
		all = append(all, lockOf(l))
	}
	return all, err
}

// FindLock returns a lock with all its claims. Errors: NotFound for a lock without claims.
func FindLock(ctx context.Context, c *operator.Client, name string) (all LockState, err error) {
	for q := (&apiv1.LockInfoRequest{Name: name}); ; {
		a, err := ask(ctx, c, q, "name", name)
		if all.LeftOut > 0 && fault.KindOf(err) == fault.NotFound {
			all.LeftOut, err = 0, nil // all of the rest have ended meanwhile
			return all, err
		}
		if err != nil {
			return LockState{}, err
		}
		page := lockOf(a.GetLockInfo().GetLock())
		last := page.Waiting
		if len(last) == 0 {
			last = page.Holding
		}
		all.Name, all.Holding, all.Waiting, all.LeftOut = page.Name, append(all.Holding, page.Holding...), append(all.Waiting, page.Waiting...), page.LeftOut
		if all.LeftOut == 0 || len(last) == 0 {
			all.Holding, all.Waiting = term.Emptied(all.Holding), term.Emptied(all.Waiting)
			return all, nil
		}
		q.AfterToken = int64(last[len(last)-1].Token)
	}
}

func lockOf(l *apiv1.LockState) LockState {
	claims := func(all []*apiv1.LockClaim) []ClaimState {
		out := make([]ClaimState, len(all))
		for i, c := range all {
			out[i] = ClaimState{
				Holder: c.GetHolderId(), Mode: coord.Mode(c.GetMode()), Permits: c.GetPermits(), Count: c.GetCount(), Metadata: c.GetMetadata(),
				Key: c.GetKey(), Lease: coord.LeaseOf(c.GetLeaseId()), Token: coord.Token(c.GetFencingToken()),
				Application: c.GetApplication(), ModRevision: coord.Revision(c.GetModRevision()), Version: c.GetVersion(), AgeMs: c.GetAgeMs(),
			}
		}
		return out
	}
	return LockState{Name: l.GetName(), Holding: claims(l.GetHolding()), Waiting: claims(l.GetWaiting()), LeftOut: l.GetLeftOut()}
}

// FindLease returns a lease with its keys.
func FindLease(ctx context.Context, c *operator.Client, id coord.LeaseID) (LeaseState, error) {
	a, err := ask(ctx, c, &apiv1.LeaseTimeToLiveRequest{Id: int64(id)}, "", "")
	return leaseStateOf(a.GetLeaseTimeToLive().GetLease()), err
}

// Leases returns a page of the leases, after the one that was granted at after.
func Leases(ctx context.Context, c *operator.Client, after uint64) (all []LeaseState, err error) {
	a, err := ask(ctx, c, &apiv1.ListLeasesRequest{After: after}, "", "")
	for _, l := range a.GetListLeases().GetLeases() {
		all = append(all, leaseStateOf(l))
	}
	return all, err
}

func leaseStateOf(l *apiv1.LeaseState) LeaseState {
	return LeaseState{
		Lease: coord.Lease{
			ID: coord.LeaseOf(l.GetId()), TTL: l.GetGrantedTtlMs(), Owner: l.GetClientId(), Application: l.GetApplication(),
			Granted: l.GetGranted(),
		},
		Tag: l.GetTag(), Remaining: l.GetRemainingMs(), Keys: l.GetKeys(),
	}
}

// Keys reads keys, page after page until the limit is reached, all at the revision of the first page.
func Keys(ctx context.Context, c *operator.Client, q *apiv1.RangeRequest) (all Page, err error) {
	for most := int(q.GetLimit()); ; {
		got, err := coord.Range(ctx, c.Coordination(), q)
		if err != nil {
			return Page{}, err
		}
		for _, kv := range got.GetKvs() {
			one := coord.KeyValueOf(kv)
			one.LockClaim = claimOf(kv.GetKey(), kv.GetValue(), kv.GetLease(), kv.GetLeaseTag())
			all.Keys = append(all.Keys, one)
		}
		all.Revision, all.Next, all.Count = got.GetRevision(), string(got.GetNext()), got.GetCount()
		if all.Next == "" || most > 0 && len(all.Keys) >= most {
			return all, nil
		}
		q.From, q.Revision, q.Limit = got.GetNext(), got.GetRevision(), uint32(max(most-len(all.Keys), 0))
	}
}

// claimOf reads the value of a lock's key, which ends with the tag of its lease; nil for other keys.
func claimOf(key, value []byte, lease int64, tag string) *coord.Claim {
	if tag == "" {
		tag = coord.LeaseID(lease).Tag()
	}
	entry := new(coordv1.LockEntry)
	name, ok := strings.CutSuffix(string(key), "/"+tag)
	if !ok || proto.Unmarshal(value, entry) != nil || entry.GetCount() == 0 {
		return nil
	}
	return &coord.Claim{
		Lock: name, Mode: coord.Mode(entry.GetMode()), Permits: entry.GetPermits(), Count: entry.GetCount(),
		Metadata: entry.GetMetadata(), Holder: entry.GetHolder(),
	}
}

func execute(ctx context.Context, c *operator.Client, txn *apiv1.TxnRequest) (*apiv1.TxnResponse, error) {
	result, err := c.Coordination().Execute(ctx, coord.CommandOf("", txn))
	return result.GetTxn(), err
}
