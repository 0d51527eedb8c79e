package discoverytest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/platform/clock"
	"github.com/blackhole/blackhole/internal/platform/p2p/probe"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/gossip"
	"github.com/blackhole/blackhole/pkg/records"
)

func (updates) Follow([]gossip.Topic) (func(), error) { return func() {}, nil }

// Network is a single keeper of all records. It implements discovery.Keepers.
type Network struct {
	index *index.Index
	now   func() time.Time

	mu      sync.Mutex // guards the fields below
	kept    map[records.Name]*records.Record
	failure error
}

func newNetwork(x *index.Index, now func() time.Time) *Network {
	return &Network{index: x, now: now, kept: make(map[records.Name]*records.Record)}
}

// Fail makes later operations fail with err; nil ends the failure.
func (n *Network) Fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failure = err
}

// keep stores newer versions.
func (n *Network) keep(r *records.Record) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if old := n.kept[r.Name()]; old == nil || records.Compare(r, old) > 0 {
		n.kept[r.Name()] = r
	}
}

// live returns the matching records without withdrawn ones, by name.
func (n *Network) live(matches func(*records.Record) bool) ([]*records.Record, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.failure != nil {
		return nil, n.failure
	}
	var found []*records.Record
	for _, r := range n.kept {
		if !r.Withdrawn() && matches(r) {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b *records.Record) int { return a.Name().Compare(b.Name()) })
	return found, nil
}

// Store implements discovery.Keepers.
func (n *Network) Store(_ context.Context, recs []*records.Record) []records.Outcome {
	_, err := n.live(func(*records.Record) bool { return false })
	outcomes := make([]records.Outcome, len(recs))
	for i, r := range recs {
		if outcomes[i] = (records.Outcome{Stored: records.Stored{Of: 1}, Err: err}); err == nil {
			n.keep(r)
			outcomes[i].Stored.On = 1
		}
	}
	return outcomes
}

// Query implements discovery.Keepers.
func (n *Network) Query(_ context.Context, p *queries.Plan) (queries.Found, error) {
	found, err := n.live(p.Match)
	if err != nil {
		return queries.Found{}, err
	}
	for _, r := range found {
		_, _ = n.index.Put(r, n.now()) // refused if known or lapsed
	}
	return queries.Found{Records: found, Total: len(found), Complete: true}, nil
}

// Count implements discovery.Keepers.
func (n *Network) Count(_ context.Context, p *queries.Plan, places []geo.Cell, unplaced bool) ([]queries.Found, error) {
	matches, err := n.live(p.Match)
	return CountIn(places, matches, p, unplaced), err
}

// CountIn counts records in places by brute force, or those without a place.
func CountIn(places []geo.Cell, recs []*records.Record, p *queries.Plan, unplaced bool) []queries.Found {
	found := make([]queries.Found, len(places))
	for i, place := range places {
		found[i].Complete = true
		for _, r := range recs {
			if at, placed := r.Facts().Place(); !placed && unplaced || placed && !unplaced && place.Contains(at) {
				found[i].Total++
				found[i].Menu.Join(p.Menu(r))
				if len(found[i].Records) == 0 || p.Value(r) < p.Value(found[i].Records[0]) {
					found[i].Records = []*records.Record{r}
				}
			}
		}
	}
	return found
}

// Local implements discovery.Keepers. It always refers to Query.
func (n *Network) Local(*queries.Plan) (queries.Found, bool) { return queries.Found{}, false }

// Clock implements discovery.Keepers.
func (n *Network) Clock() clock.Estimate { return clock.Estimate{} }

// Refetch implements discovery.Keepers. No other machine has the identity.
func (n *Network) Refetch(context.Context, []*records.Record) bool { return true }

// Resolve implements discovery.Keepers.
func (n *Network) Resolve(_ context.Context, key records.Key) (*records.Record, error) {
	found, err := n.live(func(r *records.Record) bool { return key.Matches(r) == nil })
	switch {
	case err != nil:
		return nil, err
	case len(found) == 0:
		return nil, fault.New("discoverytest.Resolve", fault.NotFound, "no keeper has it")
	}
	return found[0], nil
}

// Peers answers with preset outcomes, and says nothing about other peers. It implements truth.Peers.
type Peers struct {
	mu    sync.Mutex // guards found
	found map[peer.ID]probe.Outcome
}

func newPeers() *Peers { return &Peers{found: make(map[peer.ID]probe.Outcome)} }

// Find presets the outcome of checks of a provider's peer.
func (p *Peers) Find(id peer.ID, o probe.Outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.found[id] = o
}

// Check implements truth.Peers.
func (p *Peers) Check(_ context.Context, id peer.ID) probe.Outcome {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.found[id]
}

// Follow implements truth.Peers.
func (p *Peers) Follow(func(peer.ID, probe.Change)) {}

// Node returns its fields. It implements discovery.Node. A test changes a node in use by Edit.
type Node struct {
	State     discovery.Status
	Connected []discovery.PeerInfo
	NotReady  error

	mu sync.Mutex // guards the fields above
}

// Edit changes the fields while others read them.
func (n *Node) Edit(change func(*Node)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(n)
}

// Status implements discovery.Node.
func (n *Node) Status() (s discovery.Status) {
	n.Edit(func(n *Node) { s = n.State })
	return s
}

// Peers implements discovery.Node.
func (n *Node) Peers() (list []discovery.PeerInfo) {
	n.Edit(func(n *Node) { list = n.Connected })
	return list
}

// Ready implements discovery.Node.
func (n *Node) Ready() (err error) {
	n.Edit(func(n *Node) { err = n.NotReady })
	return err
}
