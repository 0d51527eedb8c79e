package keeper

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/keeper/digest"
	"github.com/blackhole/blackhole/pkg/records"
)

// SYNC is the anti-entropy between keepers of the same cells: they compare their records and
// pull the missing ones. Each peer pulls for itself, so no peer receives unrequested records,
// and two peers that both pull end up equal.
const (
	syncEvery        = 30 * time.Second // default interval of the rounds, plus or minus syncJitter
	syncJitter       = 10               // percent
	syncSoon         = time.Second      // delay after a change of the routing table, which seldom comes alone
	syncGap          = 5 * time.Second  // minimum interval of rounds after changes of the table
	syncCall         = 10 * time.Second // timeout of one request
	syncPeer         = time.Minute      // timeout of all requests to one peer in a round
	syncLook         = 128              // nearest peers to examine for common cells
	syncPeers        = 64               // maximum partners of one round
	syncWidth        = 4                // partners at a time
	maxTablePeers    = 512              // peers copied from the routing table
	viewTTL          = 2 * time.Second  // lifetime of a view after a change of the index; longer for a large view
	viewSize         = 10_000           // records for each viewTTL
	viewMaxTTL       = time.Minute      // maximum age of a view with split cells, or with an expired record
	maxPulledEntries = 1 << 16          // cached versions that were pulled recently
	pulledTTL        = 10 * time.Minute // a pulled version is not pulled again for this long, whatever its result

	settledPartners = 2 // other keepers to compare a cell with before this peer answers alone
	roundsKept      = 8
)

// Bounds of SYNC messages, equal on both sides.
const (
	maxSyncCells   = 64         // cells of one request
	maxCellsListed = 4096       // cells of one response
	maxEntries     = 32768      // entries of one response
	maxListed      = 1 << 20    // entries from one partner in one round
	maxPull        = 512        // records of one PULL
	maxPulled      = 1 << 20    // bytes of the envelopes of one PULL
	fewEntries     = 64         // below this size all entries of a cell are shorter than its sums
	maxSyncRequest = 512 * 1024 // bytes: 64 cells with their sums

	// SYNC requests of one peer. It needs one for its round and one for its own records, and either may come twice: a request is
	// repeated on a new stream while the keeper still works on the copy from a stream that died.
	peerComparisons = 4
)

// tableNotifier is a Router that reports changes of its table.
type tableNotifier interface {
	// Changed returns a channel that closes when a peer next enters or leaves the table.
	Changed() <-chan struct{}
}

// syncer compares this peer's index with the other keepers of the same cells. One goroutine runs
// its rounds.
type syncer struct {
	k     *Keeper
	clock func() time.Time // of the runtime; Config.Now is the time of the records

	know    *knowledge
	last    atomic.Pointer[syncRound]
	pulled  *lru.Cache[digest.Entry, time.Time] // versions pulled recently, with their expiry
	pulling chan struct{}                       // semaphore of one: two peers do not send the same records

	making sync.Mutex           // held during the computation of a view
	view   atomic.Pointer[view] // written under making; nil before the first

	mu      sync.Mutex // guards current
	current *tableState
}

// tableState is the routing table at one moment.
type tableState struct {
	*peerTable
	changed <-chan struct{} // closed after a change; nil if the router does not report changes
	size    int
	serving bool // this peer is a server of the DHT
	made    time.Time
	checked time.Time // at or after made
}

// syncRound is the result of one anti-entropy round. It is immutable.
type syncRound struct {
	table  *tableState
	age    time.Duration       // of the routing table at the start
	done   map[peer.ID]partner // partners with a complete comparison
	alone  bool                // no other peer in the network
	before []*syncRound        // previous rounds, latest first, at most roundsKept, each without its own list
}

// partner is what a partner said of itself in a comparison.
type partner struct {
	whole    bool // it regards the network as small, as this peer does
	informed bool // it has compared with an informed keeper itself
}

func newSyncer(k *Keeper) *syncer {
	taken, err := lru.New[digest.Entry, time.Time](maxPulledEntries)
	if err != nil {
		panic("keeper: " + err.Error()) // impossible: the size is a positive constant
	}
	return &syncer{
		k: k, clock: time.Now, know: newKnowledge(k.Signals.Conditions, time.Now()), pulled: taken, pulling: make(chan struct{}, 1),
	}
}

// run makes rounds until ctx ends: at the start, every Limits.Sync, and soon after a change of the
// routing table, which moves responsibility. It compares with newcomers at once.
func (y *syncer) run(ctx context.Context) {
	y.begin(ctx)
	changed := y.changed()
	timer, meeting := time.NewTimer(syncSoon), time.NewTimer(0)
	defer timer.Stop()
	defer meeting.Stop()
	due := y.clock().Add(syncSoon)
	var began time.Time // zero after a round without a partner
	hasten := func() {
		now := y.clock()
		if soon := later(now.Add(syncSoon), began.Add(syncGap)); soon.Before(due) {
			due = soon
			timer.Reset(due.Sub(now))
		}
	}
	for n := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			changed = y.changed()
			y.table()
			hasten()
		case <-y.know.news:
			meeting.Reset(0)
			if y.know.late.Load() {
				hasten()
			}
		case <-meeting.C:
			if next := y.meet(ctx); !next.IsZero() {
				meeting.Reset(next.Sub(y.clock()))
			}
		case <-timer.C:
			began = y.clock()
			if !y.round(ctx) {
				began = time.Time{}
			}
			n++
			due = y.clock().Add(y.pause(n))
			timer.Reset(due.Sub(y.clock()))
		}
	}
}

