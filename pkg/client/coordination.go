package client

import (
	"context"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Coordination is the contract of the coordination plane as served by a peer: each call is one
// request without repetition. Sessions, watches and elections add repetition; most programs
// want them.
//
// It implements Writer, Reader and Admin of package coord. The peer determines the owner of a
// call: Owner of a command is not sent, except with SpeakForOwners. Results lack the fields that the API lacks: position
// and predecessor of a waiting claim, the ended leases of a revocation, and the index of a
// lease's grant.
type Coordination struct {
	locks api.LockServiceClient
	waits api.LockServiceClient // on a separate connection for long calls
	keys  api.CoordinationServiceClient
	renew renewals

	speaks bool // see SpeakForOwners

	bundles *bundles // transport of the calls
}

// Coordination returns the contract of the coordination plane. It is safe for concurrent use
// and ends with the client.
func (c *Client) Coordination() *Coordination { return c.coordination }

// Do implements coord.Writer for all commands except the commands of members.
//
// Errors: Unsupported for commands of members.
func (p *Coordination) Do(ctx context.Context, cmd coord.Command) (coord.Result, coord.Header, error) {
	const op = "client.Do"
	m, err := coord.Message(cmd)
	if err != nil {
		return coord.Result{}, coord.Header{}, fault.Wrap(op, err)
	}
	ctx = p.speakFor(ctx, cmd.Owner)
	switch r := m.GetRequest().(type) {
	case *coordv1.Command_TryLock:
		resp, err := p.locks.TryLock(ctx, r.TryLock)
		return answered(op, resp, err, locked(resp))
	case *coordv1.Command_Unlock:
		resp, err := p.locks.Unlock(ctx, r.Unlock)
		return answered(op, resp, err, coord.Result{Lock: coord.LockResult{
			Key:   coord.LockKey(r.Unlock.GetName(), coord.LeaseID(r.Unlock.GetLeaseId())),
			Token: coord.Token(r.Unlock.GetFencingToken()), Count: resp.GetCount(), Granted: resp.GetCount() > 0,
		}})
	case *coordv1.Command_LeaseGrant:
		resp, err := p.locks.LeaseGrant(ctx, r.LeaseGrant)
		return answered(op, resp, err, coord.Result{Lease: coord.LeaseID(resp.GetId()), TTL: resp.GetTtlMs()})
	case *coordv1.Command_LeaseRevoke:
		resp, err := p.locks.LeaseRevoke(ctx, r.LeaseRevoke)
		return answered(op, resp, err, coord.Result{})
	case *coordv1.Command_Txn:
		resp, err := p.keys.Txn(ctx, r.Txn)
		return answered(op, resp, err, coord.Result{Changed: int(resp.GetChanged()), Txn: toTxn(resp)})
	case *coordv1.Command_PublishInstances:
		resp, err := p.keys.PublishInstances(ctx, r.PublishInstances)
		return answered(op, resp, err, published(resp))
	case *coordv1.Command_SetRequirement:
		resp, err := p.keys.SetRequirement(ctx, r.SetRequirement)
		return answered(op, resp, err, coord.Result{Changed: int(resp.GetChanged())})
	case *coordv1.Command_DeleteRequirement:
		resp, err := p.keys.DeleteRequirement(ctx, r.DeleteRequirement)
		return answered(op, resp, err, coord.Result{Changed: 1})
	case *coordv1.Command_OpenClient:
		resp, err := p.keys.OpenClient(ctx, r.OpenClient)
		return answered(op, resp, err, coord.Result{Client: coord.ClientID(resp.GetClient())})
	case *coordv1.Command_CloseClient:
		_, err := p.keys.CloseClient(ctx, &api.CloseClientRequest{Client: uint64(cmd.Client)})
		return coord.Result{}, coord.Header{}, fromStatus(op, err)
	}
	return coord.Result{}, coord.Header{}, fault.As(op, fault.Unsupported,
		&fault.Error{Kind: fault.Unsupported, Field: "op", Err: errors.New("no peer takes this command from a client")})
}

// answer is common to the responses of all commands.
type answer interface{ GetHeader() *api.Header }

// answered completes a result, or returns only the error.
func answered(op string, resp answer, err error, r coord.Result) (coord.Result, coord.Header, error) {
	if err != nil {
		return coord.Result{}, coord.Header{}, fromStatus(op, err)
	}
	h := toHeader(resp.GetHeader())
	r.Revision = h.Revision
	return r, h, nil
}

// locked returns the result of a claim.
func locked(resp interface {
	GetKey() string
	GetFencingToken() int64
	GetAcquired() bool
	GetCount() uint32
}) coord.Result {
	return coord.Result{Lock: coord.LockResult{
		Key: resp.GetKey(), Token: coord.Token(resp.GetFencingToken()), Granted: resp.GetAcquired(), Count: resp.GetCount(),
	}}
}

func published(resp *api.PublishInstancesResponse) coord.Result {
	result := coord.Result{Changed: int(resp.GetChanged())}
	for _, key := range resp.GetForeign() {
		result.Foreign = append(result.Foreign, string(key))
	}
	for _, revision := range resp.GetSince() {
		result.Since = append(result.Since, coord.Revision(revision))
	}
	return result
}

// Acquire implements coord.Writer. Errors: Invalid for a command without a lock to wait for.
func (p *Coordination) Acquire(ctx context.Context, cmd coord.Command, wait time.Duration) (coord.Result, coord.Header, error) {
	const op = "client.Acquire"
	m, err := coord.Message(cmd)
	if err != nil {
		return coord.Result{}, coord.Header{}, fault.Wrap(op, err)
	}
	req := m.GetLock()
	if req == nil {
		return coord.Result{}, coord.Header{}, fault.Wrap(op, fault.Invalidf("op", nil, "must be a lock that waits"))
	}
	req.TimeoutMs = -1
	if wait >= 0 {
		req.TimeoutMs = max(1, int64((wait+time.Millisecond-1)/time.Millisecond)) // 0 means no claim that waits
	}
	resp, err := p.waits.Lock(p.speakFor(ctx, cmd.Owner), req)
	return answered(op, resp, err, locked(resp))
}

// text refuses invalid UTF-8.
func text(field, s string) error {
	if !utf8.ValidString(s) {
		return fault.Invalidf(field, nil, "must be UTF-8")
	}
	return nil
}

// KeepAlive implements coord.Writer. All calls share one stream. The peer determines the owner, except with
// SpeakForOwners.
// Lifetimes start at the sending of the request.
func (p *Coordination) KeepAlive(ctx context.Context, owner string, ids []coord.LeaseID) ([]coord.Renewal, coord.Header, error) {
	const op = "client.KeepAlive"
	switch {
	case len(ids) == 0:
		return nil, coord.Header{}, nil
	case len(ids) > coord.MaxKeepAlive:
		return nil, coord.Header{}, fault.Wrap(op, fault.Invalidf("ids", len(ids), "must be at most %d", coord.MaxKeepAlive))
	}
	return p.renew.call(ctx, op, p.principal(owner), ids)
}
