package client

import (
	"context"
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Leases are leases without automatic renewal. Most programs want a Session instead.
type Leases struct{ client *Client }

// Leases returns the calls for leases. They are safe for concurrent use and end with the client.
func (c *Client) Leases() Leases { return Leases{c} }

// Grant creates a lease. Only Renew keeps it alive. Errors: Invalid; LimitReached; Unavailable if
// no group was reachable until ctx ended.
func (l Leases) Grant(ctx context.Context, ttl time.Duration) (LeaseID, time.Duration, error) {
	r, err := l.client.do(ctx, &api.LeaseGrantRequest{TtlMs: ttl.Milliseconds(), Application: l.client.application})
	granted := r.GetLeaseGrant()
	return LeaseID(granted.GetId()), time.Duration(granted.GetTtlMs()) * time.Millisecond, fault.Wrap("client.Leases.Grant", err)
}

// Renew restarts the lifetime of a lease and returns its time to live. Errors: NotFound for an
// unknown lease, or the lease of another owner.
func (l Leases) Renew(ctx context.Context, id LeaseID) (time.Duration, error) {
	const op = "client.Leases.Renew"
	r, err := l.client.coordination.Execute(ctx, coord.CommandOf("", &api.LeaseKeepAliveRequest{Id: int64(id)}))
	if err != nil {
		return 0, fault.Wrap(op, err)
	}
	left := r.GetKeepAlive().GetTtlMs()
	if left <= 0 {
		return 0, fault.New(op, fault.NotFound, "lease %d is unknown, or belongs to another owner", id)
	}
	return time.Duration(left) * time.Millisecond, nil
}

// Revoke ends a lease with its locks and keys. Errors: NotFound; Forbidden for the lease of
// another owner.
func (l Leases) Revoke(ctx context.Context, id LeaseID) error {
	_, err := l.client.do(ctx, &api.LeaseRevokeRequest{Id: int64(id)})
	return fault.Wrap("client.Leases.Revoke", err)
}

// renewSessions is the sender of sessions.
func (c *Client) renewSessions(ctx context.Context, sessions []*Session) ([]time.Duration, error) {
	req := &api.LeaseKeepAliveRequest{Id: int64(sessions[0].id)}
	for _, s := range sessions[1:] {
		req.Ids = append(req.Ids, int64(s.id))
	}
	r, err := c.coordination.Execute(ctx, coord.CommandOf("", req))
	if err != nil {
		return nil, err
	}
	ttls := make([]time.Duration, 0, len(sessions))
	for _, ttl := range append([]int64{r.GetKeepAlive().GetTtlMs()}, r.GetKeepAlive().GetTtlsMs()...) {
		ttls = append(ttls, time.Duration(ttl)*time.Millisecond)
	}
	return ttls, nil
}
