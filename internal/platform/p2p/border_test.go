package p2p

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/identity"
	"github.com/blackhole/blackhole/pkg/fault"
	names "github.com/blackhole/blackhole/pkg/network"
)

// citizen is a node of a named network.
type citizen struct {
	*Node
	refused    atomic.Int64
	conditions *condition.Set

	mu  sync.Mutex
	log strings.Builder // guarded by mu
}

func (c *citizen) Write(line []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.log.Write(line)
}

func (c *citizen) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.log.String()
}

func newCitizen(t *testing.T, name names.Name, bootstrap ...*citizen) *citizen {
	t.Helper()
	made := &citizen{conditions: condition.NewSet(slog.New(slog.DiscardHandler), time.Now)}
	c := testConfig(t)
	c.Network, c.Conditions, c.Logger = name, made.conditions, slog.New(slog.NewTextHandler(made, nil))
	c.Limits.OnRefusal = func(why Refusal) {
		if why == RefusedNetwork {
			made.refused.Add(1)
		}
	}
	for _, b := range bootstrap {
		c.Bootstrap = append(c.Bootstrap, info(b.Node))
	}
	made.Node = start(t, c)
	return made
}

// TestTwoNetworksShareABootstrapAddress: no table has a peer of the other network, connections end, and both sides say
// whom they refused.
func TestTwoNetworksShareABootstrapAddress(t *testing.T) {
	t.Parallel() // waits for its own peers
	a0 := newCitizen(t, "a")
	a1 := newCitizen(t, "a", a0)
	b0 := newCitizen(t, "b", a0)
	var said condition.Condition
	require.Eventually(t, func() bool {
		active := b0.conditions.Active()
		if len(active) == 1 {
			said = active[0]
		}
		return len(active) == 1
	}, patience, time.Millisecond)
	require.Equal(t, condition.OtherNetwork, said.Name)
	require.Equal(t, fmt.Sprintf("the bootstrap peer at %s belongs to the network %q, and this peer to %q: this peer cannot join. Set network.name (--network a), or name a bootstrap peer of %q",
		a0.host.Addrs()[0], "a", "b", "b"), said.String())
	require.False(t, b0.Ready())

	b1 := newCitizen(t, "b", a0, b0)
	for _, n := range []*citizen{a0, a1, b0, b1} {
		waitTable(t, n.Node, func(size int) bool { return size == 1 })
	}
	for _, pair := range [][2]*citizen{{a0, b0}, {a0, b1}} {
		for _, side := range [][2]*citizen{pair, {pair[1], pair[0]}} {
			own, other := side[0], side[1]
			require.Eventually(t, func() bool { return own.refused.Load() > 0 }, patience, time.Millisecond)
			require.Eventually(t, func() bool {
				return own.host.Network().Connectedness(other.host.ID()) != network.Connected
			}, patience, time.Millisecond)
		}
	}
	require.Contains(t, a0.text(), "refused a peer of another network")
	require.Contains(t, a0.text(), "network=a other=b")
	require.Contains(t, a0.text(), "address=/ip4/127.0.0.1/tcp/")
	require.Contains(t, b0.text(), "network=b other=a")
	for _, n := range []*citizen{a0, a1, b0, b1} {
		require.Equal(t, 1, n.Routing().Size())
	}
	require.Zero(t, a1.refused.Load())
}

// TestClosedNetwork: peers with the key of a closed network meet, and no connection of a peer without it opens.
func TestClosedNetwork(t *testing.T) {
	t.Parallel() // waits for its own peers
	closed := func(key []byte, bootstrap ...*Node) *Node {
		c := testConfig(t)
		c.PrivateKey = key
		for _, b := range bootstrap {
			c.Bootstrap = append(c.Bootstrap, info(b))
		}
		return start(t, c)
	}
	key, other := bytes.Repeat([]byte{1}, identity.KeySize), bytes.Repeat([]byte{2}, identity.KeySize)
	a := closed(key)
	b := closed(key, a)
	for _, n := range []*Node{a, b} {
		waitTable(t, n, func(size int) bool { return size == 1 })
	}
	for _, stranger := range []*Node{closed(other), closed(nil)} {
		require.Error(t, stranger.host.Connect(t.Context(), info(a)))
		require.Error(t, a.host.Connect(t.Context(), info(stranger)))
		require.Equal(t, 1, a.Routing().Size())
	}
}

func TestClosedNetworkIsOverTCP(t *testing.T) {
	c := testConfig(t)
	c.Profile, c.Listen, c.PrivateKey = Public, nil, make([]byte, identity.KeySize)
	_, settings, err := c.complete()
	require.NoError(t, err)
	require.False(t, settings.quic)
	require.Equal(t, []string{"/ip4/0.0.0.0/tcp/4801", "/ip6/::/tcp/4801"}, settings.listen)
	c.Listen = addrs(t, "/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.1/udp/1/quic-v1")
	_, _, err = c.complete()
	require.ErrorIs(t, err, &fault.Error{Kind: fault.Invalid, Field: "listen[1]"})
	c.PrivateKey = []byte("short")
	_, _, err = c.complete()
	require.Equal(t, "private_key", fault.FieldOf(err))
}

// TestNoWayIn: a peer whose bootstrap addresses lead nowhere says of each how its last try ended, until one leads in.
func TestNoWayIn(t *testing.T) {
	t.Parallel() // waits for its own peers
	a, other := newCitizen(t, "a"), newCitizen(t, "a")
	nobody := info(newCitizen(t, "a").Node)
	gone, err := multiaddr.NewMultiaddr("/ip4/127.0.0.1/tcp/1")
	require.NoError(t, err)
	nobody.Addrs = []multiaddr.Multiaddr{gone}
	wrong := info(a.Node)
	wrong.ID = other.host.ID()
	c := testConfig(t)
	c.Network, c.Conditions = "a", condition.NewSet(slog.New(slog.DiscardHandler), time.Now)
	c.Bootstrap = []peer.AddrInfo{wrong, nobody}
	start(t, c)
	require.Eventually(t, func() bool { return len(c.Conditions.Active()) == 1 }, patience, time.Millisecond)
	is := c.Conditions.Active()[0]
	require.Equal(t, condition.NoWayIn, is.Name)
	require.Contains(t, is.What, wrong.Addrs[0].String()+": another peer answers there, "+a.host.ID().String())
	require.Contains(t, is.What, gone.String()+": nobody listens there (connection refused)")
	require.NotEmpty(t, is.Remedy)
}
