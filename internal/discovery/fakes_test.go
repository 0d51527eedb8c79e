package discovery_test

import (
	"context"
	"crypto/rand"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	engine "github.com/blackhole/blackhole/internal/discovery"
	"github.com/blackhole/blackhole/internal/discovery/discoverytest"
	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/offers"
	"github.com/blackhole/blackhole/internal/platform/clock"
	"github.com/blackhole/blackhole/internal/platform/condition"
	reach "github.com/blackhole/blackhole/internal/platform/p2p/probe"
	"github.com/blackhole/blackhole/internal/platform/probe"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/gossip"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// fakeKeepers stands for all keepers: it stores records and puts a query's matches into the asker's index. Its
// switches cause failures.
type fakeKeepers struct {
	mu      sync.Mutex
	kept    map[records.Name]*records.Record
	stores  []*records.Record // the records of all Store calls
	counted int               // cells of all Count calls

	epoch atomic.Uint64 // see dated

	down    atomic.Bool // Store and Query fail
	partial atomic.Bool // Query is incomplete
	beyond  atomic.Bool // Query leaves out records that need a newer version
	local   atomic.Bool // the asker keeps all cells
	limited atomic.Bool // Query returns at most limit records, or the plan's limit for 0
	limit   atomic.Int64
	slow    atomic.Int64 // virtual duration of a query
	queries atomic.Int64 // calls of Query
	asker   *index.Index
}

func (n *fakeKeepers) Store(_ context.Context, recs []*records.Record) []records.Outcome {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]records.Outcome, len(recs))
	for i, r := range recs {
		if n.down.Load() {
			out[i] = records.Outcome{Stored: records.Stored{Of: 3}, Err: fault.New("fake", fault.Unavailable, "network is down")}
			continue
		}
		n.stores = append(n.stores, r)
		if old := n.kept[r.Name()]; old != nil && records.Compare(r, old) < 0 {
			out[i] = records.Outcome{Stored: records.Stored{Of: 3}, Err: fault.New("fake", fault.Exists, "a newer version is stored")}
			continue
		}
		n.kept[r.Name()] = r
		out[i].Stored = records.Stored{On: 3, Of: 3}
	}
	return out
}

func (n *fakeKeepers) Epoch() uint64 { return n.epoch.Load() }

func (n *fakeKeepers) Query(ctx context.Context, p *queries.Plan) (queries.Found, error) {
	n.queries.Add(1)
	select {
	case <-ctx.Done():
		return queries.Found{}, ctx.Err()
	case <-time.After(time.Duration(n.slow.Load())):
	}
	if n.down.Load() {
		return queries.Found{}, fault.New("fake", fault.Unavailable, "network is down")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	found := queries.Found{Complete: !n.partial.Load()}
	if !found.Complete {
		found.Reason = "one keeper of two answered"
	}
	if n.beyond.Load() {
		found.Beyond = &query.LeftOut{Records: 1, Features: []string{"auction.v2"}}
	}
	for _, r := range n.kept {
		if p.Match(r) && !r.Expired(time.Now()) {
			found.Records = append(found.Records, r)
		}
	}
	found.Total = len(found.Records)
	if n.limited.Load() {
		hits := make([]queries.Hit, len(found.Records))
		for i, r := range found.Records {
			hits[i] = p.Hit(r)
		}
		p.Arrange(hits)
		for i, h := range hits {
			found.Records[i] = h.Record
		}
		limit := p.Limit()
		if own := int(n.limit.Load()); own > 0 {
			limit = own
		}
		found.Records = found.Records[:min(len(found.Records), limit)]
	}
	for _, r := range found.Records {
		_, _ = n.asker.Put(r, time.Now()) // stale records are fine
	}
	return found, nil
}

// Count counts by brute force, or fails.
func (n *fakeKeepers) Count(_ context.Context, p *queries.Plan, places []geo.Cell, unplaced bool) ([]queries.Found, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.counted += len(places)
	if n.down.Load() {
		return nil, fault.New("fake", fault.Unavailable, "network is down")
	}
	var matches []*records.Record
	for _, r := range n.kept {
		if p.Match(r) {
			matches = append(matches, r)
		}
	}
	found := discoverytest.CountIn(places, matches, p, unplaced)
	if n.partial.Load() {
		found[0].Complete, found[0].Reason = false, "one keeper of two answered"
	}
	return found, nil
}

func (n *fakeKeepers) Clock() clock.Estimate { return clock.Estimate{} }

func (n *fakeKeepers) Refetch(context.Context, []*records.Record) bool { return true }

func (n *fakeKeepers) Resolve(_ context.Context, k records.Key) (*records.Record, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.kept[k.Name]
	if r != nil {
		_, _ = n.asker.Put(r, time.Now())
	}
	if r != nil && !r.Withdrawn() && k.Matches(r) == nil {
		return r, nil
	}
	return nil, fault.New("fake", fault.NotFound, "nothing under that key")
}

// Local answers if the asker keeps all cells.
func (n *fakeKeepers) Local(p *queries.Plan) (queries.Found, bool) {
	if !n.local.Load() {
		return queries.Found{Reason: "the cell has split"}, false
	}
	hits := n.asker.Search(p, index.SearchOptions{Now: time.Now(), AtLeast: !p.ExactTotal()})
	found := queries.Found{Total: hits.Total, AtLeast: !hits.Exact, Complete: true, Local: true}
	for _, h := range hits.Hits {
		found.Records = append(found.Records, h.Record)
	}
	return found, true
}

func (n *fakeKeepers) Holds(*queries.Plan) bool { return n.local.Load() }

// stored returns the stored versions of a service.
func (n *fakeKeepers) stored(id string) (versions []*records.Record) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.stores {
		if r.Name().ID == id {
			versions = append(versions, r)
		}
	}
	return versions
}

