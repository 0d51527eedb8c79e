package client

import (
	"context"
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// GrantLease has the group make a lease that nobody keeps alive but RenewLease. Programs want a
// Session instead. Errors: Invalid; LimitReached; Unavailable when no group was reached until
// ctx ended.
func (c *Client) GrantLease(ctx context.Context, ttl time.Duration) (LeaseID, time.Duration, error) {
	r, err := c.do(ctx, &coord.LeaseGrant{TTL: ttl.Milliseconds()})
	return r.Lease, time.Duration(r.TTL) * time.Millisecond, fault.Wrap("client.GrantLease", err)
}

// RenewLease has a lease begin its time anew, and gives it. Errors: NotFound for one that
// ended, or is another's.
func (c *Client) RenewLease(ctx context.Context, id LeaseID) (time.Duration, error) {
	const op = "client.RenewLease"
	renewals, _, err := c.coordination.KeepAlive(ctx, "", []LeaseID{id})
	if err != nil {
		return 0, fault.Wrap(op, err)
	}
	if renewals[0].TTL <= 0 {
		return 0, fault.New(op, fault.NotFound, "there is no lease %d of yours", id)
	}
	return time.Duration(renewals[0].TTL) * time.Millisecond, nil
}

// RevokeLease ends a lease, and all that is bound to it. Errors: NotFound; Forbidden for
// another's.
func (c *Client) RevokeLease(ctx context.Context, id LeaseID) error {
	_, err := c.do(ctx, &coord.LeaseRevoke{ID: id})
	return fault.Wrap("client.RevokeLease", err)
}

// renewals is the stream of lease renewals.
type renewals struct {
	pipeline[api.LeaseKeepAliveRequest, api.LeaseKeepAliveResponse]
}

// call renews at least one lease.
func (r *renewals) call(ctx context.Context, op string, ids []coord.LeaseID) ([]coord.Renewal, coord.Header, error) {
	req := &api.LeaseKeepAliveRequest{Id: int64(ids[0])}
	for _, id := range ids[1:] {
		req.Ids = append(req.Ids, int64(id))
	}
	resp, err := r.pipeline.call(ctx, op, req)
	if err != nil {
		return nil, coord.Header{}, err
	}
	out := make([]coord.Renewal, len(ids))
	out[0] = coord.Renewal{ID: ids[0], TTL: resp.GetTtlMs()}
	for i, ttl := range resp.GetTtlsMs() {
		out[i+1] = coord.Renewal{ID: ids[i+1], TTL: ttl}
	}
	publish(out, resp.GetPublished())
	return out, toHeader(resp.GetHeader()), nil
}

// renews reports whether resp answers req.
func renews(req *api.LeaseKeepAliveRequest, resp *api.LeaseKeepAliveResponse) bool {
	return resp.GetId() == req.GetId() && len(resp.GetTtlsMs()) == len(req.GetIds())
}

// renewSessions is the sender of sessions.
func (p *Coordination) renewSessions(ctx context.Context, sessions []*Session, again bool) ([]time.Duration, error) {
	if again {
		p.renew.fresh()
	}
	ids := make([]coord.LeaseID, len(sessions))
	for i, s := range sessions {
		ids[i] = s.id
	}
	list, _, err := p.KeepAlive(ctx, "", ids)
	if err != nil {
		return nil, err
	}
	ttls := make([]time.Duration, len(list))
	for i, r := range list {
		ttls[i] = time.Duration(r.TTL) * time.Millisecond
	}
	return ttls, nil
}
