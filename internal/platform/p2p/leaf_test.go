package p2p

import (
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	names "github.com/blackhole/blackhole/pkg/network"
)

// TestLeaf joins a network by one address. The leaf uses the network, and nobody can use the leaf.
func TestLeaf(t *testing.T) {
	for _, profile := range []Profile{Dev, Public} {
		t.Run(string(profile), func(t *testing.T) {
			servers := meet(t, 3)
			c := testConfig(t)
			c.Profile, c.Leaf, c.Listen = profile, true, nil
			c.Network = names.Default(string(Dev)) // that of the servers
			c.Bootstrap = []peer.AddrInfo{info(servers[0])}
			leaf := start(t, c)
			require.Empty(t, leaf.host.Addrs())
			require.Empty(t, leaf.Addrs())
			require.Equal(t, ModeLeaf, leaf.Mode())
			require.False(t, leaf.Routing().Serving())
			if profile == Public { // its table takes no peers on loopback
				require.Eventually(t, func() bool { return len(leaf.Peers()) > 0 }, patience, time.Millisecond)
				return
			}
			waitIntroduced(t, leaf)
			waitTable(t, leaf, func(size int) bool { return size == 3 })
			require.True(t, leaf.Ready())
			for _, s := range servers {
				require.Equal(t, ModeServer, s.Mode())
				require.NotContains(t, s.dht.RoutingTable().ListPeers(), leaf.host.ID())
			}
			require.NoError(t, leaf.Routing().PutValue(t.Context(), "/test/x", []byte("3")))
			v, err := servers[2].Routing().GetValue(t.Context(), "/test/x")
			require.NoError(t, err)
			require.Equal(t, "3", string(v))
		})
	}
}

// TestLeafRefuses names the setting that contradicts a leaf.
func TestLeafRefuses(t *testing.T) {
	for field, change := range map[string]func(*Config){
		"bootstrap":        func(c *Config) { c.Bootstrap = nil },
		"listen":           func(c *Config) { c.Listen = addrs(t, "/ip4/127.0.0.1/tcp/0") },
		"announce":         func(c *Config) { c.Reach.Announce = addrs(t, "/ip4/127.0.0.1/tcp/1") },
		"connections.most": func(c *Config) { c.Limits.Connections = 100 },
	} {
		c := testConfig(t)
		c.Leaf, c.Listen, c.Bootstrap = true, nil, somePeers(t, 1, 1)
		change(&c)
		_, err := New(t.Context(), c)
		require.Equal(t, field, fault.FieldOf(err), "%v", err)
	}
}

// TestLeafConnections opens as many connections as a leaf may have.
func TestLeafConnections(t *testing.T) {
	c := testConfig(t)
	c.Leaf, c.Listen, c.Bootstrap = true, nil, somePeers(t, 1, 1)
	c, settings, err := c.complete()
	require.NoError(t, err)
	manager, err := newResources(&c, settings)
	require.NoError(t, err)
	defer func() { require.NoError(t, manager.Close()) }()
	for i := range leafConnections + 1 {
		scope, err := manager.OpenConnection(network.DirOutbound, false, addr(t, "/ip4/80.20.1.1/tcp/9"))
		if i == leafConnections {
			require.ErrorIs(t, err, network.ErrResourceLimitExceeded)
			break
		}
		require.NoError(t, err)
		defer scope.Done()
		id := somePeers(t, 1, 1)[0].ID
		require.NoError(t, scope.SetPeer(id)) // no longer transient
	}
}
