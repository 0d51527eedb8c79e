package p2p

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/control"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	quic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/p2p/probe"
	"github.com/blackhole/blackhole/pkg/records"
)

// bothTransports makes a node speak TCP and QUIC on loopback, without multicast DNS.
func bothTransports(c *Config) {
	c.Transport = []libp2p.Option{libp2p.Transport(tcp.NewTCPTransport), libp2p.Transport(quic.NewTransport)}
}

// stranger is a libp2p host without our limits.
func stranger(t testing.TB, opts ...libp2p.Option) host.Host {
	t.Helper()
	h, err := libp2p.New(append(opts, libp2p.DisableMetrics(), libp2p.DisableRelay(), libp2p.Identity(testKey(t)))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = h.Close() })
	return h
}

// full is a resource manager without room for inbound connections.
func full(t testing.TB) libp2p.Option {
	limits := rcmgr.PartialLimitConfig{System: rcmgr.ResourceLimits{ConnsInbound: rcmgr.BlockAllLimit}}
	m, err := rcmgr.NewResourceManager(rcmgr.NewFixedLimiter(limits.Build(rcmgr.DefaultLimits.AutoScale())), rcmgr.WithMetricsDisabled())
	require.NoError(t, err)
	return libp2p.ResourceManager(m)
}

// deaf refuses all inbound connections, before or after the handshake.
type deaf struct{ after bool }

func (deaf) InterceptPeerDial(peer.ID) bool                      { return true }
func (deaf) InterceptAddrDial(peer.ID, multiaddr.Multiaddr) bool { return true }
func (d deaf) InterceptAccept(network.ConnMultiaddrs) bool       { return d.after }
func (deaf) InterceptSecured(dir network.Direction, _ peer.ID, _ network.ConnMultiaddrs) bool {
	return dir == network.DirOutbound
}
func (deaf) InterceptUpgraded(network.Conn) (bool, control.DisconnectReason) { return true, 0 }

// TestRefusalIsBusy: whatever way a living peer refuses, it is not gone.
func TestRefusalIsBusy(t *testing.T) {
	nodes := make([]*Node, 2)
	for i := range nodes {
		c := testConfig(t)
		bothTransports(&c)
		nodes[i] = start(t, c)
	}
	n := nodes[0]
	require.NoError(t, n.host.Connect(t.Context(), info(nodes[1])))
	for _, listen := range []string{"/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"} {
		for name, opts := range map[string][]libp2p.Option{
			"no room":        {full(t)},
			"gated":          {libp2p.ConnectionGater(deaf{})},
			"gated at once":  {libp2p.ConnectionGater(deaf{after: true})},
			"no ping stream": nil,
		} {
			t.Run(listen+" "+name, func(t *testing.T) {
				h := stranger(t, append(opts, libp2p.ListenAddrStrings(listen))...)
				h.SetStreamHandler(ping.ID, func(s network.Stream) { _ = s.ResetWithError(network.StreamResourceLimitExceeded) })
				n.host.Peerstore().AddAddrs(h.ID(), h.Addrs(), time.Hour)
				require.Equal(t, records.Busy, n.Prober().Check(t.Context(), h.ID()).State)
			})
		}
	}
}

// TestCrowdedProviderIsNeverGone: more idle peers than a provider has room for hold their connections and come back
// when they are closed. New consumers find it reachable, or at worst busy.
func TestCrowdedProviderIsNeverGone(t *testing.T) {
	t.Parallel() // waits for its own peers
	c := testConfig(t)
	c.Limits.Connections = fewest
	provider := start(t, c)
	const crowd = 5 * fewest // the hard limit is four times the mark
	ctx, cancel := context.WithCancel(t.Context())
	var idle sync.WaitGroup
	defer idle.Wait()
	defer cancel()
	var refused atomic.Int64
	for range crowd {
		h := stranger(t, libp2p.NoListenAddrs)
		idle.Go(func() {
			for tick := time.NewTicker(time.Second); ; {
				if h.Network().Connectedness(provider.host.ID()) != network.Connected && h.Connect(ctx, info(provider)) != nil {
					refused.Add(1)
				}
				select {
				case <-ctx.Done():
					tick.Stop()
					return
				case <-tick.C:
				}
			}
		})
	}
	require.Eventually(t, func() bool { return refused.Load() > 0 }, patience, 10*time.Millisecond, "the provider has no room left")
	for range 10 {
		n := start(t, testConfig(t))
		n.host.Peerstore().AddAddrs(provider.host.ID(), provider.host.Addrs(), time.Hour)
		require.Contains(t, []records.Reachability{records.Reachable, records.Busy}, n.Prober().Check(t.Context(), provider.host.ID()).State)
	}
}

// TestClosedPeerIsFound by the loss of its connection: it leaves the routing tables, and its machine refuses.
func TestClosedPeerIsFound(t *testing.T) {
	nodes := meetWith(t, 4, probe.Config{Timeout: patience})
	victim, witness := nodes[3], nodes[1]
	id := victim.host.ID()
	require.Equal(t, records.Reachable, witness.Prober().Check(t.Context(), id).State)
	require.NoError(t, victim.Close())
	for _, n := range nodes[:3] {
		waitTable(t, n, func(size int) bool { return size == 2 })
	}
	o := witness.Prober().Check(t.Context(), id)
	require.Equal(t, records.Unreachable, o.State)
	require.True(t, o.Refused)
}

// TestSilentPeerIsFound: a peer that keeps its connections and ignores pings leaves the table.
func TestSilentPeerIsFound(t *testing.T) {
	t.Parallel() // waits for its own peers
	nodes := meetWith(t, 3, probe.Config{Timeout: 3 * time.Second})
	victim, witness := nodes[2], nodes[1]
	victim.host.SetStreamHandler(ping.ID, func(network.Stream) {})
	require.Equal(t, records.Unreachable, witness.Prober().Check(t.Context(), victim.host.ID()).State)
	waitTable(t, witness, func(size int) bool { return size == 1 })
}
