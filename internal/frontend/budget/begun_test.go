package budget

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
