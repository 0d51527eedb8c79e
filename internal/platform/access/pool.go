package access

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/internal/platform/share"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Pool bounds concurrent uses of a resource, such as open watches, in total and for each client of Client; see
// share.Fits. Safe for concurrent use.
type Pool struct {
	resource string
	total    int
	refused  func(Refusal)
	kept     int                        // places for whom known reports
	known    func(context.Context) bool // nil: no place is kept

	mu   sync.Mutex
	used atomic.Int64   // changes within mu
	by   map[string]int // places of each client that has any
	free chan struct{}  // closed at the next release; nil: nobody waits
}

// Refusal is a place that a pool did not give.
type Refusal struct {
	Resource string // of the pool
	Full     bool   // no place is left; otherwise the client has its share
	Client   string // see Client
	Err      error  // for the client
}

// Reason names the cause in metrics: full or share.
func (r Refusal) Reason() string {
	if r.Full {
		return "full"
	}
	return "share"
}

// NewPool returns a pool of a resource, a plural in lower case with underscores, with a number of places. It calls
// refused for each refusal; nil calls nothing. The function must not block.
func NewPool(resource string, total int, refused func(Refusal)) *Pool {
	return &Pool{resource: resource, total: total, refused: refused, by: map[string]int{}}
}

// Keep keeps a quarter of the places for the clients of calls that known reports, and returns the pool. known may take
// its time: it is asked where the other places do not suffice. nil keeps none. Call Keep before the first Take.
func (p *Pool) Keep(known func(context.Context) bool) *Pool {
	if p.known = known; known != nil {
		p.kept = p.total / 4
	}
	return p
}

// Take occupies a place for the client of ctx until release is called, once. It fails with PoolExhausted when no
// place is left, or no more for this client; see fault.PoolOf. op names the operation in the error.
func (p *Pool) Take(ctx context.Context, op string) (release func(), err error) {
	return p.occupy(ctx, op, 1, 0)
}

// Crowded reports whether a quarter of the places is in use.
func (p *Pool) Crowded() bool { return 4*p.Used() > p.total }

// Room fails as Take would, and takes nothing.
func (p *Pool) Room(ctx context.Context, op string) error {
	release, err := p.Take(ctx, op)
	if err == nil {
		release()
	}
	return err
}

// refuse returns the error for a client that has its own places while others are free, and reports it.
func (p *Pool) refuse(op, client string, free, own int) error {
	what := strings.ReplaceAll(p.resource, "_", " ")
	err := fault.Exhausted(op, p.resource, false, "all %d %s are in use: close one or retry later", p.total, what)
	if free > 0 {
		err = fault.Exhausted(op, p.resource, true, "this client has %d of all %d %s, and the rest is for others: close one or retry later", own, p.total, what)
	}
	if p.refused != nil {
		p.refused(Refusal{Resource: p.resource, Full: free == 0, Client: client, Err: err})
	}
	return err
}

// take occupies n places, as if one after another: the client may have one of the free ones beside its own, without
// those that are kept for others.
func (p *Pool) take(client string, n, kept int) (free, own int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := max(p.total-p.Used()-kept, 0)
	free, own = max(left-n+1, 0), p.by[client] // free for the last of them
	if !share.Fits(uint64(own), uint64(n), uint64(left)) {
		return free, own, false
	}
	p.used.Add(int64(n))
	p.by[client] += n
	return free, own, true
}

// Small is the size in bytes of a request or an answer that costs nothing: the stream or connection that it takes
// costs more.
const Small = 16 << 10

// TakeBytes occupies n places of a pool of bytes until release is called, once. What is above half of the pool counts
// as half, so that an idle pool has room for each. It waits for room until patience or ctx end, and then fails as
// Take. release is nil for what is Small, and for a nil Pool, which has no bound.
func (p *Pool) TakeBytes(ctx context.Context, op string, n int, patience time.Duration) (release func(), err error) {
	if p == nil || n <= Small {
		return nil, nil
	}
	return p.occupy(ctx, op, min(n, p.total/2), patience)
}

