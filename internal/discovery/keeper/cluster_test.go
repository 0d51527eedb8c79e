package keeper

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	quic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/x/simlibp2p"
	"github.com/marcopolo/simnet"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// provider signs records.
type provider struct {
	key crypto.PrivKey
	id  peer.ID
}

func newProvider(t testing.TB) provider {
	t.Helper()
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	require.NoError(t, err)
	id, err := peer.IDFromPrivateKey(key)
	require.NoError(t, err)
	return provider{key, id}
}

// offer returns a compute service in Berlin, changed by edits.
func offer(id string, edits ...func(*records.Offer)) records.Offer {
	lat, lon, price := 52.52, 13.405, 1.0
	o := records.Offer{
		ID:           id,
		Metadata:     records.Metadata{Type: "compute", Subtype: "gpu", Endpoints: []string{"https://example.org"}},
		Capabilities: &records.Capabilities{Compute: &records.Compute{CPUCores: 8, MemoryMB: 16000}},
		Location:     &records.Location{Latitude: &lat, Longitude: &lon, Country: "DE"},
		Pricing:      &records.Pricing{Currency: "USDC", BasePrice: &price, PriceUnit: "per-hour"},
		Health:       &records.Health{Status: "HEALTHY"},
	}
	for _, edit := range edits {
		edit(&o)
	}
	return o
}

func priced(price float64) func(*records.Offer) {
	return func(o *records.Offer) { o.Pricing.BasePrice = &price }
}

func nowhere(o *records.Offer) { o.Location, o.Metadata.Subtype = nil, "" }

func (p provider) sign(t testing.TB, o records.Offer, sequence uint64, now time.Time) *records.Record {
	t.Helper()
	r, err := records.Sign("test", p.key, o, records.Stamp{Sequence: sequence, Issued: now, Expires: now.Add(24 * time.Hour)})
	require.NoError(t, err)
	return r
}

func (p provider) withdraw(t testing.TB, r *records.Record, now time.Time) *records.Record {
	t.Helper()
	tomb, err := records.Tombstone(p.key, r, records.Stamp{Sequence: r.Sequence() + 1, Issued: now, Expires: now.Add(24 * time.Hour)})
	require.NoError(t, err)
	return tomb
}

func compile(t testing.TB, q query.Query) *query.Plan {
	t.Helper()
	if q.Type == "" {
		q.Type = "compute"
	}
	p, err := query.Compile(q, query.Defaults{})
	require.NoError(t, err)
	return p
}

// around returns a query for a disc around Berlin, cheapest first.
func around(radius float64) query.Query {
	return query.Query{
		Near: &query.Near{Latitude: 52.52, Longitude: 13.405, RadiusKM: &radius}, Sort: query.SortPrice, Explain: true,
	}
}

