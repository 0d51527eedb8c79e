package coordination

import (
	"context"
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Do implements coord.Writer.
func (p *Plane) Do(ctx context.Context, cmd coord.Command) (result coord.Result, h coord.Header, err error) {
	err = p.router.once(ctx, &cmd, func(ctx context.Context, t executor) error {
		result, h, err = t.Do(ctx, cmd)
		return err
	}, nil)
	return result, h, err
}

// Acquire implements coord.Writer.
func (p *Plane) Acquire(ctx context.Context, cmd coord.Command, wait time.Duration) (result coord.Result, h coord.Header, err error) {
	if _, _, ok := cmd.Waits(); !ok {
		return result, h, fault.Wrap("group.Acquire", fault.Invalidf("op", nil, "must be a lock to wait for"))
	}
	began := time.Now()
	left := func() time.Duration {
		if wait < 0 {
			return coord.NoLimit
		}
		return max(wait-time.Since(began), time.Millisecond)
	}
	err = p.router.once(ctx, &cmd, func(ctx context.Context, t executor) error {
		result, h, err = t.Acquire(ctx, cmd, left())
		return err
	}, p.router.withdraw)
	return result, h, err
}

// KeepAlive implements coord.Writer.
func (p *Plane) KeepAlive(ctx context.Context, owner string, ids []coord.LeaseID) (renewals []coord.Renewal, h coord.Header, err error) {
	if len(ids) > coord.MaxKeepAlive {
		return nil, h, fault.Wrap("group.KeepAlive", fault.Invalidf("ids", len(ids), "must be at most %d", coord.MaxKeepAlive))
	}
	err = p.router.retry(ctx, func(ctx context.Context, t executor) error {
		renewals, h, err = t.KeepAlive(ctx, owner, ids)
		return err
	})
	return renewals, h, err
}