// TakeWithin is TakeBytes for what counts however small it is. Its release is never nil.
func (p *Pool) TakeWithin(ctx context.Context, op string, n int, patience time.Duration) (release func(), err error) {
	if p == nil {
		return func() {}, nil
	}
	return p.occupy(ctx, op, min(n, p.total/2), patience)
}

// occupy occupies n places, and waits for them until patience or ctx end.
func (p *Pool) occupy(ctx context.Context, op string, n int, patience time.Duration) (release func(), err error) {
	client, kept := Client(ctx), p.kept
	free, own, ok := p.take(client, n, kept)
	if !ok && p.known != nil && p.known(ctx) {
		kept = 0
		free, own, ok = p.take(client, n, kept)
	}
	if patience > 0 && !ok {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		for waiting := true; waiting; {
			next := p.next() // before the attempt, so that no release is missed
			if free, own, ok = p.take(client, n, kept); ok {
				break
			}
			select {
			case <-next:
			case <-timer.C:
				waiting = false
			case <-ctx.Done():
				return nil, fault.As(op, fault.Canceled, context.Cause(ctx))
			}
		}
	}
	if !ok {
		return nil, p.refuse(op, client, free, own)
	}
	return func() { p.release(client, n) }, nil
}

// Growing is what one call occupies of a pool of bytes while it makes its answer: what it has and what it asks for
// next. Not for several goroutines.
type Growing struct {
	pool *Pool
	op   string
	n    int
}

// Growing returns an empty one. That of a nil Pool has no bound.
func (p *Pool) Growing(op string) *Growing { return &Growing{pool: p, op: op} }

// To occupies n bytes instead of those before, under the rules of TakeBytes. After an error it occupies what it had.
func (g *Growing) To(ctx context.Context, n int, patience time.Duration) error {
	if g.pool == nil {
		return nil
	}
	if n <= Small {
		n = 0
	}
	n = min(n, g.pool.total/2)
	if n > g.n {
		if _, err := g.pool.occupy(ctx, g.op, n-g.n, patience); err != nil {
			return err
		}
	} else if n < g.n {
		g.pool.release(Client(ctx), g.n-n)
	}
	g.n = n
	return nil
}

// Split moves what it occupies to another one, which another goroutine may have.
func (g *Growing) Split() *Growing {
	other := *g
	g.n = 0
	return &other
}

// Occupied returns the bytes that it occupies.
func (g *Growing) Occupied() int { return g.n }

// carriedOut is how long the answer to a change waits for room.
const carriedOut = 10 * time.Second

// TakeForChange is TakeBytes for the answer to a request that was carried out already: it must not look refused. It
// waits some seconds, and then fails with Timeout, after which no client takes the change for undone.
func (p *Pool) TakeForChange(ctx context.Context, op string, n int) (release func(), err error) {
	release, err = p.TakeBytes(ctx, op, n, carriedOut)
	return release, done(op, n, err)
}

// ToForChange is To for such an answer.
func (g *Growing) ToForChange(ctx context.Context, n int) error {
	return done(g.op, n, g.To(ctx, n, carriedOut))
}

// done returns the error for an answer of n bytes to a request that was carried out.
func done(op string, n int, err error) error {
	if fault.KindOf(err) != fault.PoolExhausted {
		return err
	}
	return &fault.Error{Op: op, Kind: fault.Timeout, Field: fault.FieldOf(err),
		Err: fmt.Errorf("the request was carried out, and its answer of %d bytes found no room: read anew", n)}
}

// next returns a channel that is closed at the next release.
func (p *Pool) next() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == nil {
		p.free = make(chan struct{})
	}
	return p.free
}

// Twin returns a pool of another resource, and otherwise as p before the first Take; nil for nil.
func (p *Pool) Twin(resource string) *Pool {
	if p == nil {
		return nil
	}
	return NewPool(resource, p.total, p.refused).Keep(p.known)
}

// Used returns the number of occupied places.
func (p *Pool) Used() int { return int(p.used.Load()) }

func (p *Pool) release(client string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used.Add(int64(-n))
	if p.free != nil {
		close(p.free)
		p.free = nil
	}
	if p.by[client] -= n; p.by[client] == 0 {
		delete(p.by, client)
	}
}
