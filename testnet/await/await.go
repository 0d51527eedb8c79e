// Package await polls conditions of a network of real processes until they hold, within a limit, and pauses until the
// end of a context.
package await

import (
	"context"
	"errors"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// interval is the pause between two attempts.
const interval = 20 * time.Millisecond

// Until calls f until it returns nil. After limit it fails with Timeout and names what and the
// last error of f. It fails at once after an error marked by Never, or after the end of ctx. The
// context of f ends with the limit.
func Until(ctx context.Context, limit time.Duration, what string, f func(context.Context) error) error {
	const op = "await.Until"
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var objection error
	for {
		err := f(bounded)
		var n never
		switch {
		case err == nil:
			return nil
		case errors.As(err, &n):
			return fault.Wrap(what, n.error)
		case objection == nil || bounded.Err() == nil: // an error caused by the time limit itself carries no information
			objection = err
		}
		select {
		case <-bounded.Done():
			if ctx.Err() != nil {
				return fault.Wrap(op, ctx.Err())
			}
			return fault.New(op, fault.Timeout, "%s: not within %v: %w", what, limit, objection)
		case <-tick.C:
		}
	}
}

// Pause waits for d, and no longer than ctx. Errors: that of ctx, at its end.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fault.Wrap("await.Pause", ctx.Err())
	}
}

// Never marks an error as permanent: waiting cannot fix it.
func Never(err error) error { return never{err} }

type never struct{ error }
