package access

import (
	"context"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

// bench is a listener with bounded connections.
type bench struct {
	*Connections
	t        *testing.T
	l        net.Listener
	accepted chan net.Conn
	refusals chan Refusal
}

func newBench(t *testing.T, places int) *bench {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b := &bench{t: t, accepted: make(chan net.Conn), refusals: make(chan Refusal, 4096)}
	b.Connections = NewConnections(places, func(r Refusal) { b.refusals <- r })
	b.l = b.Listener(inner)
	t.Cleanup(func() { b.l.Close() })
	go func() {
		for {
			c, err := b.l.Accept()
			if err != nil {
				return
			}
			b.accepted <- c
		}
	}()
	return b
}

// dial returns both ends of a new connection.
func (b *bench) dial() (client, server net.Conn) {
	client, err := net.Dial("tcp", b.l.Addr().String())
	require.NoError(b.t, err)
	server = <-b.accepted
	b.t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// busy says that a request has arrived on the server's end of a connection.
func busy(server net.Conn) (done func()) { return Serving(ConnContext(context.Background(), server)) }

func closed(t *testing.T, c net.Conn) {
	_, err := c.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

// TestConnectionsAreBounded: a client at its share loses its own oldest connection without a request, and a probe gets in beside
// the pool when it has none. Each closed connection makes room.
func TestConnectionsAreBounded(t *testing.T) {
	b := newBench(t, 4)
	used, first := b.dial()
	busy(first)() // it had a request
	silent, second := b.dial()
	_, third := b.dial()
	done := busy(third)
	require.Equal(t, 3, b.Used())

	_, fourth := b.dial()
	closed(t, silent)
	require.ErrorIs(t, (<-b.refusals).Err, fault.PoolExhausted)
	require.NoError(t, OnlyProbes(ConnContext(t.Context(), fourth)))
	defer busy(fourth)()
	_, fifth := b.dial()
	closed(t, used)
	defer busy(fifth)()
	require.Equal(t, 3, b.Used())
	_ = second.Close()
	require.Equal(t, 3, b.Used(), "a second Close gives no second place back")

	probe, beside := b.dial()
	err := OnlyProbes(ConnContext(t.Context(), beside))
	require.ErrorIs(t, err, fault.PoolExhausted)
	require.Equal(t, "pool.connections.share", fault.FieldOf(err))
	require.Equal(t, 3, b.Used(), "all are busy")
	require.NoError(t, beside.Close())
	_, err = probe.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)

	done()
	require.NoError(t, third.Close())
	_, sixth := b.dial()
	require.NoError(t, OnlyProbes(ConnContext(t.Context(), sixth)))
}

// TestPlacesOfProbes: silent connections take the places of probes from each other, and never one with a request.
func TestPlacesOfProbes(t *testing.T) {
	b := newBench(t, 1)
	_, only := b.dial()
	defer busy(only)()
	_, probe := b.dial()
	require.ErrorIs(t, OnlyProbes(ConnContext(t.Context(), probe)), fault.PoolExhausted)
	done := busy(probe)
	oldest, _ := b.dial()
	for range 1000 {
		b.dial()
	}
	closed(t, oldest)
	b.mu.Lock()
	places := len(b.probes)
	b.mu.Unlock()
	require.Equal(t, probePlaces, places)
	_, err := probe.Write([]byte("ok"))
	require.NoError(t, err)
	done()
	client, last := b.dial()
	defer busy(last)()
	_, err = last.Write([]byte("x"))
	require.NoError(t, err)
	_, err = client.Read(make([]byte, 1))
	require.NoError(t, err, "a probe gets in")
}

// TestUserBehindLoopback: on Linux the user of the program is the client, in all pools, and no credential.
func TestUserBehindLoopback(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells the user of a socket")
	}
	b := newBench(t, 4)
	_, server := b.dial()
	ctx := ConnContext(t.Context(), server)
	if Client(ctx) == "loopback" {
		t.Skip("this kernel has no sock_diag")
	}
	require.Equal(t, "uid:"+strconv.Itoa(os.Getuid()), Client(ctx))
	g := &Guard{uid: os.Getuid()}
	g.rules.Store(&rules{anonymous: RoleReadOnly})
	c, err := g.identify(callCredentials{remote: server.RemoteAddr()})
	require.NoError(t, err)
	require.Equal(t, RoleReadOnly, c.Role, "whoever owns a port may belong to a proxy")
	require.Equal(t, "uid:"+strconv.Itoa(os.Getuid()), c.client)
}

// TestClosedSocketIsNobodys: a socket that its program has closed is not one of root, as the kernel says.
func TestClosedSocketIsNobodys(t *testing.T) {
	b := newBench(t, 4)
	client, server := b.dial()
	raw := server.(*boundedConn).Conn
	if userOf(raw) == nil {
		t.Skip("this system does not tell the user of a socket")
	}
	require.NoError(t, client.Close())
	require.Eventually(t, func() bool { return userOf(raw) == nil }, time.Minute, time.Millisecond)
}

// TestCallsWithoutPlace: the first call without a place closes a connection on which nothing was answered, and so do many in a row. Each
// connection has a few places for calls that begin.
func TestCallsWithoutPlace(t *testing.T) {
	b := newBench(t, 8)
	silent, fresh := b.dial()
	ctx := ConnContext(t.Context(), fresh)
	done := busy(fresh)
	require.False(t, Closed(ctx))
	Placed(ctx, false)
	done()
	require.True(t, Closed(ctx))
	closed(t, silent)

	_, server := b.dial()
	ctx = ConnContext(t.Context(), server)
	busy(server)()
	for range 3 {
		for range unlucky {
			Placed(ctx, false)
		}
		Placed(ctx, true)
	}
	require.False(t, Closed(ctx))
	for range unlucky + 1 {
		Placed(ctx, false)
	}
	require.True(t, Closed(ctx))

	_, server = b.dial()
	ctx = ConnContext(t.Context(), server)
	var held []func()
	for range few {
		release, ok := Few(ctx)
		require.True(t, ok)
		held = append(held, release)
	}
	_, ok := Few(ctx)
	require.False(t, ok)
	held[0]()
	_, ok = Few(ctx)
	require.True(t, ok)
	_, ok = Few(t.Context())
	require.False(t, ok)
}

// TestSilentReader: Linux ends a connection whose other end takes nothing.
func TestSilentReader(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux counts the time of a silent reader")
	}
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer inner.Close()
	client, err := net.Dial("tcp", inner.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, client.(*net.TCPConn).SetReadBuffer(4096))
	server, err := inner.Accept()
	require.NoError(t, err)
	defer server.Close()
	limitSilence(server, silence/100)
	for err == nil { // a full buffer alone would block for ever
		_, err = server.Write(make([]byte, 64<<10))
	}
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
}
