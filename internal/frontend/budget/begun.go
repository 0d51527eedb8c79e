package budget

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/blackhole/blackhole/internal/platform/access"
)

// errClosed ends calls that arrived before their connection closed. It is made once, because many calls get it.
var errClosed = status.Error(codes.Unavailable, "the connection is closed")

// Begun bounds the calls that have no place of a Budget yet, most of them because their request has not arrived. Each caller has a share.
// A caller without a name shares it with its address, so each of its connections has a few places more. It is for grpc.InTapHandle: the
// transport asks before it starts a goroutine for the call, so that a refused one costs little. Safe for concurrent use.
type Begun struct {
	op     string
	pool   *access.Pool
	atOnce *access.Pool // of the Budget
	name   func(context.Context) context.Context
}

// NewBegun returns a bound on the number of such calls, before those of a Budget that are at work. op names the server in errors. name returns
// the context of a call with the name of its caller, whom nobody has admitted yet; it may take its time, and is asked while a quarter of the places
// of either is in use: a caller whose share is full costs no more than that then. Nil: the shares are of addresses. refused hears of each refusal
// and must not block; nil ignores them.
func NewBegun(op string, most int, atOnce *access.Pool, name func(context.Context) context.Context, refused func(access.Refusal)) *Begun {
	return &Begun{op: op, pool: access.NewPool("begun_calls", most, refused), atOnce: atOnce, name: name}
}

type begunKey struct{}

// begunCall is the context of a call that has a place.
type begunCall struct {
	context.Context
	release func()
	free    atomic.Bool
	stop    func() bool
}

// Value implements context.Context.
func (c *begunCall) Value(key any) any {
	if _, own := key.(begunKey); own {
		return c
	}
	return c.Context.Value(key)
}

// end gives the place back, the first time.
func (c *begunCall) end() {
	if !c.free.Swap(true) {
		c.release()
	}
}

// endedFor is how long a call that ended without a request keeps its place: to begin and end calls costs a client less than this peer.
const endedFor = 2 * time.Second

// Begin takes a place for a call and returns its context. The place is free when the call has a place of a Budget and its first request, or
// some time after it has ended without.
// Errors: PoolExhausted, after which the connection may close; see access.Placed.
func (b *Begun) Begin(ctx context.Context, fullMethod string) (context.Context, error) {
	if access.Closed(ctx) {
		return ctx, errClosed
	}
	release, err := b.take(ctx, fullMethod)
	if err != nil {
		access.Placed(ctx, false)
		return ctx, err
	}
	one := &begunCall{Context: ctx, release: release}
	one.stop = context.AfterFunc(ctx, func() { time.AfterFunc(endedFor, one.end) })
	return one, nil
}

func (b *Begun) take(ctx context.Context, fullMethod string) (release func(), err error) {
	if b.name != nil && (b.pool.Crowded() || b.atOnce.Crowded()) {
		ctx = b.name(ctx)
	}
	if access.From(ctx).Name == "" {
		if release, ok := access.Few(ctx); ok {
			return release, nil
		}
	} else if fullMethod != healthpb.Health_Check_FullMethodName { // needs no place of a Budget
		if err := b.atOnce.Room(ctx, b.op); err != nil {
			return nil, err
		}
	}
	return b.pool.Take(ctx, b.op)
}

// arrived says that a call has a place of its own, and its first request.
func arrived(ctx context.Context) {
	access.Placed(ctx, true)
	if one, ok := ctx.Value(begunKey{}).(*begunCall); ok {
		one.stop()
		one.end()
	}
}
