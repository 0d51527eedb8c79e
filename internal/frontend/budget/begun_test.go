package budget

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestBegun: a caller has its share of the begun calls, those that arrived or ended cost nothing, and in a flood callers are known by name.
func TestBegun(t *testing.T) {
	named := 0
	calls := access.NewPool("calls", 8, nil)
	b := NewBegun("test", 100, calls, func(ctx context.Context) context.Context {
		named++
		if name, ok := ctx.Value(begunKey{}).(string); ok {
			return access.With(ctx, access.Principal{Name: name})
		}
		return ctx
	}, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l = access.NewConnections(100, nil).Listener(l)
	defer l.Close()
	connect := func() (context.Context, context.CancelFunc) {
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		one, err := l.Accept()
		require.NoError(t, err)
		t.Cleanup(func() { c.Close(); one.Close() })
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: one.RemoteAddr()})
		access.Serving(ctx)() // something was answered
		return context.WithCancel(ctx)
	}
	flood := func(ctx context.Context) (begun []context.Context, err error) {
		for {
			one, err := b.Begin(ctx, "method")
			if err != nil {
				return begun, err
			}
			begun = append(begun, one)
		}
	}
	greedy, end := connect()
	held, err := flood(greedy)
	pool, share := fault.PoolOf(err)
	require.Equal(t, "begun_calls", pool)
	require.True(t, share)
	require.Len(t, held, 4+75)
	require.Positive(t, named)

	other, _ := connect() // of the same program
	held, err = flood(other)
	require.Error(t, err)
	require.Len(t, held, 4)
	honest, err := b.Begin(context.WithValue(other, begunKey{}, "honest"), "method")
	require.NoError(t, err)
	require.Equal(t, 76, b.pool.Used())
	arrived(honest)
	arrived(honest)
	require.Equal(t, 75, b.pool.Used())
	arrived(held[0])
	_, err = b.Begin(other, "method")
	require.NoError(t, err)
	end()
	require.Eventually(t, func() bool { return b.pool.Used() == 0 }, time.Minute, time.Millisecond)
	for _, one := range held {
		arrived(one)
	}
	for named := (access.With(other, access.Principal{Name: "greedy"})); err == nil; { // at work
		_, err = calls.Take(named, "test")
	}
	greedyAgain := context.WithValue(other, begunKey{}, "greedy")
	_, err = b.Begin(greedyAgain, "method")
	pool, _ = fault.PoolOf(err)
	require.Equal(t, "calls", pool, "a caller whose share is full begins nothing, also not among the few of its connection")
	_, err = b.Begin(greedyAgain, healthpb.Health_Check_FullMethodName)
	require.NoError(t, err)
	_, err = b.Begin(context.WithValue(other, begunKey{}, "honest"), "method")
	require.NoError(t, err)

	access.Cut(other)
	_, err = b.Begin(other, "method")
	require.Equal(t, errClosed, err)
}

// TestCallsWithoutRequests: a call that ends without a request keeps its place for a while, and the first request of a stream gives it back.
func TestCallsWithoutRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := access.NewPool("calls", 8, nil)
		b := NewBegun("test", 100, calls, nil, nil)
		ctx, end := context.WithCancel(access.With(t.Context(), access.Principal{Name: "one"}))
		begin := func() context.Context {
			one, err := b.Begin(ctx, "method")
			require.NoError(t, err)
			return one
		}
		budget := Budget{AtOnce: calls, Op: "test", Changes: func(string) bool { return false }}
		next := make(chan error)
		over := make(chan error, 1)
		go func() {
			over <- budget.Stream(nil, fakeStream{ctx: begin(), next: next}, nil, func(_ any, ss grpc.ServerStream) error {
				for {
					if err := ss.RecvMsg(nil); err != nil {
						return err
					}
				}
			})
		}()
		synctest.Wait()
		require.Equal(t, []int{1, 1}, []int{b.pool.Used(), calls.Used()}, "a stream without a request has both places")
		next <- nil
		synctest.Wait()
		require.Equal(t, []int{0, 1}, []int{b.pool.Used(), calls.Used()})
		next <- nil
		next <- io.EOF
		require.Equal(t, io.EOF, <-over)

		_, err := budget.Unary(begin(), nil, &grpc.UnaryServerInfo{FullMethod: "method"}, func(context.Context, any) (any, error) { return nil, nil })
		require.NoError(t, err)
		require.Zero(t, b.pool.Used())

		for range 75 {
			begin()
		}
		end()
		time.Sleep(endedFor - time.Nanosecond)
		ctx = access.With(t.Context(), access.Principal{Name: "one"})
		_, err = b.Begin(ctx, "method")
		pool, share := fault.PoolOf(err)
		require.Equal(t, []any{"begun_calls", true}, []any{pool, share}, "%v", err)
		_, err = b.Begin(access.With(t.Context(), access.Principal{Name: "other"}), "method")
		require.NoError(t, err)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Equal(t, 1, b.pool.Used())
		begin()
	})
}

// fakeStream receives what it is told.
type fakeStream struct {
	grpc.ServerStream
	ctx  context.Context
	next chan error
}

func (f fakeStream) Context() context.Context { return f.ctx }
func (f fakeStream) RecvMsg(any) error        { return <-f.next }
