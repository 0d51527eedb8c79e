package keep

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/discovery/protocol"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/sync/singleflight"

	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// Placement of cells.
const (
	// Replicas is the number of keepers of a cell: the peers closest to its key.
	Replicas = 10
	// Network is the maximum size of a small network, where every peer keeps every cell. It is
	// also the number of peers that a lookup returns (k of Kademlia).
	Network = 20

	retainWithin = Replicas + 2 // a peer holds a cell while it is among this many closest
	AcceptWithin = 2 * Replicas // a peer accepts records of a cell while it is among this many closest, because of churn
)

const (
	maxCachedCells = 4096             // cells with cached keepers
	keeperSetTTL   = 10 * time.Minute // lifetime of the keepers of a cell
	wholeTTL       = 10 * time.Second // lifetime of the peers of a small network: every join changes them
	uncertainTTL   = 5 * time.Second  // lifetime of an incomplete lookup
	failedTTL      = 5 * time.Second  // lifetime of a keeper set with a failed peer

	lookups   = 16          // at a time
	manyCells = 4 * lookups // a call with more cells starts their lookups gradually
	refreshes = 4           // lookups in the background
)

// Set is the set of peers that keep a cell. It is immutable.
type Set struct {
	Peers []peer.ID // sorted; never empty: a peer without other known peers keeps all cells
	Id    string    // equal for equal sets, Outer included

	// uncertain is the error of a lookup that may have missed keepers; nil for a complete lookup.
	Uncertain error
	// Chosen reports that an attacker probably chose the ids of some Peers. Outer keep the cell too then, but claim nothing; the first, so
	// many as Inner, are nearer, and more likely known to others, whose estimate of the region may be smaller.
	Chosen bool
	Outer  []peer.ID
	Inner  int
}

// NewSet returns a set of peers; uncertain is the error of the lookup that found them, or nil.
func NewSet(peers []peer.ID, uncertain error) *Set {
	peers = slices.Clone(peers)
	slices.Sort(peers)
	var id strings.Builder
	for _, p := range peers {
		id.WriteByte(byte(len(p)))
		id.WriteString(string(p))
	}
	return &Set{Peers: peers, Id: id.String(), Uncertain: uncertain}
}

// All returns everybody who keeps the cell.
func (s *Set) All() []peer.ID { return slices.Concat(s.Peers, s.Outer) }

// Has reports whether a peer is in the set.
func (s *Set) Has(id peer.ID) bool {
	_, ok := slices.BinarySearch(s.Peers, id)
	return ok
}

// Nearest returns the peers of the set, the closest to an id first.
func (s *Set) Nearest(id peer.ID) []peer.ID { return Nearest(string(id), s.Peers, len(s.Peers)) }

// Nearest returns up to n distinct peers closest to a key, nearest first. It does not change
// peers.
func Nearest(key string, peers []peer.ID, n int) []peer.ID {
	peers = slices.Clone(peers)
	slices.Sort(peers)
	peers = slices.Compact(peers)
	target, away := HashOf(key), make(map[peer.ID]Words, len(peers))
	for _, p := range peers {
		away[p] = target.xor(HashOf(string(p)))
	}
	slices.SortFunc(peers, func(a, b peer.ID) int { return away[a].compare(away[b]) })
	return peers[:min(n, len(peers))]
}

// Closest finds and caches the closest peers to the keys of cells: the keepers. It is safe
// for concurrent use.
type Closest struct {
	*protocol.Life
	ClosestConfig
	flights    singleflight.Group // by routing key; "" renews the set of all cells
	refreshing chan struct{}      // semaphore of the lookups in the background
	regions    regions            // has its own lock
	sizes      sizes              // has its own lock

	mu    sync.Mutex // guards the fields below; held for memory accesses only
	cells *lru.Cache[string, cachedSet]
	whole cachedSet // of every cell in a small network
	table int       // size of the routing table at the lookup of whole
}

// cachedSet is a cached keeper set; the zero value is empty. An old set still serves while a
// lookup in the background renews it, so callers wait only for cells without recent use.
type cachedSet struct {
	set     *Set
	serving bool // this peer was a server of the DHT at the lookup
	fresh   time.Time
	until   time.Time
}

