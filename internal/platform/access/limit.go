package access

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"

	"github.com/blackhole/blackhole/pkg/fault"
)

// maxClients is how many clients a limiter remembers unless told otherwise.
const maxClients = 8192

// Limiter bounds how many registrations a client makes in a minute, by a token bucket that
// holds a minute's worth. It is for nothing else: a heartbeat that is refused takes a healthy
// instance away. It remembers the clients that came last; one that is forgotten begins with a
// full bucket. A nil one bounds nothing.
type Limiter struct {
	perMinute int

	mu      sync.Mutex // guards clients and the buckets in it
	clients *simplelru.LRU[string, *rate.Limiter]
}

// NewLimiter makes a limiter of so many registrations a minute, or gives nil for 0, which is no
// limit. It remembers so many clients; 0 is 8192.
func NewLimiter(perMinute, clients int) *Limiter {
	if perMinute <= 0 {
		return nil
	}
	if clients <= 0 {
		clients = maxClients
	}
	lru, err := simplelru.NewLRU[string, *rate.Limiter](clients, nil)
	if err != nil {
		panic("access: " + err.Error()) // impossible: the size is positive
	}
	return &Limiter{perMinute: perMinute, clients: lru}
}

// Take counts n registrations of a client. It fails with LimitReached, and counts none, when
// they are too many now; RetryAfter then says when they are not.
func (l *Limiter) Take(client string, n int, now time.Time) error {
	if l == nil {
		return nil
	}
	if n > l.perMinute {
		return fault.New("access.Take", fault.LimitReached, "%d registrations at once, and %d a minute are allowed", n, l.perMinute)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	bucket, ok := l.clients.Get(client)
	if !ok {
		bucket = rate.NewLimiter(rate.Limit(l.perMinute)/60, l.perMinute)
		l.clients.Add(client, bucket)
	}
	r := bucket.ReserveN(now, n)
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
	return fmt.Sprintf("%d registrations a minute are allowed; try again in %v", t.perMinute, t.wait())
}

// wait is in whole seconds, as the header takes it, and never too short.
func (t *rateLimitError) wait() time.Duration {
	return time.Duration(math.Ceil(t.after.Seconds())) * time.Second
}

// RetryAfter gives the time, in whole seconds, after which what a Limiter refused may be tried
// again: the value of the Retry-After header. It is false for other errors.
func RetryAfter(err error) (time.Duration, bool) {
	var t *rateLimitError
	if !errors.As(err, &t) {
		return 0, false
	}
	return t.wait(), true
}
