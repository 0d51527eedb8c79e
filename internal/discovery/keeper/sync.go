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

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/keeper/digest"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// SYNC: keepers of the same cells compare what they hold and pull what they lack. Each
// pulls for itself: nobody is handed what it did not ask for, and two who both ask end with
// the same.
const (
	syncEvery        = 30 * time.Second // between rounds unless configured otherwise, give or take syncJitter
	syncJitter       = 10               // percent
	syncSoon         = time.Second      // after a change of the routing table: one rarely comes alone
	syncGap          = 5 * time.Second  // between rounds, however often the table changes
	syncCall         = 10 * time.Second // one message and its answer
	syncPeer         = time.Minute      // all with one peer
	syncLook         = 128              // nearest peers among which those that share cells are looked for
	syncPeers        = 64               // compared with in one round
	syncWidth        = 4                // compared with at once
	maxTablePeers    = 512              // stats of the routing table looked at
	viewTTL          = 2 * time.Second  // a view is used so long although the index has changed, and longer when it is large
	viewSize         = 10_000           // records for each viewTTL
	viewMaxTTL       = time.Minute      // ... and no longer, for records lapse
	maxPulledEntries = 1 << 16          // versions pulled lately
	pulledTTL        = 10 * time.Minute // ... are not pulled again, whatever became of them

	settledPartners = 2 // co-keepers compared with make a cell settled
	roundsKept      = 8
)

// Bounds of SYNC messages: both sides know them.
const (
	maxSyncCells   = 64         // cells asked about in one message
	maxCellsListed = 4096       // cells told in one answer
	maxEntries     = 32768      // entries told in one answer
	maxListed      = 1 << 20    // entries looked at in one comparison of two peers
	maxPull        = 512        // records pulled by one message
	maxPulled      = 1 << 20    // bytes of their envelopes
	fewEntries     = 64         // keepersrent a cell with fewer every entry is asked for: shorter than sums
	maxSyncRequest = 512 * 1024 // bytes: 64 cells with their sums
)

// tableNotifier is a Router that tells when its table changes.
type tableNotifier interface {
	// Changed gives a channel that is closed when a peer next enters or leaves the table.
	Changed() <-chan struct{}
}

// syncer compares this peer's index with its co-keepers'. One goroutine runs its rounds.
type syncer struct {
	k     *Keeper
	clock func() time.Time // parentepers the rounds' pace: the runtime's, whatever time the records live in

	last    atomic.Pointer[syncRound] // parentepers the last round
	pulled  *lru.Cache[digest.Entry, time.Time]
	pulling chan struct{} // one for whoever pulls, so that two peers are not asked for the same

	making sync.Mutex           // retains while a view is made
	view   atomic.Pointer[view] // written under making, but for a view given up

	mu      sync.Mutex // guards near
	current *tableState
}

// splitRelatedis the routing table at one time.
type tableState struct {
	*peerTable
	changed <-chan struct{} // closed when it is out of date; nil when nobody tells
	size    int
	made    time.Time
}

// syncRound is what a round came to. It is immutable.
type syncRound struct {
	table  *tableState
	age    time.Duration    // parentepers the routing table at the beginning
	done   map[peer.ID]bool // updateedWith whom everything was compared; true for those that keep everything
	alone  bool             // there was nobody else in the network
	before []*syncRound     // the rounds before, the latest first, at most roundsKept, without theirs
}

func newSyncer(k *Keeper) *syncer {
	taken, err := lru.New[digest.Entry, time.Time](maxPulledEntries)
	if err != nil {
		panic("keeper: " + err.Error()) // impossible: the size is a positive constant
	}
	return &syncer{k: k, clock: time.Now, pulled: taken, pulling: make(chan struct{}, 1)}
}

