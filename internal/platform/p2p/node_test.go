package p2p

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"net"
	"slices"
	"testing"
	"time"

	ds "github.com/ipfs/go-datastore"
	dssync "github.com/ipfs/go-datastore/sync"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/p2p/probe"
	"github.com/blackhole/blackhole/pkg/fault"
)

// patience bounds each wait for the network. No assertion depends on time.
const patience = 60 * time.Second

func somePeers(t testing.TB, n, addrs int) []peer.AddrInfo {
	t.Helper()
	var out []peer.AddrInfo
	for range n {
		id, err := peer.IDFromPrivateKey(testKey(t))
		require.NoError(t, err)
		p := peer.AddrInfo{ID: id}
		for i := range addrs {
			p.Addrs = append(p.Addrs, addr(t, fmt.Sprintf("/ip4/10.0.%d.1/tcp/4801", i)))
		}
		out = append(out, p)
	}
	return out
}

func addrs(t *testing.T, list ...string) []multiaddr.Multiaddr {
	t.Helper()
	out := make([]multiaddr.Multiaddr, len(list))
	for i, s := range list {
		out[i] = addr(t, s)
	}
	return out
}

// bigger is a validator: the lexically greatest value wins, "bad" is invalid.
type bigger struct{}

func (bigger) Validate(_ string, value []byte) error {
	if bytes.Equal(value, []byte("bad")) {
		return fault.Invalidf("value", nil, "is bad")
	}
	return nil
}

func (bigger) Select(_ string, values [][]byte) (int, error) {
	best := 0
	for i, v := range values {
		if bytes.Compare(v, values[best]) > 0 {
			best = i
		}
	}
	return best, nil
}

func testKey(t testing.TB) crypto.PrivKey {
	t.Helper()
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	require.NoError(t, err)
	return key
}

func memory() ds.Batching { return dssync.MutexWrap(ds.NewMapDatastore()) }

func addr(t testing.TB, s string) multiaddr.Multiaddr {
	t.Helper()
	a, err := multiaddr.NewMultiaddr(s)
	require.NoError(t, err)
	return a
}

func testConfig(t testing.TB) Config {
	return Config{
		Identity:  testKey(t),
		Listen:    []multiaddr.Multiaddr{addr(t, "/ip4/127.0.0.1/tcp/0")},
		Datastore: memory(), Namespaces: Namespaces{"test": bigger{}},
		Probe: probe.Config{Timeout: patience},
	}
}

func start(t testing.TB, c Config) *Node {
	t.Helper()
	n, err := New(context.Background(), c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return n
}

func info(n *Node) peer.AddrInfo {
	return peer.AddrInfo{ID: n.host.ID(), Addrs: n.host.Addrs()}
}

// absent reserves the address of a node that starts later. Its port is outside the ephemeral range, so no other
// process takes it.
func absent(t testing.TB, c *Config) peer.AddrInfo {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 16_000+mrand.IntN(16_000)))
		if err != nil {
			continue
		}
		at, err := manet.FromNetAddr(l.Addr())
		require.NoError(t, err)
		require.NoError(t, l.Close())
		c.Listen = []multiaddr.Multiaddr{at}
		id, err := peer.IDFromPrivateKey(c.Identity)
		require.NoError(t, err)
		return peer.AddrInfo{ID: id, Addrs: c.Listen}
	}
	require.FailNow(t, "no port is free")
	return peer.AddrInfo{}
}

// meet starts n nodes at once. The first is the others' bootstrap peer.
func meet(t testing.TB, n int) []*Node {
	t.Helper()
	return meetWith(t, n, testConfig(t).Probe)
}

func meetWith(t testing.TB, n int, p probe.Config) (nodes []*Node) {
	t.Helper()
	for range n {
		c := testConfig(t)
		c.Probe = p
		if len(nodes) > 0 {
			c.Bootstrap = []peer.AddrInfo{info(nodes[0])}
		}
		nodes = append(nodes, start(t, c))
	}
	for _, node := range nodes {
		waitTable(t, node, func(size int) bool { return size == n-1 })
		waitIntroduced(t, node)
	}
	return nodes
}

// waitIntroduced waits until a node has recorded its contact with a bootstrap peer. The dialing side records it
// independently of the routing table.
func waitIntroduced(t testing.TB, n *Node) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := n.Routing().Closest(context.Background(), "k")
		return err == nil
	}, patience, time.Millisecond)
}

// waitTable waits until the size of the routing table satisfies ok.
func waitTable(t testing.TB, n *Node, ok func(size int) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		changed := n.routing.Changed()
		if ok(n.routing.Size()) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("%s: the table has %d peers", n.host.ID(), n.routing.Size())
		}
	}
}

func TestPeersFindEachOther(t *testing.T) {
	t.Parallel() // waits for its own peers
	nodes := meet(t, 8)
	var first []peer.ID
	for i, n := range nodes {
		require.True(t, n.Ready())
		closest, err := lookUp(t, n, "/blackhole/services/storage/_/u33", len(nodes)-1)
		require.NoError(t, err)
		require.Len(t, closest, len(nodes)-1)
		require.NotContains(t, closest, n.host.ID())
		require.Equal(t, closest[:3], n.Routing().Nearby("/blackhole/services/storage/_/u33", 3))
		if i == 0 {
			first = closest
			continue
		}
		// All peers see the same order, apart from themselves.
		mine := slices.DeleteFunc(slices.Clone(closest), func(p peer.ID) bool { return p == nodes[0].host.ID() })
		theirs := slices.DeleteFunc(slices.Clone(first), func(p peer.ID) bool { return p == n.host.ID() })
		require.Equal(t, theirs, mine)
	}
}