// fakeUpdates counts the followed topics, and how often one was left. With hasty set followers ignore what is published.
type fakeUpdates struct {
	followed, left, most atomic.Int64
	hasty                atomic.Bool
}

func (l *fakeUpdates) Publish(context.Context, *records.Record) error {
	if l.hasty.Load() {
		return fault.New("gossip.Publish", fault.LimitReached, "other peers may ignore it")
	}
	return nil
}

func (l *fakeUpdates) Follow([]gossip.Topic) (func(), error) {
	if most := l.most.Load(); most > 0 && l.followed.Load() >= most {
		return nil, fault.New("gossip.Follow", fault.LimitReached, "%d topics are followed", most)
	}
	l.followed.Add(1)
	return sync.OnceFunc(func() {
		l.followed.Add(-1)
		l.left.Add(1)
	}), nil
}

// fakePeers is the truth about peers: those without an outcome cannot be measured.
type fakePeers struct {
	mu       sync.Mutex // guards the fields below
	outcomes map[peer.ID]reach.Outcome
	checked  map[peer.ID]bool
	follow   func(peer.ID, reach.Change)
}

func (p *fakePeers) Check(_ context.Context, id peer.ID) reach.Outcome {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.checked[id] = true
	return p.outcomes[id]
}

func (p *fakePeers) Follow(f func(peer.ID, reach.Change)) { p.follow = f }

// set has a peer answer, or its machine refuse. The connection with it opens, or breaks.
func (p *fakePeers) set(id peer.ID, reachable bool) {
	p.mu.Lock()
	change := reach.Closed
	p.outcomes[id] = reach.Outcome{State: records.Unreachable, Refused: true}
	if reachable {
		change, p.outcomes[id] = reach.Opened, reach.Outcome{State: records.Reachable}
	}
	p.mu.Unlock()
	p.follow(id, change)
}

func (p *fakePeers) has(id peer.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.checked[id]
}

// lose has the peers of providers die, and the service find out. It returns when it did so first.
func (f *fixture) lose(ids ...peer.ID) (since time.Time) {
	for _, id := range ids {
		f.Want(f.index.OfProvider(id))
		f.peers.set(id, false)
	}
	synctest.Wait()
	since = time.Now()
	time.Sleep(11*time.Second + time.Duration(len(ids)/10)*time.Second)
	synctest.Wait()
	return since
}

// fakeEndpoints is the truth about endpoints, by host: those without a state cannot be measured.
type fakeEndpoints struct {
	mu     sync.Mutex // guards the fields below
	states map[string]probe.State
	probed map[string]int
}

