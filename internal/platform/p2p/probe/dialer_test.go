package probe

import (
	"context"
	"crypto/rand"
	"net"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/p2p/dial"
	"github.com/blackhole/blackhole/pkg/records"
)

// patience bounds each wait for the network. No assertion depends on time.
const patience = 60 * time.Second

func newHost(t *testing.T) host.Host {
	t.Helper()
	h, err := libp2p.New(libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0"), libp2p.DisableMetrics(), libp2p.DisableRelay())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return h
}

func newDialer(t *testing.T) *dialer {
	t.Helper()
	h := newHost(t)
	d, err := dht.New(h, dht.Mode(dht.ModeServer), dht.ProtocolPrefix("/test"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return &dialer{host: h, dht: d}
}

func info(h host.Host) peer.AddrInfo { return peer.AddrInfo{ID: h.ID(), Addrs: h.Addrs()} }

func randomID(t *testing.T) peer.ID {
	t.Helper()
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	require.NoError(t, err)
	id, err := peer.IDFromPrivateKey(key)
	require.NoError(t, err)
	return id
}

func TestEvidenceOfALonePeer(t *testing.T) {
	lone, linked := newDialer(t), newDialer(t)
	require.NoError(t, linked.host.Connect(t.Context(), info(newHost(t))))
	require.Equal(t, records.Busy, lone.conclude("x", dial.Refusal))
	require.Equal(t, records.Unreachable, lone.conclude("x", dial.Closed), "a refused connection proves that this peer's network works")
	require.Equal(t, records.Unreachable, linked.conclude("x", dial.Silence))
	require.Empty(t, lone.conclude("x", dial.Silence), "perhaps this peer has no network")
	require.Empty(t, linked.conclude("x", dial.Local))
}

// TestSilenceIsNoEvidenceForALonePeer: a port that accepts and never answers.
func TestSilenceIsNoEvidenceForALonePeer(t *testing.T) {
	hole, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer hole.Close()
	at, err := manet.FromNetAddr(hole.Addr())
	require.NoError(t, err)
	id, d := randomID(t), newDialer(t)
	check := func() records.Reachability {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		d.host.Peerstore().AddAddrs(id, []multiaddr.Multiaddr{at}, time.Hour)
		return d.dial(ctx, id, false, false).State
	}
	require.Empty(t, check())
	require.NoError(t, d.host.Connect(t.Context(), info(newHost(t))))
	require.Equal(t, records.Unreachable, check())
}

// TestProbeGivesItsConnectionBack, and only its own one.
func TestProbeGivesItsConnectionBack(t *testing.T) {
	d, h := newDialer(t), newHost(t)
	d.host.Peerstore().AddAddrs(h.ID(), h.Addrs(), time.Hour)
	o := d.dial(t.Context(), h.ID(), false, false)
	require.Equal(t, records.Reachable, o.State)
	require.True(t, o.Dialed)
	require.Positive(t, o.RoundTrip)
	require.False(t, d.connected(h.ID()))

	require.NoError(t, d.host.Connect(t.Context(), info(h)))
	o = d.ping(t.Context(), h.ID())
	require.Equal(t, records.Reachable, o.State)
	require.False(t, o.Dialed)
	require.True(t, d.connected(h.ID()), "this connection has another use")
}

// TestAddressUnknown probes a peer without an address.
func TestAddressUnknown(t *testing.T) {
	stranger := randomID(t)
	require.Equal(t, Outcome{Dialed: true}, newDialer(t).dial(t.Context(), stranger, false, false), "the lookup fails")
	door, from, to := newDialer(t), newDialer(t), newDialer(t)
	for _, d := range []*dialer{from, to} {
		require.NoError(t, d.host.Connect(t.Context(), info(door.host)))
	}
	require.Eventually(t, func() bool {
		return door.dht.RoutingTable().Size() == 2 && from.dht.RoutingTable().Find(door.host.ID()) != ""
	}, patience, time.Millisecond)
	require.Equal(t, Outcome{Unknown: true, Dialed: true}, from.dial(t.Context(), stranger, false, false))

	// A lookup finds a peer that only other peers have addresses of.
	id := to.host.ID()
	_ = from.host.Network().ClosePeer(id)
	from.host.Peerstore().ClearAddrs(id)
	require.Equal(t, records.Reachable, from.dial(t.Context(), id, false, false).State)
}
