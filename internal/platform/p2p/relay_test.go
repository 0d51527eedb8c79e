package p2p

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
)

// startPublic starts a node of the profile public on loopback.
func startPublic(t *testing.T, reach ReachConfig) *Node {
	t.Helper()
	c := testConfig(t)
	c.Profile, c.Reach = Public, reach
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
	relay := startPublic(t, ReachConfig{Mode: ReachablePublic})
	home := startPublic(t, ReachConfig{Mode: ReachablePrivate})
	caller := startPublic(t, ReachConfig{Mode: ReachablePrivate})
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
	relay := startPublic(t, ReachConfig{
		Mode: ReachablePublic, Relay: RelayConfig{Reservations: 2, ReservationsPerAddress: 1, CircuitsPerPeer: 1},
	})
	private := ReachConfig{Mode: ReachablePrivate}
	home, late := startPublic(t, private), startPublic(t, private)
	via, err := reserve(t, relay, home)
	require.NoError(t, err)
	_, err = reserve(t, relay, late)
	require.ErrorContains(t, err, "RESERVATION_REFUSED", "the address has its reservation")

	limited := network.WithAllowLimitedConn(t.Context(), "test")
	require.NoError(t, startPublic(t, private).host.Connect(limited, via))
	require.Error(t, startPublic(t, private).host.Connect(limited, via), "the circuit of the peer is in use")

	off := startPublic(t, ReachConfig{Mode: ReachablePublic, Relay: RelayConfig{Off: true}})
	_, err = reserve(t, off, startPublic(t, private))
	require.Error(t, err)
}

// TestRelayGate refuses the addresses that open too many circuits, and no others.
func TestRelayGate(t *testing.T) {
	g := newRelayGate()
	for range circuitStarts().Burst {
		require.True(t, g.AllowConnect("", addr(t, "/ip4/62.10.1.1/udp/4801/quic-v1"), ""))
	}
	require.False(t, g.AllowConnect("", addr(t, "/ip4/62.10.1.1/tcp/9"), ""))
	require.True(t, g.AllowConnect("", addr(t, "/ip4/62.10.1.2/tcp/9"), ""))
	require.False(t, g.AllowConnect("", addr(t, "/dns/example.com/tcp/9"), ""), "no address to count for")
}

func TestRelayConfigErrorsNameTheField(t *testing.T) {
	for field, c := range map[string]RelayConfig{
		"relay.reservations":             {Reservations: -1},
		"relay.reservations_per_address": {ReservationsPerAddress: -1},
		"relay.circuits":                 {Circuits: -1},
		"relay.circuits_per_peer":        {CircuitsPerPeer: -1},
		"relay.circuit_bytes":            {CircuitBytes: 1000},
		"relay.circuit_time":             {CircuitTime: time.Second},
	} {
		_, err := ReachConfig{Relay: c}.complete(true)
		require.Equal(t, fault.Invalid, fault.KindOf(err), field)
		require.Equal(t, field, fault.FieldOf(err))
	}
}

// TestRelayCandidates waits for a server of the DHT, and selects those that may relay.
func TestRelayCandidates(t *testing.T) {
	s := newRelaySource()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, ok := <-s.candidates(ended, 3)
	require.False(t, ok, "no DHT yet")

	nodes := meet(t, 4)
	store := nodes[0].host.Peerstore()
	others := []peer.ID{nodes[1].host.ID(), nodes[2].host.ID(), nodes[3].host.ID()}
	require.Empty(t, relaysAmong(store, others), "peers of the profile dev relay for nobody")
	require.NoError(t, store.AddProtocols(others[1], circuitHop))
	s.set(nodes[0].routing)
	var got []peer.ID
	for p := range s.candidates(t.Context(), 2) {
		got = append(got, p.ID)
		require.NotEmpty(t, p.Addrs)
	}
	require.Equal(t, []peer.ID{others[1]}, got)
}