func (f *fakeEndpoints) Probe(_ context.Context, t probe.Target) (probe.Outcome, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.probed[t.Host]++
	state := f.states[t.Host]
	o := probe.Outcome{State: state, Detail: "by a fake"}
	switch state {
	case probe.Answers:
		o.RoundTrip = 20 * time.Millisecond
	case probe.Closed:
		o.Asks, o.Text = probe.Price{Amount: 5, Currency: "USDC"}, "pay me"
	case "":
		o.Detail = "answered 406"
	}
	return o, state != ""
}

func (f *fakeEndpoints) count(host string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.probed[host]
}

func (f *fakeEndpoints) set(host string, s probe.State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.states[host] = s
}

// fixture is the service of one peer with fakes around it.
type fixture struct {
	*engine.Service
	t        *testing.T
	net      *fakeKeepers
	live     *fakeUpdates
	peers    *fakePeers
	speaks   *fakeEndpoints
	index    *index.Index
	registry *offers.Registry
	limits   *condition.Set
	self     peer.ID
	other    crypto.PrivKey // of another provider
}

func newFixture(t *testing.T, edits ...func(*engine.Settings)) *fixture {
	return newFixtureOn(t, index.New(index.Config{MaxPerProvider: 10_000}), edits...)
}

func newFixtureOn(t *testing.T, x *index.Index, edits ...func(*engine.Settings)) *fixture {
	key := newKey(t)
	self, err := peer.IDFromPrivateKey(key)
	require.NoError(t, err)
	reg, err := offers.Open(offers.Config{Network: "test", Dir: "r", FS: vfs.NewMem(), Key: key, MaxServices: 10}, time.Now())
	require.NoError(t, err)
	f := &fixture{
		t: t, index: x, registry: reg, limits: condition.NewSet(slog.New(slog.DiscardHandler), time.Now), self: self, other: newKey(t), live: &fakeUpdates{},
		net:    &fakeKeepers{kept: map[records.Name]*records.Record{}, asker: x},
		speaks: &fakeEndpoints{states: map[string]probe.State{}, probed: map[string]int{}},
		peers:  &fakePeers{outcomes: map[peer.ID]reach.Outcome{}, checked: map[peer.ID]bool{}},
	}
	var settings engine.Settings
	for _, edit := range edits {
		edit(&settings)
	}
	f.Service, err = engine.NewService(engine.Parts{
		Registry: reg, Index: x, Keepers: f.net, Updates: f.live, Peers: f.peers, Speaks: f.speaks,
		Now: time.Now, Random: func() uint64 { return 7 }, Conditions: f.limits,
	}, settings)
	require.NoError(t, err)
	return f
}

// close ends the fixture. Goroutines that still run afterwards fail the test.
func (f *fixture) close() {
	require.NoError(f.t, f.Service.Close())
	require.NoError(f.t, f.registry.Close())
	require.Zero(f.t, f.live.followed.Load(), "topics are released")
}

func newKey(t *testing.T) crypto.PrivKey {
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	require.NoError(t, err)
	return key
}

func offer(id string, price float64) records.Offer {
	lat, lon := 52.52, 13.4
	return records.Offer{
		ID: id, Metadata: records.Metadata{Type: "storage", Subtype: "ssd"},
		Capabilities: &records.Capabilities{Storage: &records.Storage{TotalSpace: 2e12, AvailableSpace: 1e12}},
		Location:     &records.Location{Latitude: &lat, Longitude: &lon, Country: "DE"},
		Pricing:      &records.Pricing{Currency: "USDC", BasePrice: &price, PriceUnit: "per-gb-month"},
	}
}

// foreign signs a record of another provider with the given validity.
func (f *fixture) foreign(id string, price float64, sequence uint64, valid time.Duration) *records.Record {
	now := time.Now()
	r, err := records.Sign("test", f.other, offer(id, price), records.Stamp{Sequence: sequence, Created: now, Issued: now, Expires: now.Add(valid)})
	require.NoError(f.t, err)
	return r
}

// arrive delivers a record by live update.
func (f *fixture) arrive(r *records.Record) {
	_, err := f.index.Put(r, time.Now())
	require.NoError(f.t, err)
}

// drop removes a record at the keepers, without a live update.
func (f *fixture) drop(r *records.Record) {
	f.net.mu.Lock()
	defer f.net.mu.Unlock()
	delete(f.net.kept, r.Name())
}

// keep stores a record at the keepers.
func (f *fixture) keep(r *records.Record) {
	f.net.mu.Lock()
	defer f.net.mu.Unlock()
	f.net.kept[r.Name()] = r
}
