package access

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// recheckEvery is the time between two checks of the credentials of a running call.
const recheckEvery = 10 * time.Second

// recheck ends a long call, such as a watch, when its credentials no longer give what they gave at its start: a token
// was removed or got another role. The end of the call stops it.
type recheck struct {
	guard  *Guard
	caller caller
	end    context.CancelCauseFunc

	mu      sync.Mutex
	timer   *time.Timer // guarded by mu
	stopped bool        // guarded by mu
}

// admit returns the context of an admitted call. It ends when the credentials expire or are revoked.
func (g *Guard) admit(ctx context.Context, c caller) (context.Context, context.CancelFunc) {
	ctx, expire := c.admitted(ctx, g.now())
	if g == nil {
		return ctx, expire
	}
	ctx, end := context.WithCancelCause(ctx)
	r := &recheck{guard: g, caller: c, end: end}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer = time.AfterFunc(recheckEvery, r.look)
	return ctx, func() {
		r.stop()
		end(nil)
		expire()
	}
}

// Revoked returns why a call ended whose credentials did so under way: an Unauthentic error. It is nil for all others.
func Revoked(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil && fault.KindOf(err) == fault.Unauthentic {
		return err
	}
	return nil
}

func (r *recheck) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	r.timer.Stop()
}

func (r *recheck) look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return
	}
	now, err := r.guard.identify(r.caller.by)
	if err == nil && now.Name == r.caller.Name && now.Role == r.caller.Role && slices.Equal(now.Services, r.caller.Services) {
		r.timer.Reset(recheckEvery)
		return
	}
	r.end(unauthentic())
}
