package dial

import (
	"crypto/rand"
	"net"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

func newHost(t *testing.T) host.Host {
	t.Helper()
	h, err := libp2p.New(libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0"), libp2p.DisableMetrics(), libp2p.DisableRelay())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return h
}

// TestReaches: an inbound connection proves nothing. A peer is reached at an address where it listens, beside the connections that
// exist; a peer without one, or with a wrong one, is not.
func TestReaches(t *testing.T) {
	here, other := newHost(t), newHost(t)
	to := other.ID()
	require.NoError(t, other.Connect(t.Context(), peer.AddrInfo{ID: here.ID(), Addrs: here.Addrs()}))
	inbound := func() (n int) {
		for _, c := range here.Network().ConnsToPeer(to) {
			if c.Stat().Direction == network.DirInbound {
				n++
			}
		}
		return n
	}
	require.Equal(t, 1, inbound())
	require.Len(t, here.Network().ConnsToPeer(to), 1)
	// The other peer tells where it listens beside the connection, a moment later.
	require.Eventually(t, func() bool { return len(here.Peerstore().Addrs(to)) > 0 }, time.Minute, time.Millisecond)
	require.NoError(t, Reaches(t.Context(), here, to))
	require.Equal(t, 1, inbound(), "the connection in use stays")

	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	at, err := manet.FromNetAddr(free.Addr())
	require.NoError(t, err)
	require.NoError(t, free.Close())
	tell := func(addrs ...multiaddr.Multiaddr) {
		here.Peerstore().ClearAddrs(to)
		here.Peerstore().AddAddrs(to, addrs, peerstore.PermanentAddrTTL)
	}
	tell(at)
	require.ErrorIs(t, Reaches(t.Context(), here, to), fault.Unavailable, "nobody listens there")
	third := newHost(t)
	tell(third.Addrs()...)
	require.ErrorIs(t, Reaches(t.Context(), here, to), fault.Unavailable, "another peer answers there")
	tell()
	require.ErrorContains(t, Reaches(t.Context(), here, to), "told no direct address")
	require.ErrorContains(t, Reaches(t.Context(), here, peer.ID("nobody")), "told no direct address")
}

// TestReturningPeerIsDialed at once, while the swarm still refuses to dial it.
func TestReturningPeerIsDialed(t *testing.T) {
	here := newHost(t)
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	require.NoError(t, err)
	id, err := peer.IDFromPrivateKey(key)
	require.NoError(t, err)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	at, err := manet.FromNetAddr(free.Addr())
	require.NoError(t, err)
	require.NoError(t, free.Close())
	home := peer.AddrInfo{ID: id, Addrs: []multiaddr.Multiaddr{at}}
	require.Error(t, Peer(t.Context(), here, home))
	back, err := libp2p.New(libp2p.ListenAddrs(at), libp2p.Identity(key), libp2p.DisableMetrics(), libp2p.DisableRelay())
	require.NoError(t, err)
	defer func() { require.NoError(t, back.Close()) }()
	require.ErrorIs(t, here.Connect(t.Context(), home), swarm.ErrDialBackoff)
	require.NoError(t, Peer(t.Context(), here, home))
}
