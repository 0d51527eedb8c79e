package keep

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/digest"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	meetAtOnce       = 8                // comparisons with newcomers at a time
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
	viewMaxTTL       = time.Minute      // maximum age of a view with an expired record
	maxPulledEntries = 1 << 16          // cached versions that were pulled recently
	maxListed        = 1 << 20          // entries from one partner in one round
	fewEntries       = 64               // below this size all entries of a cell are shorter than its sums
	pulledTTL        = 10 * time.Minute // a pulled version is not pulled again for this long, whatever its result

)

// Syncer compares this peer's index with the other keepers of the same cells. One goroutine runs
// its rounds.
type Syncer struct {
	*Authority
	SyncerConfig
	client  *protocol.Client
	store   *Store // takes the pulled records
	cells   *Cells
	intake  *Intake
	pulled  protocol.TimedSet[digest.Entry] // versions pulled recently
	pulling chan struct{}                   // semaphore of one: two peers do not send the same records

	making sync.Mutex           // held during the computation of a view
	view   atomic.Pointer[view] // written under making; nil before the first
}

// SyncerConfig is what a Syncer uses beside other rooms.
type SyncerConfig struct {
	Index      *index.Index
	Verifier   *records.Verifier
	Every      time.Duration  // between two rounds
	Ask        time.Duration  // for one question about this peer's own records
	Lookup     time.Duration  // of a look for other peers
	Conditions *condition.Set // nil keeps none
}

// NewSyncer returns a syncer. Run makes its rounds.
func NewSyncer(authority *Authority, c *protocol.Client, s *Store, cells *Cells, in *Intake, config SyncerConfig) *Syncer {
	return &Syncer{
		Authority: authority, SyncerConfig: config, client: c, store: s, cells: cells, intake: in,
		pulled: protocol.NewTimedSet[digest.Entry](maxPulledEntries), pulling: make(chan struct{}, 1),
	}
}

// Run makes rounds until ctx ends: at the start, every Limits.Sync, and soon after a change of the
// routing table, which moves responsibility.
func (y *Syncer) Run(ctx context.Context) {
	y.begin(ctx)
	changed := y.Changed()
	timer := time.NewTimer(syncSoon)
	defer timer.Stop()
	due := y.Clock().Add(syncSoon)
	var began time.Time // zero after a round without a partner
	hasten := func(wait time.Duration) {
		now := y.Clock()
		if soon := later(now.Add(wait), began.Add(syncGap)); soon.Before(due) {
			due = soon
			timer.Reset(due.Sub(now))
		}
	}
	for n := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			changed = y.Changed()
			y.Table()
			hasten(syncSoon)
		case <-y.Know.Behind:
			wait := viewTTL
			if v := y.view.Load(); v != nil {
				wait = v.lifetime()
			}
			hasten(wait + syncSoon/4) // an earlier round would not end the lack
		case <-timer.C:
			began = y.Clock()
			if !y.Round(ctx) {
				began = time.Time{}
			}
			y.reportFull()
			n++
			due = y.Clock().Add(y.pause(n))
			timer.Reset(due.Sub(y.Clock()))
		}
	}
}

// reportFull keeps the condition of a full cell without children. It is up to a round late; the answers are not.
func (y *Syncer) reportFull() {
	if c, is := y.cells.Overfull(); is {
		y.Conditions.Raise(condition.CellFull, fault.Problem{
			What:   fmt.Sprintf("cell %s has more offers than one cell takes, and no parts", c),
			Effect: "further ones are refused, and answers about it are incomplete", Remedy: "Their providers should state their places",
		})
	} else {
		y.Conditions.Clear(condition.CellFull)
	}
}

// begin finds out whether this peer is alone: the first peer of a new network has all its records.
func (y *Syncer) begin(ctx context.Context) {
	if y.Router.Size() > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, y.Lookup)
	defer cancel()
	if others, err := y.Router.Closest(ctx, string(y.Self)); err == nil && len(others) == 0 {
		y.Know.SetInformed(true, y.Clock())
	}
}

