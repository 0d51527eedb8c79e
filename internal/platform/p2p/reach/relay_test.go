package reach

import (
	"context"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	circuit "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"
)

// TestRelayGate refuses the addresses that open too many circuits, and no others.
func TestRelayGate(t *testing.T) {
	g := newRelayGate()
	for range circuitStarts {
		require.True(t, g.AllowConnect("", multiaddr.StringCast("/ip4/62.10.1.1/udp/4801/quic-v1"), ""))
	}
	require.False(t, g.AllowConnect("", multiaddr.StringCast("/ip4/62.10.1.1/tcp/9"), ""))
	require.True(t, g.AllowConnect("", multiaddr.StringCast("/ip4/62.10.1.2/tcp/9"), ""))
	require.False(t, g.AllowConnect("", multiaddr.StringCast("/dns/example.com/tcp/9"), ""), "no address to count for")
}

// peers is a routing table: the protocols of each peer with an address.
type peers struct {
	spoken  map[peer.ID][]protocol.ID
	changed chan struct{}
}

func (p *peers) Changed() <-chan struct{} { return p.changed }

func (p *peers) Peers() (out []peer.AddrInfo) {
	out = append(out, peer.AddrInfo{ID: "nowhere"})
	for id := range p.spoken {
		out = append(out, peer.AddrInfo{ID: id, Addrs: []multiaddr.Multiaddr{multiaddr.StringCast("/ip4/62.10.1.1/tcp/9")}})
	}
	return out
}

func (p *peers) Speaks(id peer.ID) ([]protocol.ID, error) { return p.spoken[id], nil }

// TestRelayCandidates waits for a server of the DHT, and selects those that may relay.
func TestRelayCandidates(t *testing.T) {
	s := newRelaySource()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, ok := <-s.candidates(ended, 3)
	require.False(t, ok, "no DHT yet")

	table := &peers{spoken: map[peer.ID][]protocol.ID{"none": {ping.ID}}, changed: make(chan struct{})}
	require.Empty(t, relaysAmong(table), "peers of the profile dev relay for nobody")
	table.spoken["unknown"], table.spoken["relay"] = nil, []protocol.ID{ping.ID, circuit.ProtoIDv2Hop}
	s.set(table)
	var got []peer.ID
	for p := range s.candidates(t.Context(), 2) {
		got = append(got, p.ID)
		require.NotEmpty(t, p.Addrs)
	}
	require.ElementsMatch(t, []peer.ID{"relay", "unknown"}, got)
}
