package keeper

import (
	"bytes"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/records"
)

const (
	ownershipTTL  = 10 * time.Second // lifetime of the answer whether this peer keeps a cell
	maxTablePeers = 512              // peers copied from the routing table
)

// Authority knows which cells this peer keeps, and whether its records of them count as complete. It is safe for concurrent use.
type Authority struct {
	*Env
	closest *closestCache
	wrong   func() string    // describes the fault of this peer's clock; "" for a right or unknown one
	clock   func() time.Time // of the runtime; Config.Now is the time of the records
	know    *knowledge
	own     *lru.Cache[records.CellKey, ownership] // has its own lock
	last    atomic.Pointer[syncRound]

	mu      sync.Mutex // guards current
	current *tableState
}

func newAuthority(closest *closestCache, wrong func() string) *Authority {
	e := closest.Env
	return &Authority{
		Env: e, closest: closest, wrong: wrong, clock: time.Now, know: newKnowledge(e.Signals.Conditions, time.Now()),
		own: newCache[records.CellKey, ownership](maxCachedCells),
	}
}

// accepts reports whether this peer accepts records of a cell.
func (y *Authority) accepts(c records.CellKey) bool { return y.ownership(c).accepts }

// retains reports whether this peer must hold the records of a cell: publishers send them here, or
// would after a small change of the network.
func (y *Authority) retains(c records.CellKey) bool { return y.ownership(c).retains }

// authoritative reports whether this peer's records of a cell count as complete: this peer is one
// of the Replicas closest, and has compared the cell with another keeper since.
func (y *Authority) authoritative(c records.CellKey) bool {
	return y.ownership(c).authoritative && y.wrong() == ""
}

