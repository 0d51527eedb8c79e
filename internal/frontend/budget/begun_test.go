package budget

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/peer"

	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestBegun: a caller has its share of the begun calls, those that arrived or ended cost nothing, and in a flood callers are known by name.
func TestBegun(t *testing.T) {
	named := 0
	b := NewBegun("test", 100, func(ctx context.Context) context.Context {
		named++
		if name, ok := ctx.Value(begunKey{}).(string); ok {
			return access.With(ctx, access.Principal{Name: name})
		}
		return ctx
	}, nil)
	connect := func(host byte) (context.Context, context.CancelFunc) {
		return context.WithCancel(peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, host), Port: 1}}))
	}
	flood := func(ctx context.Context) (begun []context.Context, err error) {
		for {
			one, err := b.Begin(ctx)
			if err != nil {
				return begun, err
			}
			begun = append(begun, one)
		}
	}
	greedy, end := connect(1)
	held, err := flood(greedy)
	pool, share := fault.PoolOf(err)
	require.Equal(t, "begun_calls", pool)
	require.True(t, share)
	require.Len(t, held, few+75)
	require.Positive(t, named)

	other, _ := connect(1) // the same address
	held, err = flood(other)
	require.Error(t, err)
	require.Len(t, held, few)
	honest, err := b.Begin(context.WithValue(other, begunKey{}, "honest"))
	require.NoError(t, err)
	require.Equal(t, 76, b.pool.Used())
	arrived(honest)
	arrived(honest)
	require.Equal(t, 75, b.pool.Used())
	arrived(held[0])
	_, err = b.Begin(other)
	require.NoError(t, err)
	end()
	require.Eventually(t, func() bool { return b.pool.Used() == 0 }, time.Minute, time.Millisecond)
	for _, one := range held {
		arrived(one)
	}
	require.Len(t, b.by, 1)
}
