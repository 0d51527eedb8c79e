package client

import (
	"context"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Coordination is the contract of the coordination plane, as a peer serves it: each call is
// one request and is not repeated. Sessions, watches that resume and elections are built on
// it; use it directly to do what they do not.
//
// It implements the Actor, Reader and Overseer of package coord. The peer knows on whose
// behalf a call is: a command's Owner is not sent. What the wire has no place for is left
// zero: a waiting claim's position and predecessor, the leases that a revocation ended,
// the index of a lease's grant.
type Coordination struct {
	locks api.LockServiceClient
	waits api.LockServiceClient // on a connection for calls that take as long as they take
	keys  api.CoordinationServiceClient
	renew renewals

	bundles *bundles // that carry the calls
}

// Coordination gives the contract of the coordination plane. It is safe for concurrent use
// and ends with the client.
func (c *Client) Coordination() *Coordination { return c.coordination }

// Do implements coord.Writer for *Write, *LeaseGrant, *LeaseRevoke, *Unlock, *ClientOpen,
// *ClientClose, *SetRequirement, *DeleteRequirement, *Lock without Wait, and, of a peer, *RegisterBatch.
// Errors: Unsupported for the others, which no peer takes from a client.
func (p *Coordination) Do(ctx context.Context, cmd coord.Command) (coord.Result, coord.Header, error) {
	const op = "client.Do"
	switch o := cmd.Op.(type) {
	case *coord.Write:
		return p.write(ctx, cmd)
	case *coord.LeaseGrant:
		resp, err := p.locks.LeaseGrant(ctx, &api.LeaseGrantRequest{Id: int64(o.ID), TtlMs: o.TTL, Attempt: toAttempt(cmd)})
		return answered(op, resp, err, coord.Result{Lease: coord.LeaseID(resp.GetId()), TTL: resp.GetTtlMs()})
	case *coord.LeaseRevoke:
		resp, err := p.locks.LeaseRevoke(ctx, &api.LeaseRevokeRequest{Id: int64(o.ID), Attempt: toAttempt(cmd)})
		return answered(op, resp, err, coord.Result{})
	case *coord.Lock:
		if !o.Wait {
			return p.tryLock(ctx, cmd, o)
		}
	case *coord.Unlock:
		return p.unlock(ctx, cmd, o)
	case *coord.RegisterBatch:
		return p.publish(ctx, cmd, o)
	case *coord.SetRequirement:
		return p.require(ctx, cmd, o.Requirement)
	case *coord.DeleteRequirement:
		if err := text("name", o.Name); err != nil {
			return coord.Result{}, coord.Header{}, fault.Wrap(op, err)
		}
		resp, err := p.keys.DeleteRequirement(ctx, &api.DeleteRequirementRequest{Name: o.Name, Attempt: toAttempt(cmd)})
		return answered(op, resp, err, coord.Result{Changed: 1})
	case *coord.ClientOpen:
		resp, err := p.keys.OpenClient(ctx, &api.OpenClientRequest{})
		return answered(op, resp, err, coord.Result{Client: coord.ClientID(resp.GetClient())})
	case *coord.ClientClose:
		_, err := p.keys.CloseClient(ctx, &api.CloseClientRequest{Client: uint64(cmd.Client)})
		return coord.Result{}, coord.Header{}, fromStatus(op, err)
	}
	return coord.Result{}, coord.Header{}, fault.As(op, fault.Unsupported,
		&fault.Error{Kind: fault.Unsupported, Field: "op", Err: errors.New("no peer takes this command from a client")})
}

// answer is what all answers to commands have.
type answer interface{ GetHeader() *api.Header }

// answered completes a result, or gives nothing but the error.
func answered(op string, resp answer, err error, r coord.Result) (coord.Result, coord.Header, error) {
	if err != nil {
		return coord.Result{}, coord.Header{}, fromStatus(op, err)
	}
	h := toHeader(resp.GetHeader())
	r.Revision = h.Revision
	return r, h, nil
}

func toAttempt(cmd coord.Command) *api.Attempt {
	if cmd.Client == 0 {
		return nil
	}
	return &api.Attempt{Client: uint64(cmd.Client), Sequence: cmd.Sequence}
}

func (p *Coordination) tryLock(ctx context.Context, cmd coord.Command, o *coord.Lock) (coord.Result, coord.Header, error) {
	const op = "client.TryLock"
	if err := text("name", o.Name); err != nil {
		return coord.Result{}, coord.Header{}, fault.Wrap(op, err)
	}
	resp, err := p.locks.TryLock(ctx, &api.TryLockRequest{
		Name: o.Name, LeaseId: int64(o.Lease), Metadata: o.Metadata,
		Mode: api.ShareMode(o.Mode), Permits: o.Permits, Attempt: toAttempt(cmd),
	})
	return answered(op, resp, err, coord.Result{Lock: coord.LockResult{
		Key: resp.GetKey(), Token: coord.Token(resp.GetFencingToken()), Granted: resp.GetAcquired(), Count: resp.GetCount(),
	}})
}

func (p *Coordination) unlock(ctx context.Context, cmd coord.Command, o *coord.Unlock) (coord.Result, coord.Header, error) {
	const op = "client.Unlock"
	if err := text("name", o.Name); err != nil {
		return coord.Result{}, coord.Header{}, fault.Wrap(op, err)
	}
	resp, err := p.locks.Unlock(ctx, &api.UnlockRequest{
		Name: o.Name, LeaseId: int64(o.Lease), FencingToken: int64(o.Token), Attempt: toAttempt(cmd),
	})
	return answered(op, resp, err, coord.Result{Lock: coord.LockResult{
		Key: coord.LockKey(o.Name, o.Lease), Token: o.Token, Count: resp.GetCount(), Granted: resp.GetCount() > 0,
	}})
}

// Acquire implements coord.Writer. Errors: Invalid for a command that is no *Lock with Wait.
func (p *Coordination) Acquire(ctx context.Context, cmd coord.Command, wait time.Duration) (coord.Result, coord.Header, error) {
	const op = "client.Acquire"
	o, ok := cmd.Op.(*coord.Lock)
	if !ok || !o.Wait {
		return coord.Result{}, coord.Header{}, fault.Wrap(op, fault.Invalidf("op", nil, "must be a lock that waits"))
	}
	if err := text("name", o.Name); err != nil {
		return coord.Result{}, coord.Header{}, fault.Wrap(op, err)
	}
	var ms int64
	if wait > 0 {
		ms = max(1, int64((wait+time.Millisecond-1)/time.Millisecond))
	}
	resp, err := p.waits.Lock(ctx, &api.LockRequest{
		Name: o.Name, LeaseId: int64(o.Lease), Metadata: o.Metadata, TimeoutMs: ms,
		Mode: api.ShareMode(o.Mode), Permits: o.Permits, Attempt: toAttempt(cmd),
	})
	return answered(op, resp, err, coord.Result{Lock: coord.LockResult{
		Key: resp.GetKey(), Token: coord.Token(resp.GetFencingToken()), Granted: resp.GetAcquired(), Count: resp.GetCount(),
	}})
}

// text refuses what the wire cannot carry as a string.
func text(field, s string) error {
	if !utf8.ValidString(s) {
		return fault.Invalidf(field, nil, "must be UTF-8")
	}
	return nil
}

func (p *Coordination) write(ctx context.Context, cmd coord.Command) (coord.Result, coord.Header, error) {
	const op = "client.Write"
	req := &api.WriteRequest{Attempt: toAttempt(cmd)}
	var err error
	if req.Guards, err = guards(cmd.Op.(*coord.Write).If); err != nil {
		return coord.Result{}, coord.Header{}, fault.Wrap(op, err)
	}
	for _, c := range cmd.Op.(*coord.Write).Then {
		switch {
		case c.Put != nil && c.Delete == nil:
			req.Changes = append(req.Changes, &api.WriteChange{Key: []byte(c.Put.Key), Value: c.Put.Value, Lease: int64(c.Put.Lease)})
		case c.Delete != nil && c.Put == nil:
			from, to := bounds(*c.Delete)
			req.Changes = append(req.Changes, &api.WriteChange{Delete: true, Key: from, RangeEnd: to})
		default:
			return coord.Result{}, coord.Header{}, fault.Wrap(op, fault.Invalidf("then", nil, "must each be a put or a deletion"))
		}
	}
	resp, err := p.keys.Write(ctx, req)
	return answered(op, resp, err, coord.Result{Changed: int(resp.GetChanged())})
}

// guards returns conditions in the API's form.
func guards(list []coord.Guard) ([]*api.WriteGuard, error) {
	var out []*api.WriteGuard
	for _, g := range list {
		if lock, token, ok := g.Held(); ok {
			if err := text("lock", lock); err != nil {
				return nil, err
			}
			out = append(out, &api.WriteGuard{Lock: lock, FencingToken: int64(token)})
			continue
		}
		key, mod, _ := g.Unchanged()
		out = append(out, &api.WriteGuard{Key: []byte(key), ModRevision: int64(mod)})
	}
	return out, nil
}

// KeepAlive implements coord.Writer. All calls share one stream. The owner is the peer's to
// know. The times count from before the call.
func (p *Coordination) KeepAlive(ctx context.Context, _ string, ids []coord.LeaseID) ([]coord.Renewal, coord.Header, error) {
	const op = "client.KeepAlive"
	switch {
	case len(ids) == 0:
		return nil, coord.Header{}, nil
	case len(ids) > coord.MaxKeepAlive:
		return nil, coord.Header{}, fault.Wrap(op, fault.Invalidf("ids", len(ids), "must be at most %d", coord.MaxKeepAlive))
	}
	return p.renew.call(ctx, op, ids)
}
