package budget

import (
	"context"
	"net"
	"sync"
	"sync/atomic"

	"github.com/blackhole/blackhole/internal/platform/access"
)

// Begun bounds the calls whose request has not arrived. Nobody is refused: where there are too many, the oldest connection with some closes, of
// the client that has the most. Its calls alone could not end: the transport keeps one that has ended until its client reads. Safe for
// concurrent use.
type Begun struct {
	Most int // of them; above 0

	mu   sync.Mutex
	used int
	age  uint64
	by   map[net.Addr]*waiting
}

// waiting are the calls of one connection whose request has not arrived.
type waiting struct {
	ctx    context.Context // of the first
	client string
	age    uint64
	calls  int
	closed atomic.Bool // they are no longer counted
}

type begun struct {
	all  *Begun
	on   *waiting
	over atomic.Bool
}

type begunKey struct{}

// Begin returns the context of a call for its transport. Arrived must learn when its request is there.
func (b *Begun) Begin(ctx context.Context) context.Context {
	if ctx.Err() != nil {
		return ctx
	}
	from := access.Remote(ctx)
	b.mu.Lock()
	var victim *waiting
	if b.used >= b.Most {
		victim = b.evict()
	}
	w := b.by[from]
	if w == nil {
		if b.by == nil {
			b.by = map[net.Addr]*waiting{}
		}
		b.age++
		w = &waiting{ctx: ctx, client: access.Client(ctx), age: b.age}
		b.by[from] = w
	}
	w.calls++
	b.used++
	b.mu.Unlock()
	if victim != nil {
		access.Cut(victim.ctx)
	}
	ctx = context.WithValue(ctx, begunKey{}, &begun{all: b, on: w})
	context.AfterFunc(ctx, func() { Arrived(ctx) })
	return ctx
}

// evict takes a connection out. b.mu must be held.
func (b *Begun) evict() *waiting {
	of := map[string]int{}
	for _, w := range b.by {
		of[w.client] += w.calls
	}
	var victim *waiting
	var at net.Addr
	for from, w := range b.by {
		if victim == nil || of[w.client] > of[victim.client] || of[w.client] == of[victim.client] && w.age < victim.age {
			victim, at = w, from
		}
	}
	delete(b.by, at)
	b.used -= victim.calls
	victim.closed.Store(true)
	return victim
}

// Arrived says that the request of a call is there, or that its method reads it.
func Arrived(ctx context.Context) {
	one, ok := ctx.Value(begunKey{}).(*begun)
	if !ok || one.on.closed.Load() || one.over.Swap(true) {
		return
	}
	b := one.all
	b.mu.Lock()
	defer b.mu.Unlock()
	if one.on.closed.Load() {
		return
	}
	b.used--
	if one.on.calls--; one.on.calls == 0 {
		one.on.closed.Store(true)
		delete(b.by, access.Remote(ctx))
	}
}
