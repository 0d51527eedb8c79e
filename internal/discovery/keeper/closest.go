package keeper

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/sync/singleflight"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// keeperSet is the set of peers that keep a cell. It is immutable.
type keeperSet struct {
	peers []peer.ID // sorted; never empty: a peer without other known peers keeps all cells
	id    string    // equal for equal sets

	// uncertain is the error of a lookup that may have missed keepers; nil for a complete lookup.
	uncertain error
}

func newKeeperSet(peers []peer.ID, uncertain error) *keeperSet {
	peers = slices.Clone(peers)
	slices.Sort(peers)
	var id strings.Builder
	for _, p := range peers {
		id.WriteByte(byte(len(p)))
		id.WriteString(string(p))
	}
	return &keeperSet{peers: peers, id: id.String(), uncertain: uncertain}
}

func (s *keeperSet) has(id peer.ID) bool {
	_, ok := slices.BinarySearch(s.peers, id)
	return ok
}

// distance is the XOR metric of Kademlia (Maymounkov and Mazières, 2002) between hashed keys, as
// in kad-dht. Distances compare bytewise.
type distance [sha256.Size]byte

func distanceOf(key string, id peer.ID) distance {
	d := distance(sha256.Sum256([]byte(key)))
	for i, b := range sha256.Sum256([]byte(id)) {
		d[i] ^= b
	}
	return d
}

// nearest returns up to n distinct peers closest to a key, nearest first. It does not change
// peers.
func nearest(key string, peers []peer.ID, n int) []peer.ID {
	peers = slices.Clone(peers)
	slices.Sort(peers)
	peers = slices.Compact(peers)
	away := make(map[peer.ID]distance, len(peers))
	for _, p := range peers {
		away[p] = distanceOf(key, p)
	}
	slices.SortFunc(peers, func(a, b peer.ID) int {
		x, y := away[a], away[b]
		return bytes.Compare(x[:], y[:])
	})
	return peers[:min(n, len(peers))]
}

// closestCache finds and caches the closest peers to the keys of cells: the keepers. It is safe
// for concurrent use.
type closestCache struct {
	k          *Keeper
	flights    singleflight.Group                     // by routing key; "" renews the set of all cells
	refreshing chan struct{}                          // semaphore of the lookups in the background
	own        *lru.Cache[records.CellKey, ownership] // has its own lock
	regions    regions                                // has its own lock
	likely     *foresight                             // has its own lock

	mu    sync.Mutex // guards the fields below; held for memory accesses only
	cells *lru.Cache[string, cachedSet]
	whole cachedSet // of every cell in a small network
	table int       // size of the routing table at the lookup of whole
}

// cachedSet is a cached keeper set; the zero value is empty. An old set still serves while a
// lookup in the background renews it, so callers wait only for cells without recent use.
type cachedSet struct {
	set     *keeperSet
	serving bool // this peer was a server of the DHT at the lookup
	fresh   time.Time
	until   time.Time
}

func newCachedSet(set *keeperSet, serving bool, now time.Time, ttl time.Duration) cachedSet {
	return cachedSet{set: set, serving: serving, fresh: now.Add(ttl), until: now.Add(2 * ttl)}
}

// uncertainSet caches the result of an incomplete lookup for a moment.
func uncertainSet(set *keeperSet, serving bool, now time.Time) cachedSet {
	until := now.Add(uncertainTTL)
	return cachedSet{set: set, serving: serving, fresh: until, until: until}
}

func newClosestCache(k *Keeper) *closestCache {
	cells, err := lru.New[string, cachedSet](maxCachedCells)
	own, err2 := lru.New[records.CellKey, ownership](maxCachedCells)
	if err = errors.Join(err, err2); err != nil {
		panic("keeper: " + err.Error()) // impossible: the size is a positive constant
	}
	return &closestCache{k: k, refreshing: make(chan struct{}, refreshes), own: own, likely: newForesight(), cells: cells}
}

// routingKey returns the DHT key of a cell: the multihash of its content id.
func routingKey(c records.CellKey) string {
	sum := sha256.Sum256([]byte(c.String()))
	return sha256Multihash + string(sum[:]) // c.CID().Hash(), of which a view needs tens of thousands
}

// sha256Multihash are the code and the length that precede a SHA-256 in a multihash.
const sha256Multihash = "\x12\x20"

// keepers returns the keepers of a cell. Concurrent calls for one cell share a lookup, which
// continues after the end of a caller's ctx. It fails only with ctx or after Close.
func (p *closestCache) keepers(ctx context.Context, c records.CellKey) (*keeperSet, error) {
	key := routingKey(c)
	now := p.k.Now()
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
		return r.Val.(*keeperSet), nil
	}
}

