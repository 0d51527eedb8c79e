package transport

import (
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	libp2pquic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/libp2p/go-libp2p/p2p/transport/tcpreuse"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/internal/platform/p2p/dial"
)

// patience bounds each wait for the network. No assertion depends on time.
const patience = time.Minute

const byQUIC, byTCP = "/ip4/127.0.0.1/udp/0/quic-v1", "/ip4/127.0.0.1/tcp/0"

// realHost listens on loopback.
func realHost(t *testing.T, listen ...string) host.Host {
	h, err := libp2p.New(
		libp2p.ListenAddrStrings(listen...), libp2p.Transport(libp2pquic.NewTransport),
		libp2p.Transport(func(up transport.Upgrader, limits network.ResourceManager, shared *tcpreuse.ConnMgr) (*dial.TCP, error) {
			below, err := tcp.NewTCPTransport(up, limits, shared)
			return dial.NewTCP(below), err
		}),
		libp2p.DisableRelay(), libp2p.DisableMetrics())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return h
}

// overQUIC starts two members whose peers have one connection, over QUIC, and sends messages both ways.
func overQUIC(t *testing.T, listen ...string) (a, b *member) {
	w := &cluster{group: &group{peers: make(map[uint64]peer.ID)}}
	one, two := realHost(t, byQUIC, byTCP), realHost(t, listen...)
	quic := multiaddr.FilterAddrs(two.Addrs(), func(m multiaddr.Multiaddr) bool {
		_, err := m.ValueForProtocol(multiaddr.P_QUIC_V1)
		return err == nil
	})
	require.NoError(t, one.Connect(t.Context(), peer.AddrInfo{ID: two.ID(), Addrs: quic}))
	require.Nil(t, dial.OverTCP(one, two.ID()))
	w.group.set(1, one.ID())
	w.group.set(2, two.ID())
	a, b = w.start(t, one, 1, func(*member, *Config) {}), w.start(t, two, 2, func(*member, *Config) {})
	for _, kind := range []raftpb.MessageType{raftpb.MsgHeartbeat, raftpb.MsgApp} {
		a.Send([]*raftpb.Message{message(kind, 1, 2)})
		require.Eventually(t, func() bool { return len(b.take()) == 1 }, patience, time.Millisecond)
	}
	b.Send([]*raftpb.Message{message(raftpb.MsgHeartbeatResp, 2, 1)})
	require.Eventually(t, func() bool { return len(a.take()) == 1 }, patience, time.Millisecond)
	return a, b
}

// Members with a connection over QUIC speak over TCP beside it, so a killed process is noticed by its closed connection, while
// the other one still looks alive.
func TestMembersSpeakOverTCP(t *testing.T) {
	a, b := overQUIC(t, byQUIC, byTCP)
	require.Eventually(t, func() bool { return dial.OverTCP(b.host, a.host.ID()) != nil }, patience, time.Millisecond)
	streams := func(m *member, with peer.ID) (tcp, other int) {
		for _, c := range m.host.Network().ConnsToPeer(with) {
			n := len(slices.DeleteFunc(c.GetStreams(), func(s network.Stream) bool {
				return s.Protocol() != RaftProtocol("test", groupID())
			}))
			if dial.IsTCP(c) {
				tcp += n
			} else {
				other += n
			}
		}
		return tcp, other
	}
	tcp, other := streams(a, b.host.ID())
	require.Positive(t, tcp)
	require.Zero(t, other)

	require.Empty(t, b.gone)
	for _, c := range a.host.Network().ConnsToPeer(b.host.ID()) {
		if dial.IsTCP(c) {
			require.NoError(t, c.Close())
		}
	}
	require.Eventually(t, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return slices.Contains(b.gone, 1)
	}, patience, time.Millisecond)
	require.Equal(t, network.Connected, b.host.Network().Connectedness(a.host.ID()), "over QUIC")

	a.Send([]*raftpb.Message{message(raftpb.MsgHeartbeat, 1, 2)})
	require.Eventually(t, func() bool {
		a.Send([]*raftpb.Message{message(raftpb.MsgHeartbeat, 1, 2)}) // the connection that closed has lost earlier ones
		return len(b.take()) > 0
	}, patience, 10*time.Millisecond)
	require.NotNil(t, dial.OverTCP(a.host, b.host.ID()), "again over TCP")
}

// A member that TCP does not reach is a member over what does.
func TestMemberWithoutTCP(t *testing.T) {
	a, b := overQUIC(t, byQUIC)
	require.Nil(t, dial.OverTCP(a.host, b.host.ID()))
	require.Empty(t, b.gone)
}