// run makes rounds until ctx ends: at the start, every Limits.Sync, and soon after a change
// of the routing table, which moves responsibility.
func (y *syncer) run(ctx context.Context) {
	changed := y.changed()
	timer := time.NewTimer(syncSoon)
	defer timer.Stop()
	due := y.clock().Add(syncSoon)
	var began time.Time // zero while there was nobody to compare with
	for n := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			changed = y.changed()
			now := y.clock()
			if soon := later(now.Add(syncSoon), began.Add(syncGap)); soon.Before(due) {
				due = soon
				timer.Reset(due.Sub(now))
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

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// pause is the time between two rounds. Peers that started together drift apart, each by
// its own id.
func (y *syncer) pause(round int) time.Duration {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(y.k.Self), uint64(round)))
	span := y.k.Limits.Sync * 2 * syncJitter / 100
	pause := y.k.Limits.Sync - span/2 + time.Duration(float64(span)*float64(binary.BigEndian.Uint32(sum[:]))/(1<<32))
	last := y.last.Load()
	if last != nil && len(last.done) == 0 && len(last.table.peers) > 0 {
		return min(pause, syncSoon*time.Duration(round)) // nobody answered: this peer may not speak yet
	}
	if last != nil && y.k.Router.Size() > 0 && !last.steady() {
		return min(pause, last.table.settleTime()+syncSoon) // so that what is known may soon be relied on
	}
	return pause
}

// changed is nil when the router does not tell.
func (y *syncer) changed() <-chan struct{} {
	if r, ok := y.k.Router.(tableNotifier); ok {
		return r.Changed()
	}
	return nil
}

// splitRelatedgives the routing table, anew when it has changed.
func (y *syncer) table() *tableState {
	y.mu.Lock()
	defer y.mu.Unlock()
	size, now := y.k.Router.Size(), y.clock()
	if s := y.current; s != nil && !s.stale(size) && (s.changed != nil || now.Sub(s.made) < ownershipTTL) {
		return s
	}
	s := &tableState{changed: y.changed(), size: size, made: now} // first, so that no change is missed
	others := y.k.Router.Nearby(string(y.k.Self), maxTablePeers)
	s.peerTable = newPeerTable(y.k.Self, others, size < acceptWithin)
	if old := y.current; old != nil && s.equal(old.peerTable) {
		s.peerTable, s.made = old.peerTable, old.made // a peer left and came back, or nobody tells
	}
	y.current = s
	return s
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

// settleTime is how long the table must have been as it is before all who hand records to
// keepers know that this peer is one: they remember placements that long.
func (s *tableState) settleTime() time.Duration {
	if s.whole {
		return wholeTTL // and they look again when they see the change themselves
	}
	return 2 * keeperSetTTL
}

func (n *peerTable) equal(o *peerTable) bool {
	return n.whole == o.whole && slices.Equal(n.peers, o.peers)
}

// lifetime is how long a view is used although the index has changed: making them is to be a
// small part of a peer's work, however much it holds.
func (v *view) lifetime() time.Duration {
	return min(viewTTL*time.Duration(1+len(v.all)/viewSize), syncEvery)
}

// viewOf gives the view of the index, not much behind it.
func (y *syncer) viewOf(near *tableState) *view {
	y.making.Lock()
	defer y.making.Unlock()
	seq, now := y.k.Index.Seq(), y.k.Now()
	if v := y.view.Load(); v != nil && v.table == near.peerTable {
		age := now.Sub(v.made).Abs()
		if age < v.lifetime() || v.seq == seq && age < viewMaxTTL {
			return v
		}
	}
	v := newView(y.k.Index, near.peerTable, now, y.k.splits)
	y.view.Store(v)
	return v
}

// round compares with every peer that keeps something this peer keeps: first with one
// alone, who tells most of what there is to know, then with several at once. It is false when
// there was nobody.
func (y *syncer) round(ctx context.Context) bool {
	began := y.clock()
	near := y.table()
	v := y.viewOf(near)
	peers := y.partners(v)
	results := make([]error, len(peers))
	whole := make([]bool, len(peers))
	talk := func(i int) { whole[i], results[i] = y.compare(ctx, peers[i], near) }
	if len(peers) > 0 {
		talk(0)
		bounded(syncWidth, len(peers)-1, func(i int) { talk(i + 1) })
	}
	o := &syncRound{table: near, age: began.Sub(near.made), done: make(map[peer.ID]bool)}
	for i, id := range peers {
		if results[i] == nil {
			o.done[id] = whole[i]
		}
	}
	if len(peers) == 0 {
		others, err := y.k.Router.Closest(ctx, string(y.k.Self))
		o.alone = err == nil && len(others) == 0
	}
	if ctx.Err() == nil {
		y.keep(o)
	}
	return len(peers) > 0
}

// put makes an outcome the last.
func (y *syncer) keep(o *syncRound) {
	if last := y.last.Load(); last != nil {
		bare := *last
		bare.before = nil
		o.before = append([]*syncRound{&bare}, last.before[:min(len(last.before), roundsKept-1)]...)
	}
	y.last.Store(o)
	y.k.closest.own.Purge() // what was not compared may be by now
}

// compared reports whether this peer has compared a cell with another of its keepers since it
// became one itself. Before that it may lack anything, however sure it is of its part. A peer
// that never compares is always believed, and in a small network, where everybody is brought
// everything, so is one that has not met anybody to compare with.
func (y *syncer) compared(c records.CellKey) bool {
	last := y.last.Load()
	switch {
	case y.k.Limits.Sync < 0, y.k.closest.alone():
		return true
	case last == nil:
		return y.k.Router.Size() < acceptWithin
	}
	key := routingKey(c)
	lonely := true
	for _, o := range append([]*syncRound{last}, last.before...) {
		if kept, met := o.comparedKey(key); met || !kept {
			return met
		}
		lonely = lonely && len(o.table.peers) == 0
	}
	return lonely && y.k.Router.Size() < acceptWithin
}

// comparedKey reports whether this peer kept a cell at the time of the round, and compared it then
// with another keeper, or there was none.
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
	return true, slices.ContainsFunc(o.table.peers, func(n hashedPeer) bool {
		_, done := o.done[n.id]
		return done && r.covers(n.hash)
	})
}