// begin finds out whether this peer is alone: the first peer of a new network has all its records.
func (y *syncer) begin(ctx context.Context) {
	if y.k.Router.Size() > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, y.k.Limits.Lookup)
	defer cancel()
	if others, err := y.k.Router.Closest(ctx, string(y.k.Self), nil); err == nil && len(others) == 0 {
		y.know.setInformed(true, y.clock())
	}
}

// meet compares with the members of the routing table that this peer has not compared with. It returns
// the time of the next attempt; zero without one.
func (y *syncer) meet(ctx context.Context) (next time.Time) {
	if !y.k.Router.Serving() {
		return time.Time{}
	}
	table := y.table()
	ids, next := y.know.due(syncPeers, y.clock())
	bounded(meetAtOnce, len(ids), func(i int) {
		if ctx.Err() == nil {
			_, _ = y.compare(ctx, ids[i], table)
		}
	})
	if len(ids) > 0 {
		_, next = y.know.due(0, y.clock())
		next = later(next, y.clock())
	}
	return next
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// pause returns the time to the next round. It depends on the peer id, so that peers with the same
// start time drift apart.
func (y *syncer) pause(round int) time.Duration {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(y.k.Self), uint64(round)))
	span := y.k.Limits.Sync * 2 * syncJitter / 100
	pause := y.k.Limits.Sync - span/2 + time.Duration(float64(span)*float64(binary.BigEndian.Uint32(sum[:]))/(1<<32))
	if y.k.Router.Size() == 0 && !y.know.knows.Load() {
		return min(pause, joiningGrace) // without any peer: say so soon
	}
	if y.know.late.Load() {
		return min(pause, syncGap)
	}
	last := y.last.Load()
	if last != nil && len(last.done) == 0 && len(last.table.peers) > 0 {
		return min(pause, syncSoon*time.Duration(round)) // no partner answered: authority needs a comparison
	}
	if last != nil && y.k.Router.Size() > 0 && !last.steady() {
		return min(pause, last.table.settleTime()+syncSoon) // so that the last round soon counts as steady
	}
	return pause
}

// changed returns nil if the router does not report changes.
func (y *syncer) changed() <-chan struct{} {
	if r, ok := y.k.Router.(tableNotifier); ok {
		return r.Changed()
	}
	return nil
}

// table returns the current routing table.
func (y *syncer) table() *tableState {
	y.mu.Lock()
	defer y.mu.Unlock()
	size, now := y.k.Router.Size(), y.clock()
	if s := y.current; s != nil && !s.stale(size) && (s.changed != nil || now.Sub(s.checked) < ownershipTTL) {
		return s
	}
	s := &tableState{changed: y.changed(), size: size, serving: y.k.Router.Serving(), made: now, checked: now} // before the copy, so that no change is missed
	y.becomeKeeper(s.serving, now)
	others := y.k.Router.Nearby(string(y.k.Self), maxTablePeers)
	s.peerTable = newPeerTable(y.k.Self, others, size < acceptWithin)
	if old := y.current; old != nil && s.equal(old.peerTable) {
		s.peerTable, s.made = old.peerTable, old.made // a peer left and came back, or the router does not report changes
	}
	y.current = s
	y.know.observe(s.peerTable, now)
	return s
}

// knows reports whether a peer was in the routing table when this peer last looked.
func (y *syncer) knows(id peer.ID) bool {
	y.mu.Lock()
	t := y.current
	y.mu.Unlock()
	return t != nil && slices.ContainsFunc(t.peers, func(p hashedPeer) bool { return p.id == id })
}

// becomeKeeper notes whether this peer is a server of the DHT. A peer that becomes one begins as a
// joiner: nobody stored records here before. y.mu is held.
func (y *syncer) becomeKeeper(serving bool, now time.Time) {
	if old := y.current; old != nil && serving && !old.serving {
		y.know.setInformed(false, now)
	}
}

// stale reports whether the table has changed since.
func (s *tableState) stale(size int) bool {
	select {
	case <-s.changed:
		return true
	default:
		return size != s.size
	}
}

// settleTime returns the age from which on every publisher knows the table: publishers cache
// keeper sets for that long.
func (s *tableState) settleTime() time.Duration {
	if s.whole {
		return wholeTTL // publishers notice the change of a small network themselves
	}
	return 2 * keeperSetTTL
}

func (n *peerTable) equal(o *peerTable) bool {
	return n.whole == o.whole && slices.Equal(n.peers, o.peers)
}

