// Package await waits for conditions of a network of real processes, where nothing says
// when they come true: it asks again until they do, and not for ever.
package await

import (
	"context"
	"errors"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// interval paces the questions.
const interval = 20 * time.Millisecond

// Until asks f until it gives nil. When that has not come about within limit, it fails
// with Timeout, naming what was awaited and what f last objected. It fails at once when
// f gives an error marked by Never, or ctx ends. The context of f ends with the limit.
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
		case objection == nil || bounded.Err() == nil: // what is refused for want of time says nothing
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

// Never marks an error that waiting does not mend.
func Never(err error) error { return never{err} }

type never struct{ error }
