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

// keeperSet are the peers that keep a cell. It is immutable.
type keeperSet struct {
	peers []peer.ID // by id; never empty: who finds nobody keeps the cell itself
	id    string    // equal for equal sets

	// doubt is why peers that should keep the cell may be missing here; nil when the lookup settled it.
	doubt error
}

func newKeeperSet(peers []peer.ID, doubt error) *keeperSet {
	peers = slices.Clone(peers)
	slices.Sort(peers)
	var id strings.Builder
	for _, p := range peers {
		id.WriteByte(byte(len(p)))
		id.WriteString(string(p))
	}
	return &keeperSet{peers: peers, id: id.String(), doubt: doubt}
}

func (s *keeperSet) has(id peer.ID) bool {
	_, ok := slices.BinarySearch(s.peers, id)
	return ok
}

// distance is the XOR metric of Kademlia (Maymounkov and Mazières, 2002) between hashed
// keys, as kad-dht measures it. Distances compare bytewise.
type distance [sha256.Size]byte

func distanceOf(key string, id peer.ID) distance {
	d := distance(sha256.Sum256([]byte(key)))
	for i, b := range sha256.Sum256([]byte(id)) {
		d[i] ^= b
	}
	return d
}

// nearest gives up to n distinct peers closest to a key, nearest first. The argument is not changed.
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

// responsible reports whether self is among the n peers closest to a key, near being the
// n closest others that it knows, nearest first.
func responsible(key string, self peer.ID, near []peer.ID, n int) bool {
	if len(near) < n {
		return true
	}
	own, last := distanceOf(key, self), distanceOf(key, near[n-1])
	return bytes.Compare(own[:], last[:]) < 0
}

// places knows who keeps a cell. It is safe for concurrent use.
type places struct {
	k        *Keeper
	flights  singleflight.Group                   // by routing key; "" renews whole
	renewing chan struct{}                        // one for each lookup that nobody waits for
	own      *lru.Cache[records.CellKey, custody] // has its own lock
	regions  regions                              // likewise

	mu    sync.Mutex // guards what follows; held for memory accesses only
	cells *lru.Cache[string, placement]
	whole placement // of every cell, while everybody keeps everything
	table int       // size of the routing table when whole was found
}

// placement is a remembered answer; the zero value is none. It is renewed behind the
// caller's back once it is no longer fresh, so that only what was not asked for lately
// costs the asker a lookup.
type placement struct {
	set   *keeperSet
	fresh time.Time
	until time.Time // used until then
}

func placed(set *keeperSet, now time.Time, ttl time.Duration) placement {
	return placement{set: set, fresh: now.Add(ttl), until: now.Add(2 * ttl)}
}

func newPlaces(k *Keeper) *places {
	cells, err := lru.New[string, placement](cellsRemembered)
	own, err2 := lru.New[records.CellKey, custody](cellsRemembered)
	if err = errors.Join(err, err2); err != nil {
		panic("keeper: " + err.Error()) // impossible: the size is a positive constant
	}
	return &places{k: k, renewing: make(chan struct{}, renewals), own: own, cells: cells}
}

// routingKey is what a cell is looked up by: the multihash of its content id.
func routingKey(c records.CellKey) string { return string(c.CID().Hash()) }