// lifetime returns how long a view serves after changes of the index. Large views live longer, so
// that their computation stays a small part of a peer's work.
func (v *view) lifetime() time.Duration {
	return min(viewTTL*time.Duration(1+len(v.all)/viewSize), syncEvery)
}

// viewOf returns a view of the index, at most a little behind it.
func (y *syncer) viewOf(table *tableState) *view {
	y.making.Lock()
	defer y.making.Unlock()
	seq, now := y.k.Index.Seq(), y.k.Now()
	before := y.view.Load()
	if before != nil && before.table == table.peerTable && before.valid(seq, now, y.k.splits.any()) {
		return before
	}
	v := newView(y.k.Index, table.peerTable, now, y.k.splits, before)
	y.view.Store(v)
	return v
}

// outdate makes the next view include all changes so far.
func (y *syncer) outdate() {
	if v := y.view.Load(); v != nil {
		v.spent.Store(true)
	}
}

// round compares with all peers that share a cell with this peer: with one peer first, which
// brings most of the news, and then with several at a time. It reports false without such a peer. A
// peer that is no keeper compares with nobody.
func (y *syncer) round(ctx context.Context) bool {
	began := y.clock()
	table := y.table()
	var peers []peer.ID
	if table.serving {
		peers = y.partners(y.viewOf(table))
	}
	results := make([]error, len(peers))
	partners := make([]partner, len(peers))
	talk := func(i int) { partners[i], results[i] = y.compare(ctx, peers[i], table) }
	if len(peers) > 0 {
		talk(0)
		bounded(syncWidth, len(peers)-1, func(i int) { talk(i + 1) })
	}
	o := &syncRound{table: table, age: began.Sub(table.made), done: make(map[peer.ID]partner)}
	for i, id := range peers {
		if results[i] == nil {
			o.done[id] = partners[i]
		}
	}
	if len(peers) == 0 {
		others, err := y.k.Router.Closest(ctx, string(y.k.Self), nil)
		o.alone = err == nil && len(others) == 0
	}
	if ctx.Err() == nil {
		y.keep(o)
		if o.alone || len(o.done) > 0 {
			y.know.caughtUp(began.Add(-y.viewOf(table).lifetime())) // partners answer from views as old as that
		}
		if o.alone || o.fresh() && len(peers) > 0 && len(o.done) == len(peers) {
			y.know.setInformed(true, y.clock())
		}
		y.know.tellJoining(y.clock())
	}
	return len(peers) > 0
}

// fresh reports whether a round can found a new network, whose peers started together: no peer is
// informed, but all know each other for a while, and together they have all records.
func (o *syncRound) fresh() bool { return o.age >= freshAge }

// keep makes o the last round.
func (y *syncer) keep(o *syncRound) {
	if last := y.last.Load(); last != nil {
		bare := *last
		bare.before = nil
		o.before = append([]*syncRound{&bare}, last.before[:min(len(last.before), roundsKept-1)]...)
	}
	y.last.Store(o)
	y.k.closest.own.Purge() // authority may have changed
}

// compared reports whether this peer's records of a cell count as complete: it keeps the cell, and has
// compared it with another keeper since it became one, since it was cut off, and since other keepers
// joined or returned. The answer is always true for a peer that never compares.
func (y *syncer) compared(c records.CellKey) bool { return y.doubt(c) == "" }

// doubt returns why this peer's records of a kept cell may lack some; "" without a reason.
func (y *syncer) doubt(c records.CellKey) string {
	if y.k.Index.Crowded(y.k.Now()) {
		return "its index is full and may lack some"
	}
	if y.k.Limits.Sync < 0 {
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
func (y *syncer) alone() bool { return y.k.closest.alone() && y.know.neverMet() }

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

// partners returns the peers to compare with: all peers in a small network; otherwise the nearest
// peers, which keep most of this peer's cells, and other peers that share a cell. Recently failed
// peers are last.
func (y *syncer) partners(v *view) []peer.ID {
	var ids []peer.ID
	for i := range v.table.peers[:min(len(v.table.peers), syncLook)] {
		if v.table.whole || i < Network || y.sharesAny(v, v.table.peers[i].hash) {
			ids = append(ids, v.table.peers[i].id)
		}
	}
	now := y.k.Now()
	slices.SortStableFunc(ids, func(a, b peer.ID) int {
		return btoi(y.k.asker.stats.avoided(a, now)) - btoi(y.k.asker.stats.avoided(b, now))
	})
	return ids[:min(len(ids), syncPeers)]
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (y *syncer) sharesAny(v *view, hash [sha256.Size]byte) bool {
	for _, h := range v.cells().order {
		if h.radius.covers(hash) {
			return true
		}
	}
	return false
}

// settled reports whether this peer's index answers alone for all the cells: this peer keeps them,
// and its last round compared them with settledPartners other keepers, or all of them, at a time
// when the routing table had long been in its present state. Without partners it is true only if
// no other peer was found.
func (y *syncer) settled(cells []records.CellKey) bool {
	if y.alone() {
		return true
	}
	o := y.last.Load()
	if o == nil || len(o.table.peers) == 0 || !o.table.serving || o.table.stale(y.k.Router.Size()) || !o.steady() {
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
