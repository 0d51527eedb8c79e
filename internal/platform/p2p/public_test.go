package p2p

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"
)

func addrs(t *testing.T, list ...string) []multiaddr.Multiaddr {
	t.Helper()
	out := make([]multiaddr.Multiaddr, len(list))
	for i, s := range list {
		out[i] = addr(t, s)
	}
	return out
}

func TestPublicAddresses(t *testing.T) {
	for text, want := range map[string]bool{
		"/ip4/80.20.1.1/tcp/1":           true,
		"/dns4/peer.example.org/tcp/1":   true,
		"/ip6/2a01:4f8::1/udp/1/quic-v1": true,
		"/ip4/100.64.3.4/tcp/1":          false,
		"/ip6/fd00:1::7/tcp/1":           false,
		"/ip4/192.168.1.10/tcp/1":        false,
		"/ip4/127.0.0.1/tcp/1":           false,
	} {
		require.Equal(t, want, direct(addrs(t, text)), text)
		require.Equal(t, want, len(publicOnly(addrs(t, text))) == 1, text)
	}
	relayed := addrs(t, "/ip4/80.20.1.1/tcp/1/p2p/12D3KooWExFKd9gKCrBdxSPxDhjxtbUjAFWEnrXCsuu4W9kfH82c/p2p-circuit")
	require.Len(t, publicOnly(relayed), 1)
	require.False(t, direct(relayed), "no peer of the routing table")
}

// TestStrangersDoNotLearnPrivateAddresses: the DHT answers with the addresses of its peer store. A neighbour's
// private address is there, because multicast DNS found it.
func TestStrangersDoNotLearnPrivateAddresses(t *testing.T) {
	c := testConfig(t)
	c.Profile = Public
	n := start(t, c)
	neighbour := somePeers(t, 1, 1)[0].ID
	n.host.Peerstore().AddAddrs(neighbour, addrs(t, "/ip4/192.168.1.10/tcp/4801", "/ip4/80.20.1.1/tcp/4801"), peerstore.PermanentAddrTTL)
	require.Equal(t, addrs(t, "/ip4/80.20.1.1/tcp/4801"), n.dht.Host().Peerstore().PeerInfo(neighbour).Addrs)
	require.Len(t, n.host.Peerstore().Addrs(neighbour), 2, "this peer itself uses both")
}

// TestNeighboursAreOnLink: an announcement in the local network must not direct dials elsewhere.
func TestNeighboursAreOnLink(t *testing.T) {
	networks := []netip.Prefix{netip.MustParsePrefix("192.168.1.0/24"), netip.MustParsePrefix("2a01:4f8:0:1::/64")}
	require.True(t, inPrivateNetwork(networks))
	require.False(t, inPrivateNetwork(networks[1:]))
	require.Equal(t, addrs(t, "/ip4/192.168.1.9/tcp/1", "/ip6/2a01:4f8:0:1::9/tcp/1"), within(networks, addrs(t,
		"/ip4/192.168.1.9/tcp/1", "/ip6/2a01:4f8:0:1::9/tcp/1", "/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.1/tcp/1", "/ip4/80.20.1.1/tcp/1")))

	a, b := start(t, testConfig(t)), start(t, testConfig(t))
	near := newNeighbours(a.host, func() []netip.Prefix { return networks })
	m := &mdnsPeers{host: a.host, log: a.log, ctx: t.Context(), slots: make(chan struct{}, 1), open: near}
	m.HandlePeerFound(info(b)) // on loopback
	require.Zero(t, near.known.Len(), "no dial, no address")
	near.onLink = func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }
	m.HandlePeerFound(info(b))
	m.work.Wait()
	require.Equal(t, []peer.ID{b.host.ID()}, a.host.Network().Peers())
	require.Equal(t, neighbourWeight, a.host.ConnManager().GetTagInfo(b.host.ID()).Tags[neighbourTag], "kept by the connection manager")

	strangers := somePeers(t, neighbourBound+1, 1)
	for i, p := range strangers {
		p.Addrs = addrs(t, fmt.Sprintf("/ip4/127.0.0.1/tcp/%d", i+1))
		require.True(t, near.admit(a.host, &p))
	}
	require.Empty(t, a.host.Peerstore().Addrs(strangers[0].ID), "a stranger cannot fill the memory")
	require.Len(t, a.host.Peerstore().Addrs(strangers[1].ID), 1)
}