// keepersOf looks up the keepers of some cells, several at a time.
func (p *closestCache) keepersOf(ctx context.Context, cells []records.CellKey) ([]*keeperSet, error) {
	sets := make([]*keeperSet, len(cells))
	errs := make([]error, len(cells))
	lookUp := func(i int) { sets[i], errs[i] = p.keepers(ctx, cells[i]) }
	first := 0
	if len(cells) > 0 && p.k.Router.Size() < Network {
		lookUp(0) // in a small network the first answer applies to all cells
		first = 1
	}
	// One lookup answers for a region of cells. So many cells begin with few lookups.
	for width := 1; width < lookups && len(cells) > manyCells && first < len(cells); width *= 2 {
		some := min(width, len(cells)-first)
		bounded(width, some, func(i int) { lookUp(first + i) })
		first += some
	}
	bounded(lookups, len(cells)-first, func(i int) { lookUp(first + i) })
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return sets, nil
}

// refresh renews a cached set in the background. It does nothing if enough lookups are under way:
// a later call tries again.
func (p *closestCache) refresh(key string, whole bool) {
	flight := key
	if whole {
		flight = "" // one lookup renews all cells
	}
	if !p.k.inflight.enter() {
		return
	}
	select {
	case p.refreshing <- struct{}{}:
	default:
		p.k.inflight.leave()
		return
	}
	go func() {
		defer p.k.inflight.leave()
		defer func() { <-p.refreshing }()
		_, _, _ = p.flights.Do(flight, func() (any, error) { return p.lookup(key) })
	}()
}

// remembered returns the cached set of a key, and whether the set applies to all keys. It returns
// the zero value without a usable set.
func (p *closestCache) remembered(key string, now time.Time) (_ cachedSet, whole bool) {
	table := p.k.Router.Size()
	p.mu.Lock()
	defer p.mu.Unlock()
	serving := p.k.Router.Serving()
	if now.Before(p.whole.until) && p.table == table && p.whole.serving == serving {
		return p.whole, true
	}
	if e, ok := p.cells.Get(key); ok && now.Before(e.until) && e.serving == serving {
		return e, false
	}
	return cachedSet{}, false
}

// mistaken forgets the keepers of cells that a peer refused because it does not keep them: the lookup was made with an
// older routing table.
func (p *closestCache) mistaken(id peer.ID, cells []records.CellKey) {
	p.regions.forget(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.whole = cachedSet{}
	for _, c := range cells {
		p.cells.Remove(routingKey(c))
	}
}

// alone reports whether the last lookup found no other peer in the network. It is false before the
// first lookup. It asks no peers.
func (p *closestCache) alone() bool {
	placed, whole := p.remembered("", p.k.Now())
	return whole && placed.set.uncertain == nil && len(placed.set.peers) == 1 && placed.set.peers[0] == p.k.Self
}

// lookup asks the DHT and caches the result.
func (p *closestCache) lookup(key string) (*keeperSet, error) {
	defer p.likely.end(key)
	table := p.k.Router.Size()
	before := p.k.Router.Nearby(key, Network)
	others, err := p.findClosest(key)
	if p.k.ctx.Err() != nil {
		return nil, fault.New("keeper.lookup", fault.Unavailable, "the keeper is closed")
	}
	if err != nil {
		p.k.Logger.Debug("incomplete lookup of the keepers", "found", len(others), "error", err)
		if len(others) < Network {
			others = append(slices.Clone(others), p.k.Router.Nearby(key, Network)...)
		}
	}
	if table < Network { // a lost packet of the lookup makes no keeper of a small network less
		others = append(slices.Clone(others), p.connected(before)...)
	}
	serving := p.k.Router.Serving()
	self := p.k.Self
	if !serving && len(others) > 0 {
		self = "" // no keeper
	}
	set, whole := settle(key, self, others, table, err)
	p.remember(key, set, whole, table, serving)
	return set, nil
}

// connected returns those of some peers to which this peer has a connection.
func (p *closestCache) connected(ids []peer.ID) (out []peer.ID) {
	for _, id := range ids {
		if len(p.k.Host.Network().ConnsToPeer(id)) > 0 {
			out = append(out, id)
		}
	}
	return out
}

// settle returns the keepers of a cell from the result of a lookup and the size of the routing
// table. Self is empty for a peer that is no keeper. Whole reports a small network, where these peers keep every cell. A lookup that only ran
// out of time proceeded from far to near, so its result counts; a lookup without contact to many
// of the closest peers is uncertain.
func settle(key string, self peer.ID, others []peer.ID, table int, err error) (_ *keeperSet, whole bool) {
	if self != "" {
		others = append(slices.Clone(others), self)
	}
	all := nearest(key, others, Network+1)
	small := len(all) <= Network && table < Network // a poor lookup in a large network does not make the network small
	switch {
	case small && err == nil:
		return newKeeperSet(all, nil), true
	case len(all) >= Replicas && (err == nil || fault.KindOf(err) == fault.Timeout):
		return newKeeperSet(all[:Replicas], nil), false
	case len(all) >= Replicas:
		return newKeeperSet(all[:Replicas], err), false
	default:
		return newKeeperSet(all, err), small
	}
}

func (p *closestCache) remember(key string, set *keeperSet, whole bool, table int, serving bool) {
	now := p.k.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case whole && set.uncertain == nil:
		p.whole, p.table = newCachedSet(set, serving, now, wholeTTL), table
	case whole:
		p.whole, p.table = uncertainSet(set, serving, now), table
	case set.uncertain != nil:
		p.cells.Add(key, uncertainSet(set, serving, now))
	default:
		p.cells.Add(key, newCachedSet(set, serving, now, keeperSetTTL))
		p.whole = cachedSet{} // the network has grown
	}
}