// directory is the DHT of a test: every peer knows all peers without delay.
type directory struct {
	mu      sync.Mutex // guards the fields below
	peers   []peer.ID
	clients []peer.ID // clients of the DHT: in no table
	lookups int
	delay   time.Duration                   // of a lookup
	failure error                           // of a lookup
	silent  []peer.ID                       // peers that give a lookup no answer, and that it leaves out
	foresee func(found []peer.ID) []peer.ID // the likely result, told at the start of a lookup; nil tells none
	halves  [][]peer.ID                     // groups of mutually visible peers; nil for one group
	changed chan struct{}                   // closed with the next change; nil without a waiter
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

func (r router) Closest(ctx context.Context, key string, likely func([]peer.ID)) ([]peer.ID, error) {
	r.d.mu.Lock()
	r.d.lookups++
	delay, failure, foresee := r.d.delay, r.d.failure, r.d.foresee
	r.d.mu.Unlock()
	if likely != nil && foresee != nil {
		likely(foresee(nearest(key, r.others(), Network)))
	}
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if failure != nil {
		return nil, failure
	}
	found := slices.DeleteFunc(r.others(), func(id peer.ID) bool { return slices.Contains(r.d.silent, id) })
	return nearest(key, found, Network), nil
}

func (r router) Nearby(key string, n int) []peer.ID { return nearest(key, r.others(), n) }

func (r router) Size() int { return len(r.others()) }

func (r router) Serving() bool {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	return !slices.Contains(r.d.clients, r.self)
}

// counts is a Recorder.
type counts struct {
	mu                  sync.Mutex // guards the fields below
	refused, distrusted map[string]int
	lacking             map[string]int
	operations          map[string]int
}

func newCounts() *counts {
	return &counts{refused: map[string]int{}, distrusted: map[string]int{}, lacking: map[string]int{}, operations: map[string]int{}}
}

func (c *counts) Operation(op string, _ time.Duration, _ error) { c.add(c.operations, op) }
func (c *counts) Refused(reason string)                         { c.add(c.refused, reason) }
func (c *counts) Distrusted(reason string)                      { c.add(c.distrusted, reason) }
func (c *counts) Lacking(field string)                          { c.add(c.lacking, field) }

func (c *counts) add(m map[string]int, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m[key]++
}

func (c *counts) of(m map[string]int, key string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return m[key]
}

// node is one peer of a cluster.
type node struct {
	*Keeper
	host   host.Host
	counts *counts
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
	t     testing.TB
	dht   *directory
	nodes []*node
}

// newCluster returns n peers. The cluster ends with the test.
func newCluster(t testing.TB, n int, configure ...func(i int, c *Config)) *cluster {
	t.Helper()
	w := &cluster{t: t, dht: &directory{}}
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
		n.sync.table()
		n.sync.know.setInformed(true, time.Now()) // an old network
	}
	for _, n := range w.nodes {
		if n.Limits.Sync > 0 && n.Router.Size() > 0 {
			n.sync.round(t.Context()) // a peer without a comparison has no authority
		}
	}
	for _, n := range w.nodes {
		n.sync.outdate() // tests put records into indexes directly
	}
	return w
}

// never disables comparisons.
func never(_ int, c *Config) { c.Limits.Sync = -1 }

func (w *cluster) start(i int, h host.Host, configure []func(int, *Config)) *node {
	verifier, err := records.NewVerifier("test", 10_000)
	require.NoError(w.t, err)
	n := &node{host: h, counts: newCounts()}
	c := Config{
		Network: "test",
		Host:    h, Router: router{w.dht, h.ID()}, Index: index.New(index.Config{}), Verifier: verifier, Recorder: n.counts,
	}
	for _, edit := range configure {
		edit(i, &c)
	}
	n.Keeper, err = New(c)
	require.NoError(w.t, err)
	return n
}

// keepersOf returns the keepers of a cell by definition, without the code under test.
func (w *cluster) keepersOf(c records.CellKey) []*node {
	if len(w.nodes) <= Network {
		return w.nodes
	}
	sorted := slices.Clone(w.nodes)
	key := routingKey(c)
	slices.SortFunc(sorted, func(a, b *node) int {
		x, y := distanceOf(key, a.Self), distanceOf(key, b.Self)
		return slices.Compare(x[:], y[:])
	})
	return sorted[:Replicas]
}

func (w *cluster) node(id peer.ID) *node {
	return w.nodes[slices.IndexFunc(w.nodes, func(n *node) bool { return n.Self == id })]
}

// batch returns n compute records of one provider around Berlin, by increasing price.
func batch(t testing.TB, p provider, n int, now time.Time) []*records.Record {
	recs := make([]*records.Record, n)
	for i := range recs {
		recs[i] = p.sign(t, offer(fmt.Sprintf("s%03d", i), priced(float64(i))), 1, now)
	}
	return recs
}

func namesOf(recs []*records.Record) []string {
	names := make([]string, len(recs))
	for i, r := range recs {
		names[i] = r.Name().ID
	}
	return names
}

var errLookup = errors.New("the lookup failed")

// selfOnly is a host without connections.
type selfOnly struct{ host.Host }
