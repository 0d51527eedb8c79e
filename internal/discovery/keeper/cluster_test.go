package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"

	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"

	quic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/x/simlibp2p"
	"github.com/marcopolo/simnet"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/pkg/records"
)

// TestMain gives memory for time, as the networks of these tests make much garbage.
func TestMain(m *testing.M) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	os.Exit(m.Run())
}

// directory is the DHT of a test: every peer knows all peers without delay.
type directory struct {
	mu      sync.Mutex // guards the fields below
	peers   []peer.ID
	clients []peer.ID // clients of the DHT: in no table
	unseen  int       // peers that tables count, and no lookup finds: the network is not small
	lookups int
	delay   time.Duration        // of a lookup
	failure error                // of a lookup
	silent  []peer.ID            // peers that give a lookup no answer, and that it leaves out
	ended   []peer.ID            // peers whose machines refuse connections
	checked []peer.ID            // peers that somebody suspected
	late    bool                 // peers run late
	halves  [][]peer.ID          // groups of mutually visible peers; nil for one group
	changed chan struct{}        // closed with the next change; nil without a waiter
	order   map[string][]peer.ID // of among by distance from a key
	among   []peer.ID            // peers when order began
}

// nearest returns the n peers of some that are closest to a key. A network asks for the same keys again and again.
func (d *directory) nearest(key string, some []peer.ID, n int) []peer.ID {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.order == nil || !slices.Equal(d.among, d.peers) {
		d.order, d.among = map[string][]peer.ID{}, slices.Clone(d.peers)
	}
	order, known := d.order[key]
	if !known {
		order = keep.Nearest(key, d.peers, len(d.peers))
		d.order[key] = order
	}
	found := make([]peer.ID, 0, n)
	for _, id := range order {
		if len(found) < n && slices.Contains(some, id) {
			found = append(found, id)
		}
	}
	return found
}

// edit changes the directory while peers use it.
func (d *directory) edit(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}

// fire reports a change to the waiters. The caller is edit.
func (d *directory) fire() {
	if d.changed != nil {
		close(d.changed)
		d.changed = nil
	}
}

// split restricts each peer to its own half.
func (d *directory) split(halves ...[]peer.ID) {
	d.edit(func() {
		d.halves = halves
		d.fire()
	})
}

// asked returns the number of lookups so far.
func (d *directory) asked() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lookups
}

// router is one peer's view of the directory.
type router struct {
	d    *directory
	self peer.ID
}

func (r router) others() []peer.ID {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	seen := r.d.peers
	for _, half := range r.d.halves {
		if slices.Contains(half, r.self) {
			seen = half
		}
	}
	return slices.DeleteFunc(slices.Clone(seen), func(id peer.ID) bool { return id == r.self || slices.Contains(r.d.clients, id) })
}

func (r router) Changed() <-chan struct{} {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	if r.d.changed == nil {
		r.d.changed = make(chan struct{})
	}
	return r.d.changed
}

func (r router) Closest(ctx context.Context, key string) ([]peer.ID, error) {
	r.d.mu.Lock()
	r.d.lookups++
	delay, failure := r.d.delay, r.d.failure
	r.d.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if failure != nil {
		return nil, failure
	}
	found := slices.DeleteFunc(r.others(), func(id peer.ID) bool { return slices.Contains(r.d.silent, id) })
	return r.d.nearest(key, found, keep.Network), nil
}

func (r router) Nearby(key string, n int) []peer.ID { return r.d.nearest(key, r.others(), n) }

func (r router) Size() int { return len(r.others()) }

func (r router) Serving() bool {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	return !slices.Contains(r.d.clients, r.self)
}

// node is one peer of a cluster.
type node struct {
	*Keeper
	config protocol.Config
	host   host.Host
	counts *keepertest.Counts
	gone   bool
}

// leave disconnects the node from the network.
func (n *node) leave(t testing.TB) {
	if !n.gone {
		n.gone = true
		require.NoError(t, n.Close())
		require.NoError(t, n.host.Close())
	}
}

// cluster is a network of peers in the virtual time of a bubble, 10 ms between any two peers.
type cluster struct {
	t        testing.TB
	dht      *directory
	nodes    []*node
	verifier *records.Verifier // verifies each record once
}

