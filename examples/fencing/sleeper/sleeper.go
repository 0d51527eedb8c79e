// Package sleeper creates the situation that fencing protects against: two clients that both
// believe that they hold a lock.
package sleeper

import (
	"context"

	"github.com/blackhole/blackhole/pkg/client"
)

// Holders are two clients that took a lock one after the other. Only the second holds it now.
type Holders struct {
	Asleep *client.Held // slept too long: its lease has ended
	Awake  *client.Held
	close  func() error
}

// Take takes the lock for a first holder, and revokes its lease without its knowledge, as if the
// holder had slept until the lease expired. Then a second holder takes the lock.
func Take(ctx context.Context, c *client.Client, name string) (*Holders, error) {
	first, err := c.Locks().Session(ctx)
	if err != nil {
		return nil, err
	}
	asleep, err := first.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := c.Locks().Revoke(ctx, first.Lease()); err != nil {
		return nil, err
	}
	second, err := c.Locks().Session(ctx)
	if err != nil {
		return nil, err
	}
	awake, err := second.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	return &Holders{Asleep: asleep, Awake: awake, close: func() error { return second.Close(context.WithoutCancel(ctx)) }}, nil
}

// Close releases the lock.
func (h *Holders) Close() error { return h.close() }
