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
	Most int64 // of them; above 0

	used, age atomic.Int64
	by        sync.Map   // net.Addr to *waiting
	evicting  sync.Mutex // only tried: readers of connections must not wait for each other
}

// waiting are the calls of one connection whose request has not arrived.
type waiting struct {
	ctx    context.Context // of the first
	from   net.Addr
	client string
	age    int64

	mu    sync.Mutex
	calls int64
	gone  bool // not in Begun any more
}

type begun struct {
	all  *Begun
	on   *waiting
	over atomic.Bool
}

type begunKey struct{}

// Begin returns the context of a call for its transport. Arrived must learn when its request is there.
func (b *Begun) Begin(ctx context.Context) context.Context {
	from := access.Remote(ctx)
	for b.used.Add(1); b.used.Load() > b.Most && b.evicting.TryLock(); {
		ended := b.evict()
		b.evicting.Unlock()
		if !ended {
			break
		}
	}
	for {
		found, ok := b.by.Load(from)
		if !ok {
			found, _ = b.by.LoadOrStore(from, &waiting{ctx: ctx, from: from, client: access.Client(ctx), age: b.age.Add(1)})
		}
		if w := found.(*waiting); w.add(1, b) {
			ctx = context.WithValue(ctx, begunKey{}, &begun{all: b, on: w})
			context.AfterFunc(ctx, func() { Arrived(ctx) })
			return ctx
		}
	}
}

// add changes the number of calls, and takes w out when it has none. It reports false if w was out.
func (w *waiting) add(n int64, b *Begun) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone {
		return false
	}
	if w.calls += n; w.calls == 0 {
		w.gone = true
		b.by.CompareAndDelete(w.from, w)
	}
	return true
}

// evict closes a connection. It reports false if none has a call.
func (b *Begun) evict() bool {
	of := map[string]int64{}
	var all []*waiting
	for _, found := range b.by.Range {
		w := found.(*waiting)
		w.mu.Lock()
		of[w.client] += w.calls
		w.mu.Unlock()
		all = append(all, w)
	}
	var victim *waiting
	for _, w := range all {
		if victim == nil || of[w.client] > of[victim.client] || of[w.client] == of[victim.client] && w.age < victim.age {
			victim = w
		}
	}
	if victim == nil {
		return false
	}
	victim.mu.Lock()
	if !victim.gone {
		victim.gone = true
		b.by.CompareAndDelete(victim.from, victim)
		b.used.Add(-victim.calls)
	}
	victim.mu.Unlock()
	access.Cut(victim.ctx)
	return true
}

// Arrived says that the request of a call is there, or that its method reads it.
func Arrived(ctx context.Context) {
	if one, ok := ctx.Value(begunKey{}).(*begun); ok && !one.over.Swap(true) && one.on.add(-1, one.all) {
		one.all.used.Add(-1)
	}
}
