package lan_test

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/lan"
)

// TestCuts sends datagrams: TCP needs both directions.
func TestCuts(t *testing.T) {
	l, err := lan.New(3)
	if fault.KindOf(err) == fault.Unsupported {
		t.Skip(err)
	}
	require.NoError(t, err)
	defer l.Close()
	sockets := make([]net.PacketConn, 3)
	for i, h := range l.Hosts {
		require.NoError(t, h.Do(func() (err error) {
			sockets[i], err = net.ListenPacket("udp4", h.IP+":4000")
			return err
		}))
		defer sockets[i].Close()
	}
	said := byte(0) // each datagram is told from those before it, which may come late
	arrives := func(from, to int) bool {
		said++
		_, err := sockets[from].WriteTo([]byte{said}, sockets[to].LocalAddr())
		require.NoError(t, err)
		require.NoError(t, sockets[to].SetReadDeadline(time.Now().Add(300*time.Millisecond)))
		for heard := make([]byte, 1); ; {
			if _, _, err := sockets[to].ReadFrom(heard); err != nil || heard[0] == said {
				return err == nil
			}
		}
	}
	opens := func(from, to int) bool { // a busy machine resolves addresses in its own time
		for range 100 {
			if arrives(from, to) {
				return true
			}
		}
		return false
	}
	require.True(t, opens(0, 1))
	l.Cut(0, 1)
	require.False(t, arrives(0, 1))
	require.True(t, opens(1, 0), "one way only")
	require.True(t, opens(0, 2))
	require.True(t, opens(2, 1))
	l.Mend(0, 1)
	l.Mend(0, 1)
	require.True(t, opens(0, 1))
	l.Cut(2, 0) // hosts that never spoke
	require.False(t, arrives(2, 0))
}
