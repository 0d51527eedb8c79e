package p2p

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/blackhole/blackhole/internal/platform/p2p/reach"
	"github.com/blackhole/blackhole/internal/platform/rpc"
)

// TestServingFollowsReachability takes a public peer from unknown to public and to private reachability.
func TestServingFollowsReachability(t *testing.T) {
	c, other := testConfig(t), testConfig(t)
	c.Profile, c.Bootstrap = Public, []peer.AddrInfo{absent(t, &other)}
	n := start(t, c)
	require.False(t, n.Routing().Serving())
	found, err := n.host.EventBus().Emitter(new(event.EvtLocalReachabilityChanged), eventbus.Stateful)
	require.NoError(t, err)
	defer found.Close()
	for _, r := range []network.Reachability{network.ReachabilityPublic, network.ReachabilityPrivate} {
		changed := n.Routing().Changed()
		require.NoError(t, found.Emit(event.EvtLocalReachabilityChanged{Reachability: r}))
		<-changed
		require.Equal(t, r == network.ReachabilityPublic, n.Routing().Serving())
	}
}

// TestAnnouncedPeerServes: an announced address decides at once, before any other peer has tested it.
func TestAnnouncedPeerServes(t *testing.T) {
	c, other := testConfig(t), testConfig(t)
	c.Profile, c.Bootstrap = Public, []peer.AddrInfo{absent(t, &other)}
	c.Reach.Announce = addrs(t, "/ip4/62.10.1.1/udp/4801/quic-v1")
	n := start(t, c)
	for changed := n.Routing().Changed(); !n.Routing().Serving(); changed = n.Routing().Changed() {
		<-changed
	}
	require.Contains(t, n.host.Addrs(), c.Reach.Announce[0])
	require.Eventually(t, func() bool { return n.Reach().State == reach.StatePublic }, patience, time.Millisecond) // after the routing
}

// startPublic starts a node of the profile public on loopback.
func startPublic(t *testing.T, way reach.Config) *Node {
	t.Helper()
	c := testConfig(t)
	c.Profile, c.Reach = Public, way
	return start(t, c)
}

// reserve gives a node behind NAT an address at a relay, and tells another node.
func reserve(t *testing.T, relay, home *Node) (via peer.AddrInfo, err error) {
	t.Helper()
	require.NoError(t, home.host.Connect(t.Context(), info(relay)))
	_, err = client.Reserve(t.Context(), home.host, info(relay))
	circuit := addr(t, fmt.Sprintf("%s/p2p/%s/p2p-circuit", relay.host.Addrs()[0], relay.host.ID()))
	return peer.AddrInfo{ID: home.host.ID(), Addrs: []multiaddr.Multiaddr{circuit}}, err
}

// TestRequestsPassARelay sends more to a peer behind NAT than libp2p's default limit of 128 KiB allows.
func TestRequestsPassARelay(t *testing.T) {
	const echo protocol.ID = "/blackhole/test/echo/1"
	relay := startPublic(t, reach.Config{Mode: reach.Public})
	home := startPublic(t, reach.Config{Mode: reach.Private})
	caller := startPublic(t, reach.Config{Mode: reach.Private})
	via, err := reserve(t, relay, home)
	require.NoError(t, err)

	format := rpc.Format{MaxSize: 1 << 20}
	server := rpc.NewServer(rpc.ServerConfig{
		Host: home.Host(), Protocol: echo, Service: "test", Request: new(wrapperspb.BytesValue), Format: format,
		Handler: func(_ *rpc.Stream, req proto.Message, malformed error) (proto.Message, error) { return req, malformed },
		Streams: 4, StreamsPerPeer: 4, IdleTimeout: time.Minute, FrameTimeout: patience,
	})
	defer server.Close()
	pool := rpc.NewPool(rpc.PoolConfig{
		Host: caller.Host(), Protocol: echo, Service: "test", Format: format,
		CallsPerPeer: 4, IdlePerPeer: 1, Idle: 1, IdleFor: time.Minute,
	})
	defer pool.Close()
	caller.host.Peerstore().AddAddrs(via.ID, via.Addrs, peerstore.PermanentAddrTTL)

	content := bytes.Repeat([]byte("service"), 64<<10/7)
	for range 32 { // 2 MiB
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		answer := new(wrapperspb.BytesValue)
		require.NoError(t, pool.Call(ctx, via.ID, wrapperspb.Bytes(content), answer))
		require.Equal(t, content, answer.GetValue())
		cancel()
	}
	require.Equal(t, network.Limited, caller.host.Network().Connectedness(via.ID))
	_, relayed := caller.Connections()
	require.Equal(t, 1, relayed)
}

// TestRelayLimits takes the last reservation, the last circuit, and a relay that serves nobody.
func TestRelayLimits(t *testing.T) {
	t.Parallel() // waits for its own peers
	relay := startPublic(t, reach.Config{
		Mode: reach.Public, Relay: reach.RelayConfig{Reservations: 2, ReservationsPerAddress: 1, CircuitsPerPeer: 1},
	})
	private := reach.Config{Mode: reach.Private}
	home, late := startPublic(t, private), startPublic(t, private)
	via, err := reserve(t, relay, home)
	require.NoError(t, err)
	_, err = reserve(t, relay, late)
	require.ErrorContains(t, err, "RESERVATION_REFUSED", "the address has its reservation")

	limited := network.WithAllowLimitedConn(t.Context(), "test")
	require.NoError(t, startPublic(t, private).host.Connect(limited, via))
	require.Error(t, startPublic(t, private).host.Connect(limited, via), "the circuit of the peer is in use")

	off := startPublic(t, reach.Config{Mode: reach.Public, Relay: reach.RelayConfig{Off: true}})
	_, err = reserve(t, off, startPublic(t, private))
	require.Error(t, err)
}
