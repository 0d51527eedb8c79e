package budget

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// cut closes the connection of a call.
type cut struct {
	credentials.CommonAuthInfo
	end func()
}

func (cut) AuthType() string { return "test" }

func (c cut) Cut() { c.end() }

// TestBegun: the oldest connection with begun calls closes for a new call, of the host that has the most of them, and none with calls that
// have arrived alone.
func TestBegun(t *testing.T) {
	b := Begun{Most: 100}
	connect := func(host byte) context.Context {
		ctx, end := context.WithCancel(t.Context())
		return peer.NewContext(ctx, &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, host), Port: 1}, AuthInfo: cut{end: end}})
	}
	served, honest, first, second := connect(1), connect(2), connect(1), connect(1)
	Arrived(b.Begin(served))
	calls := []context.Context{b.Begin(honest)}
	for range 49 {
		b.Begin(first)
	}
	for range 50 {
		calls = append(calls, b.Begin(second))
	}
	require.EqualValues(t, 100, b.used.Load())
	require.NoError(t, first.Err())
	calls = append(calls, b.Begin(honest))
	require.Error(t, first.Err())
	require.EqualValues(t, 52, b.used.Load())
	for _, ctx := range []context.Context{served, honest, second} {
		require.NoError(t, ctx.Err())
	}
	for _, ctx := range calls {
		Arrived(ctx)
		Arrived(ctx)
	}
	require.Zero(t, b.used.Load())
	for range b.by.Range {
		require.Fail(t, "something is left")
	}
}
