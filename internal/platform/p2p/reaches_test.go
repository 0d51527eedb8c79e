package p2p

import (
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

// TestReaches: an inbound connection proves nothing. A peer is reached at an address where it listens, beside the connections that
// exist; a peer without one, or with a wrong one, is not.
func TestReaches(t *testing.T) {
	nodes := meet(t, 2)
	here, other := nodes[0], nodes[1]
	to := other.host.ID()
	inbound := func() (n int) {
		for _, c := range here.host.Network().ConnsToPeer(to) {
			if c.Stat().Direction == network.DirInbound {
				n++
			}
		}
		return n
	}
	require.Equal(t, 1, inbound())
	require.Len(t, here.host.Network().ConnsToPeer(to), 1)
	// The other peer tells where it listens beside the connection, a moment later.
	require.Eventually(t, func() bool { return len(here.host.Peerstore().Addrs(to)) > 0 }, time.Minute, time.Millisecond)
	require.NoError(t, here.Reaches(t.Context(), to))
	require.Equal(t, 1, inbound(), "the connection in use stays")

	var gone Config
	gone.Identity = testKey(t)
	at := absent(t, &gone)
	tell := func(addrs ...multiaddr.Multiaddr) {
		here.host.Peerstore().ClearAddrs(to)
		here.host.Peerstore().AddAddrs(to, addrs, peerstore.PermanentAddrTTL)
	}
	tell(at.Addrs...)
	require.ErrorIs(t, here.Reaches(t.Context(), to), fault.Unavailable, "nobody listens there")
	third := start(t, testConfig(t))
	tell(info(third).Addrs...)
	require.ErrorIs(t, here.Reaches(t.Context(), to), fault.Unavailable, "another peer answers there")
	tell()
	require.ErrorContains(t, here.Reaches(t.Context(), to), "told no direct address")
	require.ErrorContains(t, here.Reaches(t.Context(), peer.ID("nobody")), "told no direct address")
}
