package keep

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/condition"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	ownershipTTL  = 10 * time.Second // lifetime of the answer whether this peer keeps a cell
	maxTablePeers = 512              // peers copied from the routing table
)

// Authority knows which cells this peer keeps, and whether its records of them count as complete. It is safe for concurrent use.
type Authority struct {
	*protocol.Life
	AuthorityConfig
	Closest *Closest
	Clock   func() time.Time // of the runtime; Now is the time of the records
	Know    *knowledge
	// Lacks says why this peer may lack records of a cell; "" without a reason. Set it before the first use.
	Lacks func(records.CellKey) string
	own   *lru.Cache[records.CellKey, ownership] // has its own lock
	Last  atomic.Pointer[Round]

	mu      sync.Mutex // guards current
	current *TableState
}

// AuthorityConfig is what an Authority uses.
type AuthorityConfig struct {
	Router     protocol.Router
	Crowded    func(now time.Time) bool // the index has dropped living records
	ClockFault func() string            // the fault of this peer's clock; "" for a right or unknown one
	Compares   bool                     // this peer compares its records with other keepers
	Conditions *condition.Set           // nil keeps none
}

// NewAuthority returns the authority of a peer that has not compared yet.
func NewAuthority(closest *Closest, c AuthorityConfig) *Authority {
	y := &Authority{
		Life: closest.Life, AuthorityConfig: c, Closest: closest, Clock: time.Now,
		Lacks: func(records.CellKey) string { return "" }, Know: newKnowledge(c.Conditions, time.Now()),
		own: bounded.Shared[records.CellKey, ownership](maxCachedCells),
	}
	if r, ok := c.Router.(suspectReporter); ok {
		y.Know.refuses = r.Refuses
	}
	return y
}

// Accepts reports whether this peer accepts records of a cell.
func (y *Authority) Accepts(c records.CellKey) bool { return y.ownership(c).accepts }

// Retains reports whether this peer must hold the records of a cell: publishers send them here, or
// would after a small change of the network.
func (y *Authority) Retains(c records.CellKey) bool { return y.ownership(c).retains }

// Authoritative reports whether this peer's records of a cell count as complete: this peer is one
// of the Replicas closest, and has compared the cell with another keeper since.
func (y *Authority) Authoritative(c records.CellKey) bool {
	return y.ownership(c).authoritative && y.ClockFault() == ""
}

// Unauthoritative returns the cells for which this peer has no authority, and the reason for a cell
// that it keeps all the same.
func (y *Authority) Unauthoritative(cells []records.CellKey) (lacking []records.CellKey, doubt string) {
	for _, c := range cells {
		own := y.ownership(c)
		if own.authoritative {
			continue
		}
		lacking = append(lacking, c)
		if own.accepts && doubt == "" {
			doubt = y.Doubt(c)
		}
	}
	return lacking, doubt
}

// ownership is a cached answer to whether this peer keeps a cell.
type ownership struct {
	accepts       bool // among the AcceptWithin closest, or in the region
	retains       bool // among the retainWithin closest
	authoritative bool // among the Replicas closest, and compared
	until         time.Time
	step          uint64 // of the knowledge at the time
}

func (y *Authority) ownership(c records.CellKey) ownership {
	switch {
	case !y.Router.Serving() && !y.Alone():
		return ownership{} // no keeper
	case y.Router.Size() < AcceptWithin:
		return ownership{accepts: true, retains: true, authoritative: y.compared(c)}
	}
	table := y.Table() // notices newcomers
	now, step := y.Now(), y.Know.steps.Load()
	if own, ok := y.own.Get(c); ok && now.Before(own.until) && own.step == step {
		return own
	}
	closer := y.closer(table, KeyOf(c))
	own := ownership{accepts: closer < AcceptWithin || y.inRegion(table, KeyOf(c)), retains: closer < retainWithin, until: now.Add(ownershipTTL), step: step}
	own.authoritative = closer < Replicas && y.compared(c)
	y.own.Add(c, own)
	return own
}

// inRegion reports whether this peer may be in the region of a key. Nobody stores here for that without cause. The smaller estimate counts:
// whoever puts peers next to this one makes the other no greater.
func (y *Authority) inRegion(table *TableState, key string) bool {
	size := sizeBy(table.self.Hash, table.Peers)
	if known := y.Closest.sizes.median(key, leastSample, y.Now()); known > 0 {
		size = min(size, known)
	}
	return size*HashOf(key).xor(table.self.Hash).share() < acceptedRegions*regionPeers
}

// closer counts the peers of the routing table that are closer to a key than this peer, up to AcceptWithin. The copy of a large
// routing table lacks peers.
func (y *Authority) closer(table *TableState, key string) int {
	if len(table.Peers) < maxTablePeers {
		return table.Table.closer(key, AcceptWithin)
	}
	target, n := HashOf(key), 0
	own := target.xor(HashOf(string(y.Self)))
	for _, id := range y.Router.Nearby(key, AcceptWithin) {
		if target.xor(HashOf(string(id))).less(own) {
			n++
		}
	}
	return n
}

