package client

import (
	"context"
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
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