// Meet compares with the members of the routing table that this peer has not compared with, at once and each by itself, so that a silent
// one delays no other. It ends with ctx.
func (y *Syncer) Meet(ctx context.Context) {
	var under sync.WaitGroup
	defer under.Wait()
	slots := make(chan struct{}, meetAtOnce)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-y.Know.News:
		case <-timer.C:
		}
		if !y.Router.Serving() {
			continue
		}
		table := y.Table()
		ids, next := y.Know.Due(meetAtOnce-len(slots), y.Clock())
		for _, id := range ids {
			slots <- struct{}{} // has room: nobody else takes one
			under.Go(func() {
				_, _ = y.Compare(ctx, id, table)
				<-slots
				pause.Wake(y.Know.News)
			})
		}
		if !next.IsZero() {
			timer.Reset(next.Sub(y.Clock()))
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// pause returns the time to the next round. It depends on the peer id, so that peers with the same
// start time drift apart.
func (y *Syncer) pause(round int) time.Duration {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(y.Self), uint64(round)))
	span := y.Every * 2 * syncJitter / 100
	pause := y.Every - span/2 + time.Duration(float64(span)*float64(binary.BigEndian.Uint32(sum[:]))/(1<<32))
	if y.Know.Late.Load() {
		return min(pause, syncGap)
	}
	last := y.Last.Load()
	if last != nil && len(last.Done) == 0 && len(last.Table.Peers) > 0 {
		return min(pause, syncSoon*time.Duration(round)) // no partner answered: authority needs a comparison
	}
	if y.Router.Serving() && !y.Know.Knows.Load() {
		return min(pause, syncGap)
	}
	if last != nil && y.Router.Size() > 0 && !last.Steady() {
		return min(pause, last.Table.SettleTime()+syncSoon) // so that the last round soon counts as steady
	}
	return pause
}

// lifetime returns how long a view serves after changes of the index. Large views live longer, so
// that their computation stays a small part of a peer's work.
func (v *view) lifetime() time.Duration {
	return min(viewTTL*time.Duration(1+len(v.all)/viewSize), protocol.SyncEvery)
}

// viewOf returns a view of the index, at most a little behind it.
func (y *Syncer) viewOf(table *TableState) *view {
	y.making.Lock()
	defer y.making.Unlock()
	seq, now := y.Index.Seq(), y.Now()
	before := y.view.Load()
	if before != nil && before.table == table.Table && before.valid(seq, y.cells.Version(), now) {
		return before
	}
	v := newView(y.Index, table.Table, now, y.cells, before)
	y.view.Store(v)
	return v
}

// Outdate makes the next view include all changes so far.
func (y *Syncer) Outdate() {
	if v := y.view.Load(); v != nil {
		v.spent.Store(true)
	}
}

// Round compares with all peers that share a cell with this peer: with one peer first, which
// brings most of the news, and then with several at a time. It reports false without such a peer. A
// peer that is no keeper compares with nobody.
func (y *Syncer) Round(ctx context.Context) bool {
	began, start := y.Clock(), y.Now()
	table := y.Table()
	var peers []peer.ID
	if table.Serving {
		peers = y.partners(y.viewOf(table))
	}
	partners := make([]*Partner, len(peers))
	talk := func(i int) {
		if y.Know.Silent(peers[i]) {
			return // only Meet waits for it
		}
		if of, err := y.Compare(ctx, peers[i], table); err == nil {
			partners[i] = &of
		}
	}
	if len(peers) > 0 {
		talk(0)
		protocol.Bounded(syncWidth, len(peers)-1, func(i int) { talk(i + 1) })
	}
	o := &Round{Table: table, Age: began.Sub(table.Made), Done: make(map[peer.ID]Partner)}
	for i, id := range peers {
		if of := partners[i]; of != nil {
			o.Done[id] = *of
		}
	}
	if len(peers) == 0 {
		others, err := y.Router.Closest(ctx, string(y.Self))
		o.Alone = err == nil && len(others) == 0
	}
	if ctx.Err() == nil {
		y.cells.Decide(start, o.Partners, o.Alone)
		y.Keep(o)
		if o.Alone || len(o.Done) > 0 {
			y.Know.CaughtUp(began.Add(-y.viewOf(table).lifetime())) // partners answer from views as old as that
		}
		awaited := func(id peer.ID) bool { _, done := o.Done[id]; return !done && !y.Know.KeepsNothing(id) }
		if o.Alone || len(o.Done) > 0 && (y.Know.Waited(began) || o.Fresh() && !slices.ContainsFunc(peers, awaited)) {
			y.Know.SetInformed(true, y.Clock())
		}
	}
	return len(peers) > 0
}

// partners returns the peers to compare with: all peers in a small network; otherwise the nearest
// peers, which keep most of this peer's cells, and other peers that share a cell. Recently failed
// peers are last.
func (y *Syncer) partners(v *view) []peer.ID {
	var ids, failed []peer.ID
	for i, p := range v.table.Peers[:min(len(v.table.Peers), syncLook)] {
		switch {
		case !v.table.Whole && i >= Network && !y.sharesAny(v, p.Hash):
		case y.client.Avoided(p.Id):
			failed = append(failed, p.Id)
		default:
			ids = append(ids, p.Id)
		}
	}
	ids = append(ids, failed...)
	return ids[:min(len(ids), syncPeers)]
}

func (y *Syncer) sharesAny(v *view, hash Words) bool {
	return slices.ContainsFunc(v.cells().order, func(h *holding) bool { return h.radius.Covers(hash) })
}
