package keeper

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/keeper/digest"
	"github.com/blackhole/blackhole/pkg/records"
)

// SYNC is the anti-entropy between keepers of the same cells: they compare their records and
// pull the missing ones. Each peer pulls for itself, so no peer receives unrequested records,
// and two peers that both pull end up equal.
const (
	syncJitter       = 10               // percent
	syncSoon         = time.Second      // delay after a change of the routing table, which seldom comes alone
	syncGap          = 5 * time.Second  // minimum interval of rounds after changes of the table
	syncCall         = 10 * time.Second // timeout of one request
	syncPeer         = time.Minute      // timeout of all requests to one peer in a round
	syncLook         = 128              // nearest peers to examine for common cells
	syncPeers        = 64               // maximum partners of one round
	syncWidth        = 4                // partners at a time
	viewTTL          = 2 * time.Second  // lifetime of a view after a change of the index; longer for a large view
	viewSize         = 10_000           // records for each viewTTL
	viewMaxTTL       = time.Minute      // maximum age of a view with split cells, or with an expired record
	maxPulledEntries = 1 << 16          // cached versions that were pulled recently
	maxListed        = 1 << 20          // entries from one partner in one round
	fewEntries       = 64               // below this size all entries of a cell are shorter than its sums
	pulledTTL        = 10 * time.Minute // a pulled version is not pulled again for this long, whatever its result

)

// syncer compares this peer's index with the other keepers of the same cells. One goroutine runs
// its rounds.
type syncer struct {
	*Authority
	client  *client
	store   *store                 // takes the pulled records
	pulled  timedSet[digest.Entry] // versions pulled recently
	pulling chan struct{}          // semaphore of one: two peers do not send the same records

	making sync.Mutex           // held during the computation of a view
	view   atomic.Pointer[view] // written under making; nil before the first
}

func newSyncer(authority *Authority, c *client, s *store) *syncer {
	return &syncer{
		Authority: authority, client: c, store: s,
		pulled: newTimedSet[digest.Entry](maxPulledEntries), pulling: make(chan struct{}, 1),
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
	if y.Router.Size() > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, y.Limits.Lookup)
	defer cancel()
	if others, err := y.Router.Closest(ctx, string(y.Self), nil); err == nil && len(others) == 0 {
		y.know.setInformed(true, y.clock())
	}
}

// meet compares with the members of the routing table that this peer has not compared with. It returns
// the time of the next attempt; zero without one.
func (y *syncer) meet(ctx context.Context) (next time.Time) {
	if !y.Router.Serving() {
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
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(y.Self), uint64(round)))
	span := y.Limits.Sync * 2 * syncJitter / 100
	pause := y.Limits.Sync - span/2 + time.Duration(float64(span)*float64(binary.BigEndian.Uint32(sum[:]))/(1<<32))
	if y.Router.Size() == 0 && !y.know.knows.Load() {
		return min(pause, joiningGrace) // without any peer: say so soon
	}
	if y.know.late.Load() {
		return min(pause, syncGap)
	}
	last := y.last.Load()
	if last != nil && len(last.done) == 0 && len(last.table.peers) > 0 {
		return min(pause, syncSoon*time.Duration(round)) // no partner answered: authority needs a comparison
	}
	if last != nil && y.Router.Size() > 0 && !last.steady() {
		return min(pause, last.table.settleTime()+syncSoon) // so that the last round soon counts as steady
	}
	return pause
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
	seq, now := y.Index.Seq(), y.Now()
	before := y.view.Load()
	if before != nil && before.table == table.peerTable && before.valid(seq, now, y.store.splits.any()) {
		return before
	}
	v := newView(y.Index, table.peerTable, now, y.store.splits, before)
	y.view.Store(v)
	return v
}

// Snapshot returns the records by id, and the sequence number of the index that they include.
func (y *syncer) Snapshot() (seq uint64, known map[digest.ID]*records.Record) {
	v := y.viewOf(y.table())
	return v.seq, v.byID()
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
		others, err := y.Router.Closest(ctx, string(y.Self), nil)
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
	slices.SortStableFunc(ids, func(a, b peer.ID) int {
		return btoi(y.client.avoided(a)) - btoi(y.client.avoided(b))
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