// refreshSets renews the cached sets with a peer soon: the peer may be gone, and other peers may
// have its cells.
func (p *closestCache) refreshSets(id peer.ID) {
	p.regions.forget(id)
	soon := p.k.Now().Add(failedTTL)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range p.cells.Keys() {
		if e, ok := p.cells.Peek(key); ok && e.fresh.After(soon) && e.set.has(id) {
			e.fresh = soon
			p.cells.Add(key, e)
		}
	}
}

// accepts reports whether this peer accepts records of a cell.
func (p *closestCache) accepts(c records.CellKey) bool { return p.ownership(c).accepts }

// retains reports whether this peer must hold the records of a cell: publishers send them here, or
// would after a small change of the network.
func (p *closestCache) retains(c records.CellKey) bool { return p.ownership(c).retains }

// authoritative reports whether this peer's records of a cell count as complete: this peer is one
// of the Replicas closest, and has compared the cell with another keeper since.
func (p *closestCache) authoritative(c records.CellKey) bool {
	return p.ownership(c).authoritative && p.k.asker.clock.wrong() == ""
}

// unauthoritative returns the cells for which this peer has no authority, and the reason for a cell
// that it keeps all the same.
func (p *closestCache) unauthoritative(cells []records.CellKey) (lacking []records.CellKey, doubt string) {
	for _, c := range cells {
		own := p.ownership(c)
		if own.authoritative {
			continue
		}
		lacking = append(lacking, c)
		if own.accepts && doubt == "" {
			doubt = p.k.sync.doubt(c)
		}
	}
	return lacking, doubt
}

// ownership is a cached answer to whether this peer keeps a cell.
type ownership struct {
	accepts       bool // among the acceptWithin closest
	retains       bool // among the retainWithin closest
	authoritative bool // among the Replicas closest, and compared
	until         time.Time
	step          uint64 // of the knowledge at the time
}

func (p *closestCache) ownership(c records.CellKey) ownership {
	y := p.k.sync
	switch {
	case !p.k.Router.Serving() && !y.alone():
		return ownership{} // no keeper
	case p.k.Router.Size() < acceptWithin:
		return ownership{accepts: true, retains: true, authoritative: y.compared(c)}
	}
	table := y.table() // notices newcomers
	now, step := p.k.Now(), y.know.steps.Load()
	if own, ok := p.own.Get(c); ok && now.Before(own.until) && own.step == step {
		return own
	}
	closer := p.closer(table, routingKey(c))
	own := ownership{accepts: closer < acceptWithin, retains: closer < retainWithin, until: now.Add(ownershipTTL), step: step}
	own.authoritative = closer < Replicas && y.compared(c)
	p.own.Add(c, own)
	return own
}

// closer counts the peers of the routing table that are closer to a key than this peer, up to acceptWithin. The copy of a large
// routing table lacks peers.
func (p *closestCache) closer(table *tableState, key string) int {
	if len(table.peers) < maxTablePeers {
		return table.peerTable.closer(key, acceptWithin)
	}
	own, n := distanceOf(key, p.k.Self), 0
	for _, id := range p.k.Router.Nearby(key, acceptWithin) {
		if d := distanceOf(key, id); bytes.Compare(d[:], own[:]) < 0 {
			n++
		}
	}
	return n
}
