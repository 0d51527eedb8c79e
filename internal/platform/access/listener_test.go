package access

import (
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

// TestConnectionsAreBounded: a client gets its share of connections and no more, and each closed one makes room.
func TestConnectionsAreBounded(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	refusals := make(chan Refusal, 1)
	pool := NewPool("connections", 4, func(r Refusal) { refusals <- r })
	l := pool.Listener(inner)
	defer l.Close()
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	var held []net.Conn
	for range 3 {
		dial()
		held = append(held, <-accepted)
	}
	_, err = dial().Read(make([]byte, 1))
	require.Error(t, err, "closed at once")
	refusal := <-refusals
	require.ErrorIs(t, refusal.Err, fault.PoolExhausted)
	require.Equal(t, "loopback", refusal.Client)
	require.NoError(t, held[0].Close())
	require.Error(t, held[0].Close(), "a second Close gives no second place back")
	require.Equal(t, 2, pool.Used())
	client := dial()
	again := <-accepted
	require.NoError(t, again.Close())
	_, err = client.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}
