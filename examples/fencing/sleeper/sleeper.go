// Package sleeper brings about what fencing is for: two who both believe that they hold a lock.
package sleeper

import (
	"context"

	"github.com/blackhole/blackhole/pkg/client"
)

// Holders are two who took a lock one after the other. Only the second holds it.
type Holders struct {
	Asleep *client.Held // slept too long: the group has given up on it
	Awake  *client.Held
	close  func() error
}

// Take has a first holder take the lock and sleep, as it seems to the group: its lease is
// ended behind its back, which here stands for a lease that runs out. A second one takes the
// lock then.
func Take(ctx context.Context, c *client.Client, name string) (*Holders, error) {
	first, err := c.Session(ctx)
	if err != nil {
		return nil, err
	}
	asleep, err := first.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := c.RevokeLease(ctx, first.Lease()); err != nil {
		return nil, err
	}
	second, err := c.Session(ctx)
	if err != nil {
		return nil, err
	}
	awake, err := second.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	return &Holders{Asleep: asleep, Awake: awake, close: func() error { return second.Close(context.WithoutCancel(ctx)) }}, nil
}

// Close gives the lock back.
func (h *Holders) Close() error { return h.close() }