// unauthoritative returns the cells for which this peer has no authority, and the reason for a cell
// that it keeps all the same.
func (y *Authority) unauthoritative(cells []records.CellKey) (lacking []records.CellKey, doubt string) {
	for _, c := range cells {
		own := y.ownership(c)
		if own.authoritative {
			continue
		}
		lacking = append(lacking, c)
		if own.accepts && doubt == "" {
			doubt = y.doubt(c)
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

func (y *Authority) ownership(c records.CellKey) ownership {
	switch {
	case !y.Router.Serving() && !y.alone():
		return ownership{} // no keeper
	case y.Router.Size() < acceptWithin:
		return ownership{accepts: true, retains: true, authoritative: y.compared(c)}
	}
	table := y.table() // notices newcomers
	now, step := y.Now(), y.know.steps.Load()
	if own, ok := y.own.Get(c); ok && now.Before(own.until) && own.step == step {
		return own
	}
	closer := y.closer(table, routingKey(c))
	own := ownership{accepts: closer < acceptWithin, retains: closer < retainWithin, until: now.Add(ownershipTTL), step: step}
	own.authoritative = closer < Replicas && y.compared(c)
	y.own.Add(c, own)
	return own
}

// closer counts the peers of the routing table that are closer to a key than this peer, up to acceptWithin. The copy of a large
// routing table lacks peers.
func (y *Authority) closer(table *tableState, key string) int {
	if len(table.peers) < maxTablePeers {
		return table.peerTable.closer(key, acceptWithin)
	}
	own, n := distanceOf(key, y.Self), 0
	for _, id := range y.Router.Nearby(key, acceptWithin) {
		if d := distanceOf(key, id); bytes.Compare(d[:], own[:]) < 0 {
			n++
		}
	}
	return n
}

// compared reports whether this peer's records of a cell count as complete: it keeps the cell, and has
// compared it with another keeper since it became one, since it was cut off, and since other keepers
// joined or returned. The answer is always true for a peer that never compares.
func (y *Authority) compared(c records.CellKey) bool { return y.doubt(c) == "" }

// doubt returns why this peer's records of a kept cell may lack some; "" without a reason.
func (y *Authority) doubt(c records.CellKey) string {
	if y.Index.Crowded(y.Now()) {
		return "its index is full and may lack some"
	}
	if y.Limits.Sync < 0 {
		return ""
	}
	y.know.alive(y.clock()) // a query may be the first event after a suspension
	table := y.table()
	if y.alone() {
		return ""
	}
	key := routingKey(c)
	if why := y.know.doubt(func() (radius, bool) { return table.radiusOf(key) }, y.clock()); why != "" {
		return why
	}
	if table.whole {
		return ""
	}
	last := y.last.Load()
	if last == nil {
		return "it has not compared its records with another keeper yet"
	}
	for _, o := range append([]*syncRound{last}, last.before...) {
		if kept, met := o.comparedKey(key); met {
			return ""
		} else if !kept {
			break
		}
	}
	return "it became a keeper of the cell and has not compared it with another keeper yet"
}

// alone reports whether this peer never met another one: then it keeps all cells.
func (y *Authority) alone() bool { return y.closest.alone() && y.know.neverMet() }

// comparedKey reports whether this peer kept a cell at the time of the round, and whether it
// compared the cell with an informed keeper, or with all keepers of a new network, or was alone.
func (o *syncRound) comparedKey(key string) (kept, met bool) {
	if o.alone {
		return true, true
	}
	if o.table.whole {
		return true, len(o.done) > 0
	}
	r, kept := o.table.radiusOf(key)
	if !kept {
		return false, false
	}
	all := true
	for _, n := range o.table.peers {
		if !r.covers(n.hash) {
			continue
		}
		p, done := o.done[n.id]
		if done && p.informed {
			return true, true
		}
		all = all && done
	}
	return true, all && o.fresh()
}

// settled reports whether this peer's index answers alone for all the cells: this peer keeps them,
// and its last round compared them with settledPartners other keepers, or all of them, at a time
// when the routing table had long been in its present state. Without partners it is true only if
// no other peer was found.
func (y *Authority) settled(cells []records.CellKey) bool {
	if y.alone() {
		return true
	}
	o := y.last.Load()
	if o == nil || len(o.table.peers) == 0 || !o.table.serving || o.table.stale(y.Router.Size()) || !o.steady() {
		return false
	}
	unmet := *y.know.unmet.Load()
	return !slices.ContainsFunc(cells, func(c records.CellKey) bool {
		return !o.covers(c) || len(unmet) > 0 && y.doubt(c) != ""
	}) && y.know.knows.Load() && !y.know.late.Load()
}

// steady reports whether the table was stable for so long before the round that all publishers
// used it.
func (o *syncRound) steady() bool { return o.age >= o.table.settleTime() }

// covers reports whether the round compared a cell with enough keepers.
func (o *syncRound) covers(c records.CellKey) bool {
	if o.table.whole {
		return o.enough(o.table.ids(), true)
	}
	r, kept := o.table.radiusOf(routingKey(c))
	return kept && o.enough(o.table.keepers(&r), false)
}

// enough reports whether the round compared with settledPartners of the keepers, or with all. With
// whole, only peers count that regard the network as small too.
func (o *syncRound) enough(keepers []peer.ID, whole bool) bool {
	n := 0
	for _, id := range keepers {
		if p, ok := o.done[id]; ok && (p.whole || !whole) {
			n++
		}
	}
	return n >= min(settledPartners, len(keepers))
}

// Epoch grows when this peer may have missed changes: after it was cut off, and when keepers join or
// return. Answers of earlier epochs are not up to date.
func (y *Authority) Epoch() uint64 {
	y.know.alive(y.clock())
	return y.know.epoch.Load()
}

// knows reports whether a peer was in the routing table when this peer last looked.
func (y *Authority) knows(id peer.ID) bool {
	y.mu.Lock()
	t := y.current
	y.mu.Unlock()
	return t != nil && slices.ContainsFunc(t.peers, func(p hashedPeer) bool { return p.id == id })
}

// fallBehind records that this peer lacks changes that other keepers have.
func (y *Authority) fallBehind() { y.know.lacks(y.clock()) }

// heard records a request of a peer.
func (y *Authority) heard(id peer.ID) { y.know.heard(id, y.clock()) }