// of gives the keepers of a cell. Callers that ask for one cell at the same time share a
// lookup, which outlives the caller that began it. It fails only with ctx or Close.
func (p *places) of(ctx context.Context, c records.CellKey) (*keeperSet, error) {
	key := routingKey(c)
	now := p.k.Now()
	known, whole := p.remembered(key, now)
	switch {
	case now.Before(known.fresh):
		return known.set, nil
	case now.Before(known.until):
		p.renew(key, whole)
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

// renew looks a placement up behind the caller's back, unless enough are being renewed:
// then a later caller does.
func (p *places) renew(key string, whole bool) {
	flight := key
	if whole {
		flight = "" // the lookup of any cell renews all
	}
	if !p.k.gate.enter() {
		return
	}
	select {
	case p.renewing <- struct{}{}:
	default:
		p.k.gate.leave()
		return
	}
	go func() {
		defer p.k.gate.leave()
		defer func() { <-p.renewing }()
		_, _, _ = p.flights.Do(flight, func() (any, error) { return p.lookup(key) })
	}()
}

// remembered gives the placement of a key, the zero one where none may be used, and
// whether it is that of every key.
func (p *places) remembered(key string, now time.Time) (_ placement, whole bool) {
	table := p.k.Router.Size()
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Before(p.whole.until) && p.table == table {
		return p.whole, true
	}
	if e, ok := p.cells.Get(key); ok && now.Before(e.until) {
		return e, false
	}
	return placement{}, false
}

// alone reports whether the last lookup found that this peer is the whole network. It
// asks nobody: before the first lookup it is false.
func (p *places) alone() bool {
	placed, whole := p.remembered("", p.k.Now())
	return whole && placed.set.doubt == nil && len(placed.set.peers) == 1
}

// lookup asks the DHT and remembers what it says.
func (p *places) lookup(key string) (*keeperSet, error) {
	table := p.k.Router.Size()
	others, err := p.closest(key)
	if p.k.ctx.Err() != nil {
		return nil, fault.New("keeper.lookup", fault.Unavailable, "the keeper is closed")
	}
	if err != nil {
		p.k.Logger.Debug("lookup not settled", "found", len(others), "error", err)
		if len(others) < Network {
			others = append(slices.Clone(others), p.k.Router.Nearby(key, Network)...)
		}
	}
	set, whole := settle(key, p.k.Self, others, table, err)
	p.remember(key, set, whole, table)
	return set, nil
}

// settle turns the outcome of a lookup, and the size of the routing table, into the
// keepers of a cell. Whole says that they keep every cell: a small network knows no others.
// A lookup that only lacked time went from far to near, and its answer stands; one that could
// not ask many of the closest peers leaves doubt.
func settle(key string, self peer.ID, others []peer.ID, table int, err error) (_ *keeperSet, whole bool) {
	all := nearest(key, append(slices.Clone(others), self), Network+1)
	small := len(all) <= Network && table < Network // a lookup that lost most of a large network is not a small one
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

func (p *places) remember(key string, set *keeperSet, whole bool, table int) {
	now := p.k.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case whole && set.doubt == nil:
		p.whole, p.table = placed(set, now, wholeTTL), table
	case whole:
		p.whole, p.table = placement{set, now.Add(doubtfulTTL), now.Add(doubtfulTTL)}, table
	case set.doubt != nil:
		p.cells.Add(key, placement{set, now.Add(doubtfulTTL), now.Add(doubtfulTTL)})
	default:
		p.cells.Add(key, placed(set, now, placementTTL))
		p.whole = placement{} // the network has outgrown it
	}
}

// failed has the answers that contain a peer looked up anew: it may be gone, and then
// others have taken its place.
func (p *places) failed(id peer.ID) {
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

// keeps reports whether this peer accepts a cell.
func (p *places) keeps(c records.CellKey) bool { return p.custody(c).kept }

// holds reports whether this peer is to hold on to a cell: publishers that know the network
// as this peer does bring it the cell's records, or would after a small change.
func (p *places) holds(c records.CellKey) bool { return p.custody(c).held }

// speaks reports whether what this peer holds of a cell counts as all there is: it is one of
// the Replicas closest, and has compared the cell with another keeper since it is.
func (p *places) speaks(c records.CellKey) bool { return p.custody(c).speaks }

// custody is a remembered answer to whether this peer keeps a cell.
type custody struct {
	kept   bool // is among the slack closest
	held   bool // ... among the heldBy closest
	speaks bool // ... among the Replicas closest, and has compared it
	until  time.Time
}

func (p *places) custody(c records.CellKey) custody {
	if p.k.Router.Size() < slack {
		return custody{kept: true, held: true, speaks: p.k.sync.compared(c)}
	}
	now := p.k.Now()
	if own, ok := p.own.Get(c); ok && now.Before(own.until) {
		return own
	}
	key := routingKey(c)
	near := p.k.Router.Nearby(key, slack)
	own := custody{
		kept: responsible(key, p.k.Self, near, slack), held: responsible(key, p.k.Self, near, heldBy), until: now.Add(custodyTTL),
	}
	own.speaks = responsible(key, p.k.Self, near, Replicas) && p.k.sync.compared(c)
	p.own.Add(c, own)
	return own
}
