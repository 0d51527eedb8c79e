package client

import (
	"context"
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Leases are leases without automatic renewal. Most programs want a Session instead.
type Leases struct{ client *Client }

// Leases returns the calls for leases. They are safe for concurrent use and end with the client.
func (c *Client) Leases() Leases { return Leases{c} }

// Grant creates a lease. Only Renew keeps it alive. Errors: Invalid; LimitReached; Unavailable if
// no group was reachable until ctx ended.
func (l Leases) Grant(ctx context.Context, ttl time.Duration) (LeaseID, time.Duration, error) {
	r, err := l.client.do(ctx, &coord.LeaseGrant{TTL: ttl.Milliseconds(), Application: l.client.application})
	return r.Lease, time.Duration(r.TTL) * time.Millisecond, fault.Wrap("client.Leases.Grant", err)
}

// Renew restarts the lifetime of a lease and returns its time to live. Errors: NotFound for an
// unknown lease, or the lease of another owner.
func (l Leases) Renew(ctx context.Context, id LeaseID) (time.Duration, error) {
	const op = "client.Leases.Renew"
	renewals, _, err := l.client.coordination.KeepAlive(ctx, "", []LeaseID{id})
	if err != nil {
		return 0, fault.Wrap(op, err)
	}
	if renewals[0].TTL <= 0 {
		return 0, fault.New(op, fault.NotFound, "lease %d is unknown, or belongs to another owner", id)
	}
	return time.Duration(renewals[0].TTL) * time.Millisecond, nil
}

// Revoke ends a lease with its locks and keys. Errors: NotFound; Forbidden for the lease of
// another owner.
func (l Leases) Revoke(ctx context.Context, id LeaseID) error {
	_, err := l.client.do(ctx, &coord.LeaseRevoke{ID: id})
	return fault.Wrap("client.Leases.Revoke", err)
}

// renewSessions is the sender of sessions.
func (p *Coordination) renewSessions(ctx context.Context, sessions []*Session) ([]time.Duration, error) {
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