// compared reports whether this peer's records of a cell count as complete: it keeps the cell, and has
// compared it with another keeper since it became one, since it was cut off, and since other keepers
// joined or returned. The answer is always true for a peer that never compares.
func (y *Authority) compared(c records.CellKey) bool { return y.Doubt(c) == "" }

// Doubt returns why this peer's records of a kept cell may lack some; "" without a reason.
func (y *Authority) Doubt(c records.CellKey) string {
	if y.Crowded(y.Now()) {
		return "its index is full and may lack some"
	}
	if why := y.Lacks(c); why != "" {
		return why
	}
	if !y.Compares {
		return ""
	}
	y.Know.alive(y.Clock()) // a query may be the first event after a suspension
	table := y.Table()
	if y.Alone() {
		return ""
	}
	key := KeyOf(c)
	if why := y.Know.doubt(func() (Radius, bool) { return table.RadiusOf(key) }, y.Clock()); why != "" {
		return why
	}
	if table.Whole {
		return ""
	}
	last := y.Last.Load()
	if last == nil {
		return "it has not compared its records with another keeper yet"
	}
	for _, o := range append([]*Round{last}, last.before...) {
		if kept, met := o.comparedKey(key); met {
			return ""
		} else if !kept {
			break
		}
	}
	return "it became a keeper of the cell and has not compared it with another keeper yet"
}

// Alone reports whether this peer never met another one: then it keeps all cells.
func (y *Authority) Alone() bool { return y.Closest.alone() && y.Know.neverMet() }

// comparedKey reports whether this peer kept a cell at the time of the round, and whether it
// compared the cell with an informed keeper, or with all keepers of a new network, or was alone.
func (o *Round) comparedKey(key string) (kept, met bool) {
	if o.Alone {
		return true, true
	}
	if o.Table.Whole {
		return true, len(o.Done) > 0
	}
	r, kept := o.Table.RadiusOf(key)
	if !kept {
		return false, false
	}
	all := true
	for _, n := range o.Table.Peers {
		if !r.Covers(n.Hash) {
			continue
		}
		p, done := o.Done[n.Id]
		if done && p.Informed {
			return true, true
		}
		all = all && done
	}
	return true, all && o.Fresh()
}

// Settled reports whether this peer's index answers alone for all the cells: this peer keeps them,
// and its last round compared them with settledPartners other keepers, or all of them, at a time
// when the routing table had long been in its present state. Without partners it is true only if
// no other peer was found.
func (y *Authority) Settled(cells []records.CellKey) bool {
	if y.Alone() {
		return true
	}
	o := y.Last.Load()
	if o == nil || len(o.Table.Peers) == 0 || !o.Table.Serving || o.Table.stale(y.Router.Size()) || !o.Steady() {
		return false
	}
	unmet := *y.Know.unmet.Load()
	return !slices.ContainsFunc(cells, func(c records.CellKey) bool {
		return !o.covers(c) || y.Lacks(c) != "" || len(unmet) > 0 && y.Doubt(c) != ""
	}) && y.Know.Knows.Load() && !y.Know.Late.Load()
}

// Steady reports whether the table was stable for so long before the round that all publishers
// used it.
func (o *Round) Steady() bool { return o.Age >= o.Table.SettleTime() }

// covers reports whether the round compared a cell with enough keepers.
func (o *Round) covers(c records.CellKey) bool {
	if o.Table.Whole {
		return o.enough(o.Table.Ids(), true)
	}
	r, kept := o.Table.RadiusOf(KeyOf(c))
	return kept && o.enough(o.Table.keepers(&r), false)
}

// enough reports whether the round compared with settledPartners of the keepers, or with all. With
// whole, only peers count that regard the network as small too.
func (o *Round) enough(keepers []peer.ID, whole bool) bool {
	n := 0
	for _, id := range keepers {
		if p, ok := o.Done[id]; ok && (p.Whole || !whole) {
			n++
		}
	}
	return n >= min(settledPartners, len(keepers))
}

// Epoch grows when this peer may have missed changes: after it was cut off, and when keepers join or
// return. Answers of earlier epochs are not up to date.
func (y *Authority) Epoch() uint64 {
	y.Know.alive(y.Clock())
	return y.Know.epoch.Load()
}

// Knows reports whether a peer was in the routing table when this peer last looked.
func (y *Authority) Knows(id peer.ID) bool {
	y.mu.Lock()
	t := y.current
	y.mu.Unlock()
	return t != nil && slices.ContainsFunc(t.Peers, func(p Peer) bool { return p.Id == id })
}

// Renew forgets the answers whether this peer's cells are complete: what they lack has changed.
func (y *Authority) Renew() { y.own.Purge() }

// FallBehind records that this peer lacks changes that other keepers have.
func (y *Authority) FallBehind() { y.Know.lacks(y.Clock()) }

// Await records a change of a moment ago that another keeper has: this peer falls behind if it does not come.
func (y *Authority) Await(r *records.Record) { y.Know.Await(r.Name(), r.Sequence(), y.Clock()) }