// atSize skips a test but at night and in proofs. It plays at the size of a network what shorter tests play.
func atSize(t *testing.T) {
	t.Helper()
	if os.Getenv("TEST_LONG") == "" {
		t.Skip("plays at size what shorter tests play: set TEST_LONG=1, as .ci/night and testnet prove do")
	}
}

// newCluster returns n peers. The cluster ends with the test.
func newCluster(t testing.TB, n int, configure ...func(i int, c *protocol.Config)) *cluster {
	t.Helper()
	verifier, err := records.NewVerifier("test", 10_000)
	require.NoError(t, err)
	w := &cluster{t: t, dht: &directory{}, verifier: verifier}
	const mbps = 100 * simlibp2p.OneMbps
	link := simnet.NodeBiDiLinkSettings{Downlink: simnet.LinkSettings{BitsPerSecond: mbps}, Uplink: simnet.LinkSettings{BitsPerSecond: mbps}}
	net := &simnet.Simnet{LatencyFunc: simnet.StaticLatency(5 * time.Millisecond)}
	net.Start()
	hosts := make([]host.Host, n)
	for i := range hosts {
		h, err := libp2p.New(
			libp2p.ListenAddrStrings(fmt.Sprintf("/ip4/%s/udp/4801/quic-v1", simnet.IntToPublicIPv4(i))),
			libp2p.Transport(quic.NewTransport), simlibp2p.QUICSimnet(net, link),
			libp2p.DisableIdentifyAddressDiscovery(), // its timers would stall the bubble
			libp2p.ResourceManager(&network.NullResourceManager{}), libp2p.DisableRelay(), libp2p.DisableMetrics())
		require.NoError(t, err)
		hosts[i] = h
		w.dht.peers = append(w.dht.peers, h.ID())
	}
	for _, h := range hosts {
		for _, other := range hosts {
			if other != h {
				h.Peerstore().AddAddrs(other.ID(), other.Addrs(), peerstore.PermanentAddrTTL)
			}
		}
	}
	for i, h := range hosts {
		w.nodes = append(w.nodes, w.start(i, h, configure))
	}
	t.Cleanup(func() {
		for _, n := range w.nodes {
			n.leave(t)
		}
		net.Close()
	})
	for _, n := range w.nodes {
		n.sync.Table()
		n.sync.Know.SetInformed(true, time.Now()) // an old network
	}
	for _, n := range w.nodes {
		if n.config.Limits.Sync > 0 && n.config.Router.Size() > 0 {
			n.sync.Round(t.Context()) // a peer without a comparison has no authority
		}
	}
	for _, n := range w.nodes {
		n.sync.Outdate() // tests put records into indexes directly
	}
	return w
}

// never disables comparisons.
func never(_ int, c *protocol.Config) { c.Limits.Sync = -1 }

func (w *cluster) start(i int, h host.Host, configure []func(int, *protocol.Config)) *node {
	n := &node{host: h, counts: keepertest.NewCounts(w.t)}
	c := protocol.Config{
		Network: "test",
		Host:    h, Router: router{w.dht, h.ID()}, Index: index.New(index.Config{}), Verifier: w.verifier, Signals: protocol.Signals{Metrics: n.counts.Discovery},
	}
	for _, edit := range configure {
		edit(i, &c)
	}
	var err error
	n.config, err = c.Checked()
	require.NoError(w.t, err)
	n.Keeper, err = New(c)
	require.NoError(w.t, err)
	return n
}

// KeepersOf returns the keepers of a cell by definition, without the code under test.
func (w *cluster) keepersOf(c records.CellKey) []*node {
	if len(w.nodes) <= keep.Network {
		return w.nodes
	}
	sorted := slices.Clone(w.nodes)
	key := keep.KeyOf(c)
	slices.SortFunc(sorted, func(a, b *node) int {
		x, y := distanceOf(key, a.Self), distanceOf(key, b.Self)
		return slices.Compare(x[:], y[:])
	})
	return sorted[:keep.Replicas]
}

func (w *cluster) node(id peer.ID) *node {
	return w.nodes[slices.IndexFunc(w.nodes, func(n *node) bool { return n.Self == id })]
}

var errLookup = errors.New("the lookup failed")

// selfOnly is a host without connections.
type selfOnly struct{ host.Host }