func TestValues(t *testing.T) {
	nodes := meet(t, 4)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	const key = "/test/x"
	_, err := nodes[1].Routing().GetValue(ctx, key)
	require.ErrorIs(t, err, fault.NotFound)
	require.NoError(t, nodes[0].Routing().PutValue(ctx, key, []byte("2")))
	for _, n := range nodes {
		v, err := n.Routing().GetValue(ctx, key)
		require.NoError(t, err)
		require.Equal(t, "2", string(v))
	}
	require.ErrorIs(t, nodes[0].Routing().PutValue(ctx, key, []byte("1")), fault.Exists)
	require.ErrorIs(t, nodes[0].Routing().PutValue(ctx, key, []byte("bad")), fault.Invalid)
	require.Error(t, nodes[0].Routing().PutValue(ctx, "/pk/x", []byte("1")), "an unknown namespace")
}

func TestIsolated(t *testing.T) {
	n := start(t, testConfig(t))
	require.True(t, n.Ready())
	require.Empty(t, n.Peers())
	require.Len(t, n.Addrs(), 1)
	require.Contains(t, n.Addrs()[0], "/p2p/"+n.host.ID().String())
	closest, err := n.Routing().Closest(t.Context(), "k")
	require.NoError(t, err)
	require.Nil(t, closest)
	require.NoError(t, n.Routing().PutValue(t.Context(), "/test/x", []byte("1")))
	v, err := n.Routing().GetValue(t.Context(), "/test/x")
	require.NoError(t, err)
	require.Equal(t, "1", string(v))
	require.Empty(t, n.Routing().Nearby("k", 3))
	_, err = n.Routing().Closest(t.Context(), "")
	require.Equal(t, "key", fault.FieldOf(err))
}

// TestBootstrapLater starts a node before its bootstrap peer.
func TestBootstrapLater(t *testing.T) {
	early, later := testConfig(t), testConfig(t)
	early.Bootstrap = []peer.AddrInfo{absent(t, &later)}
	n := start(t, early)
	require.False(t, n.Ready())
	start(t, later)
	waitTable(t, n, func(size int) bool { return size == 1 })
	require.True(t, n.Ready())
}

// TestKnownPeersReplaceBootstrap restarts a node without a bootstrap peer.
func TestKnownPeersReplaceBootstrap(t *testing.T) {
	nodes := meet(t, 3)
	c := testConfig(t)
	c.Bootstrap = []peer.AddrInfo{info(nodes[0])}
	n := start(t, c)
	waitTable(t, n, func(size int) bool { return size == 3 })
	require.NoError(t, n.Close())
	require.NoError(t, n.Close(), "twice")

	c.Bootstrap = nil
	n = start(t, c)
	waitTable(t, n, func(size int) bool { return size == 3 })
	require.Len(t, n.Peers(), 3)
	require.Equal(t, "blackholed", n.Peers()[0].Agent)
}

func TestPortInUse(t *testing.T) {
	n := start(t, testConfig(t))
	c := testConfig(t)
	c.Listen = n.host.Network().ListenAddresses()
	_, err := New(t.Context(), c)
	require.ErrorIs(t, err, fault.Unavailable)
	require.Equal(t, "listen", fault.FieldOf(err))
}

func TestConfigErrorsNameTheField(t *testing.T) {
	for field, spoil := range map[string]func(*Config){
		"profile":            func(c *Config) { c.Profile = "moon" },
		"identity":           func(c *Config) { c.Identity = nil },
		"datastore":          func(c *Config) { c.Datastore = nil },
		"bootstrap[0].addrs": func(c *Config) { c.Bootstrap = []peer.AddrInfo{{ID: "12D3Koo"}} },
		"bootstrap[0].id":    func(c *Config) { c.Bootstrap = []peer.AddrInfo{{}} },
		"bootstrap":          func(c *Config) { c.Bootstrap = make([]peer.AddrInfo, maxBootstrap+1) },
	} {
		t.Run(field, func(t *testing.T) {
			c := testConfig(t)
			spoil(&c)
			_, err := New(t.Context(), c)
			require.ErrorIs(t, err, fault.Invalid)
			require.Equal(t, field, fault.FieldOf(err))
		})
	}
	_, err := ParseProfile("moon")
	require.Equal(t, "profile", fault.FieldOf(err))
	for _, p := range []Profile{Dev, LAN, Public} {
		got, err := ParseProfile(string(p))
		require.NoError(t, err)
		require.Equal(t, p, got)
	}
}

func TestClosestAtDeadline(t *testing.T) {
	nodes := meet(t, 3)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := nodes[1].Routing().Closest(ctx, "k")
	require.True(t, errors.Is(err, fault.Canceled), "%v", err)
}