func newCachedSet(set *Set, serving bool, now time.Time, ttl time.Duration) cachedSet {
	return cachedSet{set: set, serving: serving, fresh: now.Add(ttl), until: now.Add(2 * ttl)}
}

// uncertainSet caches the result of an incomplete lookup for a moment.
func uncertainSet(set *Set, serving bool, now time.Time) cachedSet {
	until := now.Add(uncertainTTL)
	return cachedSet{set: set, serving: serving, fresh: until, until: until}
}

// ClosestConfig is what a Closest uses. All fields are required.
type ClosestConfig struct {
	Router    protocol.Router
	Connected func(peer.ID) bool
	Draw      protocol.Draw
	Lookup    time.Duration // of one lookup
}

// NewClosest returns a cache without any keepers.
func NewClosest(l *protocol.Life, c ClosestConfig) *Closest {
	return &Closest{
		Life: l, ClosestConfig: c, refreshing: make(chan struct{}, refreshes), cells: bounded.Shared[string, cachedSet](maxCachedCells),
	}
}

// KeyOf returns the DHT key of a cell: the multihash of its content id.
func KeyOf(c records.CellKey) string { return string(c.Multihash()) }

// Keepers returns the keepers of a cell. Concurrent calls for one cell share a lookup, which
// continues after the end of a caller's ctx. It fails only with ctx or after Close.
func (p *Closest) Keepers(ctx context.Context, c records.CellKey) (*Set, error) {
	key := KeyOf(c)
	now := p.Now()
	known, whole := p.remembered(key, now)
	switch {
	case now.Before(known.fresh):
		return known.set, nil
	case now.Before(known.until):
		p.refresh(key, whole)
		return known.set, nil
	}
	select {
	case <-ctx.Done():
		return nil, fault.Wrap("keeper.lookup", ctx.Err())
	case r := <-p.flights.DoChan(key, func() (any, error) { return p.lookup(key) }):
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*Set), nil
	}
}

// KeepersOf looks up the keepers of some cells, several at a time.
func (p *Closest) KeepersOf(ctx context.Context, cells []records.CellKey) ([]*Set, error) {
	sets := make([]*Set, len(cells))
	errs := make([]error, len(cells))
	lookUp := func(i int) { sets[i], errs[i] = p.Keepers(ctx, cells[i]) }
	first := 0
	if len(cells) > 0 && p.Router.Size() < Network {
		lookUp(0) // in a small network the first answer applies to all cells
		first = 1
	}
	// One lookup answers for a region of cells. So many cells begin with few lookups.
	for width := 1; width < lookups && len(cells) > manyCells && first < len(cells); width *= 2 {
		some := min(width, len(cells)-first)
		protocol.Bounded(width, some, func(i int) { lookUp(first + i) })
		first += some
	}
	protocol.Bounded(lookups, len(cells)-first, func(i int) { lookUp(first + i) })
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return sets, nil
}

// refresh renews a cached set in the background. It does nothing if enough lookups are under way:
// a later call tries again.
func (p *Closest) refresh(key string, whole bool) {
	flight := key
	if whole {
		flight = "" // one lookup renews all cells
	}
	select {
	case p.refreshing <- struct{}{}:
	default:
		return
	}
	if !p.Go(func(context.Context) {
		defer func() { <-p.refreshing }()
		_, _, _ = p.flights.Do(flight, func() (any, error) { return p.lookup(key) })
	}) {
		<-p.refreshing
	}
}

// remembered returns the cached set of a key, and whether the set applies to all keys. It returns
// the zero value without a usable set.
func (p *Closest) remembered(key string, now time.Time) (_ cachedSet, whole bool) {
	table := p.Router.Size()
	p.mu.Lock()
	defer p.mu.Unlock()
	serving := p.Router.Serving()
	if now.Before(p.whole.until) && p.table == table && p.whole.serving == serving {
		return p.whole, true
	}
	if e, ok := p.cells.Get(key); ok && now.Before(e.until) && e.serving == serving {
		return e, false
	}
	return cachedSet{}, false
}

