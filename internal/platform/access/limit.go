package access

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/pkg/fault"
)

// maxClients is the default number of remembered clients.
const maxClients = 8192

// Limiter bounds the registrations of each client by a token bucket of one minute. It must not limit
// heartbeats: a refused heartbeat would remove a healthy instance. It remembers the latest clients; a
// forgotten client starts with a full bucket. A nil Limiter has no bound.
type Limiter struct {
	perMinute int

	mu      sync.Mutex // makes a refusal take nothing
	clients *bounded.Buckets[string]
}

// NewLimiter makes a limiter, or returns nil for perMinute 0, which means no limit. clients is the
// number of remembered clients; zero means 8192.
func NewLimiter(perMinute, clients int) *Limiter {
	if perMinute <= 0 {
		return nil
	}
	if clients <= 0 {
		clients = maxClients
	}
	return &Limiter{perMinute: perMinute, clients: bounded.NewBuckets[string](clients, rate.Limit(perMinute)/60, perMinute)}
}

// Of counts a registration of the caller of ctx. Callers on this machine have no rate: after a restart it registers
// all its services at once. The bounds of number and bytes hold them. Errors: as Take.
func (l *Limiter) Of(ctx context.Context, now time.Time) error {
	if Local(ctx) {
		return nil
	}
	return l.Take(Client(ctx), 1, now)
}

// Take counts n registrations of a client. Above the limit it fails with LimitReached and counts
// none; RetryAfter then returns the time to wait.
func (l *Limiter) Take(client string, n int, now time.Time) error {
	if l == nil {
		return nil
	}
	if n > l.perMinute {
		return fault.New("access.Take", fault.LimitReached, "%d registrations at once exceed the limit of %d per minute: send fewer", n, l.perMinute)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.clients.Of(client).ReserveN(now, n)
	wait := r.DelayFrom(now)
	if wait == 0 {
		return nil
	}
	r.CancelAt(now)
	return &fault.Error{Op: "access.Take", Kind: fault.LimitReached, Err: &rateLimitError{perMinute: l.perMinute, after: wait}}
}

// rateLimitError is the cause of an error that passes with time.
type rateLimitError struct {
	perMinute int
	after     time.Duration
}

// Error implements error.
func (t *rateLimitError) Error() string {
	return fmt.Sprintf("the limit of %d registrations per minute is reached: retry in %v", t.perMinute, t.wait())
}

// wait rounds up to whole seconds, the unit of the header.
func (t *rateLimitError) wait() time.Duration {
	return time.Duration(math.Ceil(t.after.Seconds())) * time.Second
}

// RetryAfter returns the time, in whole seconds, after which a client may retry: the value of the
// Retry-After header. It returns false for errors of other origin than Take, and than a pool that says when it has room.
func RetryAfter(err error) (time.Duration, bool) {
	if wait, ok := fault.ValueOf(err).(time.Duration); ok && fault.KindOf(err) == fault.PoolExhausted {
		return (&rateLimitError{after: wait}).wait(), true
	}
	var t *rateLimitError
	if !errors.As(err, &t) {
		return 0, false
	}
	return t.wait(), true
}
