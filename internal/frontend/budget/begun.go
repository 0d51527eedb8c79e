package budget

import (
	"context"
	"net"
	"sync"

	"github.com/blackhole/blackhole/internal/platform/access"
)

// few calls of a connection cost nothing: the connection that they take costs more.
const few = 4

// Begun bounds the calls that have no place of a Budget yet, most of them because their request has not arrived. Each caller has a share, and
// each connection a few beside it, so that others of its address do not shut it out. It is for grpc.InTapHandle: the transport asks before it
// starts a goroutine for the call, so that a refused one costs little. Safe for concurrent use.
type Begun struct {
	op      string
	crowded int // places in use from which on callers are told apart by name
	pool    *access.Pool
	name    func(context.Context) context.Context

	mu sync.Mutex
	by map[net.Addr]int // up to few of each connection
}

// NewBegun returns a bound on the number of such calls. op names the server in errors. name returns the context of a call with the name of
// its caller, whom nobody has admitted yet; it may take its time, and is asked while a quarter of the places is in use. Nil: the shares are of
// addresses. refused hears of each refusal and must not block; nil ignores them.
func NewBegun(op string, most int, name func(context.Context) context.Context, refused func(access.Refusal)) *Begun {
	return &Begun{op: op, crowded: most/4 + 1, pool: access.NewPool("begun_calls", most, refused), name: name, by: map[net.Addr]int{}}
}

type begunKey struct{}

// Begin takes a place for a call and returns its context. The place is free when the call has a place of a Budget, or has ended.
// Errors: PoolExhausted. Begin then closes the connection if no call was answered on it yet: thousands more may follow the refused one.
func (b *Begun) Begin(ctx context.Context) (context.Context, error) {
	release, err := b.take(ctx)
	if err != nil {
		if !access.Served(ctx) {
			access.Cut(ctx)
		}
		return ctx, err
	}
	release = sync.OnceFunc(release)
	stop := context.AfterFunc(ctx, release)
	return context.WithValue(ctx, begunKey{}, func() { stop(); release() }), nil
}

func (b *Begun) take(ctx context.Context) (release func(), err error) {
	if from := access.Remote(ctx); b.add(from, 1) {
		return func() { b.add(from, -1) }, nil
	}
	if b.name != nil && b.pool.Used() >= b.crowded {
		ctx = b.name(ctx)
	}
	return b.pool.Take(ctx, b.op)
}

// add changes the number of calls of a connection. It reports false if that has its few.
func (b *Begun) add(from net.Addr, n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.by[from] + n
	if now > few {
		return false
	}
	if b.by[from] = now; now == 0 {
		delete(b.by, from)
	}
	return true
}

// arrived says that a call has a place of its own.
func arrived(ctx context.Context) {
	if end, ok := ctx.Value(begunKey{}).(func()); ok {
		end()
	}
}