// Forget forgets the keepers of cells that a peer refused because it does not keep them: the lookup was made with an
// older routing table.
func (p *Closest) Forget(id peer.ID, cells []records.CellKey) {
	p.regions.forget(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.whole = cachedSet{}
	for _, c := range cells {
		p.cells.Remove(KeyOf(c))
	}
}

// alone reports whether the last lookup found no other peer in the network. It is false before the
// first lookup. It asks no peers.
func (p *Closest) alone() bool {
	placed, whole := p.remembered("", p.Now())
	return whole && placed.set.Uncertain == nil && len(placed.set.Peers) == 1 && placed.set.Peers[0] == p.Self
}

// lookup asks the DHT and caches the result.
func (p *Closest) lookup(key string) (*Set, error) {
	table := p.Router.Size()
	before := p.Router.Nearby(key, Network)
	others, err := p.findClosest(key)
	if p.Context().Err() != nil {
		return nil, fault.New("keeper.lookup", fault.Unavailable, "the keeper is closed")
	}
	if err != nil {
		p.Logger.Debug("incomplete lookup of the keepers", "found", len(others), "error", err)
		if len(others) < Network {
			others = append(slices.Clone(others), p.Router.Nearby(key, Network)...)
		}
	}
	if table < Network { // a lost packet of the lookup makes no keeper of a small network less
		others = append(slices.Clone(others), p.connected(before)...)
	}
	serving := p.Router.Serving()
	self := p.Self
	if !serving && len(others) > 0 {
		self = "" // no keeper
	}
	set, whole := settle(key, self, others, table, err)
	if !whole && err == nil {
		set = p.guarded(key, set, append(slices.Clone(others), set.Peers...)) // which has self, if near
	}
	p.remember(key, set, whole, table, serving)
	return set, nil
}

// connected returns those of some peers to which this peer has a connection.
func (p *Closest) connected(ids []peer.ID) (out []peer.ID) {
	for _, id := range ids {
		if p.Connected(id) {
			out = append(out, id)
		}
	}
	return out
}

// settle returns the keepers of a cell from the result of a lookup and the size of the routing
// table. Self is empty for a peer that is no keeper. Whole reports a small network, where these peers keep every cell. A lookup that only ran
// out of time proceeded from far to near, so its result counts; a lookup without contact to many
// of the closest peers is uncertain.
func settle(key string, self peer.ID, others []peer.ID, table int, err error) (_ *Set, whole bool) {
	if self != "" {
		others = append(slices.Clone(others), self)
	}
	all := Nearest(key, others, Network+1)
	small := len(all) <= Network && table < Network // a poor lookup in a large network does not make the network small
	switch {
	case small && err == nil:
		return NewSet(all, nil), true
	case len(all) >= Replicas && (err == nil || fault.KindOf(err) == fault.Timeout):
		return NewSet(all[:Replicas], nil), false
	case len(all) >= Replicas:
		return NewSet(all[:Replicas], err), false
	default:
		return NewSet(all, err), small
	}
}

func (p *Closest) remember(key string, set *Set, whole bool, table int, serving bool) {
	now := p.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case whole && set.Uncertain == nil:
		p.whole, p.table = newCachedSet(set, serving, now, wholeTTL), table
	case whole:
		p.whole, p.table = uncertainSet(set, serving, now), table
	case set.Uncertain != nil:
		p.cells.Add(key, uncertainSet(set, serving, now))
	default:
		p.cells.Add(key, newCachedSet(set, serving, now, keeperSetTTL))
		p.whole = cachedSet{} // the network has grown
	}
}

// refreshSets renews the cached sets with a peer soon: the peer may be gone, and other peers may
// have its cells.
func (p *Closest) refreshSets(id peer.ID) {
	p.regions.forget(id)
	soon := p.Now().Add(failedTTL)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range p.cells.Keys() {
		if e, ok := p.cells.Peek(key); ok && e.fresh.After(soon) && slices.Contains(e.set.All(), id) {
			e.fresh = soon
			p.cells.Add(key, e)
		}
	}
}

// Suspect hears of an unresponsive peer. Its sets are renewed soon, and the router checks it.
func (p *Closest) Suspect(id peer.ID) {
	p.refreshSets(id)
	if r, ok := p.Router.(suspectReporter); ok {
		r.Suspect(id)
	}
}

// suspectReporter is a Router that checks unresponsive peers.
type suspectReporter interface {
	// Suspect schedules a check of peers. Dead peers leave the routing table.
	Suspect(ids ...peer.ID)
	// Refuses reports whether the last check of a peer found its machine, and nothing that listens at any of its addresses.
	Refuses(id peer.ID) bool
}