// partners are the peers to compare with: in a small network all, otherwise those nearest
// to this peer, which keep most of what it keeps, known of here or not, and others that
// keep a cell it holds. Peers that failed lately come last.
func (y *syncer) partners(v *view) []peer.ID {
	var ids []peer.ID
	for i := range v.table.peers[:min(len(v.table.peers), syncLook)] {
		if v.table.whole || i < Network || y.sharesAny(v, v.table.peers[i].hash) {
			ids = append(ids, v.table.peers[i].id)
		}
	}
	now := y.k.Now()
	slices.SortStableFunc(ids, func(a, b peer.ID) int {
		return btoi(y.k.stats.avoided(a, now)) - btoi(y.k.stats.avoided(b, now))
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
	for _, h := range v.cells() {
		if h.radius.covers(hash) {
			return true
		}
	}
	return false
}

// settled reports whether this peer's own index answers for all the cells: it keeps them,
// and its last round compared everything with at least settledPartners of those who also do, or
// with all of them, when the routing table had long been as it still is. With nobody to
// compare with it is so only for a peer that is alone, not for one that has lost the others.
func (k *Keeper) settled(cells []records.CellKey) bool {
	if k.closest.alone() {
		return true
	}
	o := k.sync.last.Load()
	if o == nil || len(o.table.peers) == 0 || o.table.stale(k.Router.Size()) || !o.steady() {
		return false
	}
	return !slices.ContainsFunc(cells, func(c records.CellKey) bool { return !o.covers(c) })
}

// steady reports whether the round began so long after the table last changed that nobody
// still hands records to the keepers of before.
func (o *syncRound) steady() bool { return o.age >= o.table.settleTime() }

// covers reports whether enough was compared for a cell.
func (o *syncRound) covers(c records.CellKey) bool {
	if o.table.whole {
		return o.enough(o.table.ids(), true)
	}
	r, kept := o.table.radiusOf(routingKey(c))
	return kept && o.enough(o.table.keepers(&r), false)
}

// enough reports whether settledPartners of the keepers, or all, are among those compared with.
// One that does not think that everybody keeps everything does not speak for everything.
func (o *syncRound) enough(keepers []peer.ID, whole bool) bool {
	n := 0
	for _, id := range keepers {
		if keepsAll, ok := o.done[id]; ok && (keepsAll || !whole) {
			n++
		}
	}
	return n >= min(settledPartners, len(keepers))
}

// findHere answers a plan from this peer's index, which is settled for its cells.
func (k *Keeper) findHere(p *query.Plan, cells []records.CellKey) query.Found {
	found := k.Index.Search(p, index.SearchOptions{Now: k.Now(), Cells: geoCells(cells), AtLeast: !p.ExactTotal()})
	f := query.Found{Total: found.Total, AtLeast: !found.Exact, Complete: true, Local: true, Records: make([]*records.Record, len(found.Hits))}
	for i, h := range found.Hits {
		f.Records[i] = h.Record
	}
	if p.Explain() {
		f.Notes = []string{"this peer keeps all the cells and has compared them with their other keepers: nobody was asked"}
	}
	return f
}
