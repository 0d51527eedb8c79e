package p2p

import (
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/multiformats/go-multiaddr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/p2p/address"
)

// TestProfilesAreComplete checks the table of profiles.
func TestProfilesAreComplete(t *testing.T) {
	for _, p := range []Profile{Dev, LAN, Public} {
		row, ok := p.settings()
		require.True(t, ok)
		addrs, err := address.Parse("listen", row.listen)
		require.NoError(t, err)
		require.NotEmpty(t, addrs)
		require.Less(t, row.low, row.high)
		require.Positive(t, row.refresh)
		require.Positive(t, row.query)
		require.Positive(t, row.grace)
		require.Equal(t, p == Public, row.open)
		require.Equal(t, p != Dev, row.mdns)
		require.Equal(t, p != Dev, row.quic)
	}
}

// TestProfilesMeet connects two peers of each profile, over QUIC if the profile has it. Public peers on
// loopback connect, but must not enter each other's routing table.
func TestProfilesMeet(t *testing.T) {
	for _, p := range []Profile{Dev, Public} {
		t.Run(string(p), func(t *testing.T) {
			row, _ := p.settings()
			c := testConfig(t)
			c.Profile = p
			c.Protocols = []protocol.ID{"/blackhole/test/1.0.0"}
			if row.quic {
				c.Listen = []multiaddr.Multiaddr{addr(t, "/ip4/127.0.0.1/udp/0/quic-v1")}
			}
			a := start(t, c)
			where := peer.AddrInfo{ID: a.host.ID(), Addrs: a.host.Network().ListenAddresses()}
			c.Identity, c.Datastore = testKey(t), memory()
			b := start(t, c)
			require.NoError(t, b.Host().Connect(t.Context(), where))
			require.Len(t, b.Peers(), 1)
			if p == Dev {
				waitTable(t, b, func(size int) bool { return size == 1 })
				return
			}
			require.Empty(t, address.Public(where.Addrs), "not announced")
		})
	}
}

func TestMetricsAreRegistered(t *testing.T) {
	reg := prometheus.NewRegistry()
	c := testConfig(t)
	c.Registerer = reg
	start(t, c)
	families, err := reg.Gather()
	require.NoError(t, err)
	require.NotEmpty(t, families)
}

// TestRefusedResourcesAreCounted: a stream beyond the bound is counted, those within are not.
func TestRefusedResourcesAreCounted(t *testing.T) {
	c := testConfig(t)
	reg := prometheus.NewRegistry()
	c.Registerer = reg
	c, settings, err := c.complete()
	require.NoError(t, err)
	manager, err := newResources(&c, settings)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, manager.Close()) })
	refused := func() (n float64) {
		families, err := reg.Gather()
		require.NoError(t, err)
		for _, f := range families {
			for _, m := range f.GetMetric() {
				require.Equal(t, "blackhole_resources_refused_total", f.GetName())
				require.Equal(t, "stream", m.GetLabel()[0].GetValue())
				n += m.GetCounter().GetValue()
			}
		}
		return n
	}
	for range 4 * protocolPeerStreams {
		var stream network.StreamManagementScope
		if stream, err = manager.OpenStream("other", network.DirInbound); err != nil {
			break
		}
		t.Cleanup(stream.Done)
		require.Zero(t, refused())
	}
	require.ErrorIs(t, err, network.ErrResourceLimitExceeded)
	require.Equal(t, 1.0, refused())
}
