package join

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/p2p/address"
)

func newHost(t *testing.T) host.Host {
	t.Helper()
	h, err := libp2p.New(libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0"), libp2p.DisableMetrics(), libp2p.DisableRelay())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return h
}

func info(h host.Host) peer.AddrInfo { return peer.AddrInfo{ID: h.ID(), Addrs: h.Addrs()} }

func addrs(t *testing.T, list ...string) []multiaddr.Multiaddr {
	t.Helper()
	out, err := address.Parse("test", list)
	require.NoError(t, err)
	return out
}

// TestMDNSPeerIsConnected calls the handler directly, because the machine may have real peers in its local
// network.
func TestMDNSPeerIsConnected(t *testing.T) {
	a, b := newHost(t), newHost(t)
	n := &MDNS{host: a, log: slog.New(slog.DiscardHandler), slots: make(chan struct{}, 1)}
	n.ctx, n.stop = context.WithCancel(t.Context())
	n.HandlePeerFound(info(a)) // itself
	require.Empty(t, n.slots)
	n.HandlePeerFound(info(b))
	n.HandlePeerFound(info(b)) // again, during a dial: dropped
	require.Eventually(t, func() bool { return a.Network().Connectedness(b.ID()) == network.Connected }, time.Minute, time.Millisecond)
	n.stop()
	n.work.Wait()
}

// TestNeighboursAreOnLink: an announcement in the local network must not direct dials elsewhere.
func TestNeighboursAreOnLink(t *testing.T) {
	networks := []netip.Prefix{netip.MustParsePrefix("192.168.1.0/24"), netip.MustParsePrefix("2a01:4f8:0:1::/64")}
	require.True(t, private(networks[0]))
	require.False(t, private(networks[1]))
	require.Equal(t, addrs(t, "/ip4/192.168.1.9/tcp/1", "/ip6/2a01:4f8:0:1::9/tcp/1"), within(networks, addrs(t,
		"/ip4/192.168.1.9/tcp/1", "/ip6/2a01:4f8:0:1::9/tcp/1", "/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.1/tcp/1", "/ip4/80.20.1.1/tcp/1")))

	a, b := newHost(t), newHost(t)
	near := newNeighbours(a, func() []netip.Prefix { return networks })
	m := &MDNS{host: a, log: slog.New(slog.DiscardHandler), ctx: t.Context(), slots: make(chan struct{}, 1), open: near}
	m.HandlePeerFound(info(b)) // on loopback
	require.Zero(t, near.known.Len(), "no dial, no address")
	near.onLink = func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }
	m.HandlePeerFound(info(b))
	m.work.Wait()
	require.Equal(t, []peer.ID{b.ID()}, a.Network().Peers())
	require.Equal(t, neighbourWeight, a.ConnManager().GetTagInfo(b.ID()).Tags[neighbourTag], "kept by the connection manager")

	strangers := somePeers(t, neighbourBound+1, 1)
	for i, p := range strangers {
		p.Addrs = addrs(t, fmt.Sprintf("/ip4/127.0.0.1/tcp/%d", i+1))
		require.True(t, near.admit(a, &p))
	}
	require.Empty(t, a.Peerstore().Addrs(strangers[0].ID), "a stranger cannot fill the memory")
	require.Len(t, a.Peerstore().Addrs(strangers[1].ID), 1)
}
