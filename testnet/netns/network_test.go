package netns_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/netns"
)

// host is one host of a test, with a socket.
type host struct {
	*netns.Space
	port   *netns.Port
	addr   netip.Addr
	socket *net.UDPConn
}

func newHost(t *testing.T, n *netns.Network, address string) *host {
	t.Helper()
	space, err := netns.NewSpace()
	if fault.KindOf(err) == fault.Unsupported {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(space.Close)
	port, err := n.Plug(space, "eth0")
	if fault.KindOf(err) == fault.Unsupported {
		t.Skip(err)
	}
	require.NoError(t, err)
	h := &host{Space: space, port: port, addr: netip.MustParseAddr(address)}
	require.NoError(t, port.Add(netip.PrefixFrom(h.addr, h.addr.BitLen())))
	require.NoError(t, port.Default())
	require.NoError(t, space.Do(func() (err error) {
		h.socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(h.addr, 4000)))
		return err
	}))
	t.Cleanup(func() { _ = h.socket.Close() })
	return h
}

func (h *host) send(t *testing.T, to *host, b byte) {
	t.Helper()
	_, err := h.socket.WriteToUDPAddrPort([]byte{b}, netip.AddrPortFrom(to.addr, 4000))
	require.NoError(t, err)
}

// receive returns the next datagram, false if none comes in time.
func (h *host) receive(t *testing.T, within time.Duration) (byte, bool) {
	t.Helper()
	require.NoError(t, h.socket.SetReadDeadline(time.Now().Add(within)))
	got := make([]byte, 1)
	_, _, err := h.socket.ReadFromUDP(got)
	return got[0], err == nil
}

func newNetwork(t *testing.T, q netns.Quality) *netns.Network {
	t.Helper()
	n := netns.NewNetwork(q)
	t.Cleanup(n.Close)
	return n
}

const (
	soon  = time.Minute            // by when a packet that arrives has arrived
	never = 200 * time.Millisecond // how long to wait for a packet that does not
)

func TestLossIsWhole(t *testing.T) {
	n := newNetwork(t, netns.Quality{Loss: 1})
	a, b := newHost(t, n, "51.15.1.1"), newHost(t, n, "45.33.1.1")
	a.send(t, b, 1)
	_, ok := b.receive(t, never)
	require.False(t, ok)
	require.Positive(t, n.Dropped())

	n.SetQuality(netns.Quality{})
	a.send(t, b, 2)
	got, ok := b.receive(t, soon)
	require.True(t, ok)
	require.Equal(t, byte(2), got)
}

func TestDelayAndOrder(t *testing.T) {
	const delay = 50 * time.Millisecond
	n := newNetwork(t, netns.Quality{Delay: delay})
	a, b := newHost(t, n, "51.15.1.1"), newHost(t, n, "45.33.1.1")
	began := time.Now()
	for i := range byte(20) {
		a.send(t, b, i)
	}
	for i := range byte(20) {
		got, ok := b.receive(t, soon)
		require.True(t, ok)
		require.Equal(t, i, got, "equal delays keep the order")
	}
	require.GreaterOrEqual(t, time.Since(began), delay)
}
