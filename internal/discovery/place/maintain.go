package place

import (
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/internal/discovery/route"
	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	MaintainEvery   = 30 * time.Second // interval of split maintenance
	refreshEvery    = 2 * time.Minute  // interval of summary requests to the keepers of a child
	refreshBatch    = 128              // children to refresh in one round of maintenance
	maxHandOvers    = 4                // concurrent hand-overs
	handOverKeepers = 3                // keepers that hand over the same record
)

// Maintainer maintains the split cells. One goroutine uses it.
type Maintainer struct {
	*Splits
	ask     CellAsker
	round   int
	lastSeq uint64 // Index.Seq at the last prune
}

// NewMaintainer returns the maintainer of splits. It asks other keepers through ask.
func NewMaintainer(s *Splits, ask CellAsker) *Maintainer { return &Maintainer{Splits: s, ask: ask} }

// CellAsker asks other keepers about cells.
type CellAsker interface {
	// SplitsOf returns the splits of a cell at two other keepers, if they split it.
	SplitsOf(ctx context.Context, c records.CellKey) []cell.SplitInfo
	// Summaries asks the keepers of cells for summaries, and calls use with each. Sure reports that two keepers agree to it, or that the
	// only keeper does.
	Summaries(ctx context.Context, cells []records.CellKey, use func(c records.CellKey, s cell.Summary, sure bool))
	// FetchAll adds all records of the children of a cell to the index. It reports whether it got all.
	FetchAll(ctx context.Context, c records.CellKey, children []records.CellKey) bool
}

// Maintain advances every split cell: it hands over records, fills samples, refreshes
// summaries, and makes small cells whole again.
func (m *Maintainer) Maintain(ctx context.Context) {
	m.confirmSuspected(ctx)
	keys := m.Keys()
	now, lastSeq := m.Now(), m.lastSeq
	refreshing := m.round%(int(refreshEvery/MaintainEvery)) == 0
	m.round++
	var stale []records.CellKey
	parents := make(map[records.CellKey]records.CellKey) // of the children with old summaries
	for _, c := range keys {
		if !m.authority.Accepts(c) {
			m.remove(c)
			continue
		}
		m.advance(c, now)
		m.refillSample(c)
		if refreshing && lastSeq != m.Index.Seq() && m.Phase(c) == cell.Split {
			m.splitRelated(c)
			m.prune(c) // queries and SYNC also add records to the index
		}
		m.With(c, func(x *cell.Cell) {
			for _, place := range x.Stale(refreshBatch-len(stale), now.Add(-refreshEvery), now) {
				stale = append(stale, wire.CellAt(c, place))
				parents[wire.CellAt(c, place)] = c
			}
		})
	}
	if refreshing {
		m.lastSeq = m.Index.Seq()
	}
	m.refresh(ctx, stale, parents)
	for _, c := range keys {
		ripe := false
		m.With(c, func(x *cell.Cell) { ripe = x.UpdatePhase(now) })
		if ripe {
			m.makeWhole(ctx, c)
		}
	}
}

// suspectSplit schedules a check of a cell after SYNC pulled about as many records as a
// sample holds: the other keepers may have split the cell.
func (s *Splits) suspectSplit(c records.CellKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.suspected) < maxSuspected {
		s.suspected[c] = true
	}
}

// confirmSuspected asks other keepers about suspected cells and adopts their splits. A false
// answer costs a split until the keepers of the children report how few records they hold.
func (m *Maintainer) confirmSuspected(ctx context.Context) {
	m.mu.Lock()
	cells := slices.SortedFunc(maps.Keys(m.suspected), wire.CompareCells)
	clear(m.suspected)
	m.mu.Unlock()
	for _, c := range cells {
		if m.Phase(c) != cell.Whole || m.Router.Size() < route.AcceptWithin {
			continue
		}
		for _, info := range m.ask.SplitsOf(ctx, c) {
			m.adopt(c, info)
		}
	}
}

// adopt takes over the split of another keeper.
func (s *Splits) adopt(c records.CellKey, info cell.SplitInfo) {
	members := s.members(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	x, ok := s.cells[c]
	if !ok {
		if len(s.cells) >= maxSplits {
			return
		}
		x = &splitCell{Cell: cell.New(c.Cell, cell.Split, s.Now())}
		for _, m := range members {
			x.FillSample(m)
		}
		s.cells[c] = x
	}
	for place, summary := range info.Children {
		x.Adopt(place, summary)
	}
}

// splitRelated splits the ancestors and children of a split cell that became overfull through
// records for other cells.
func (m *Maintainer) splitRelated(c records.CellKey) {
	var related []geo.Cell
	for place, ok := c.Cell.Parent(); ok; place, ok = place.Parent() {
		related = append(related, place)
	}
	m.With(c, func(x *cell.Cell) { related = append(related, x.Populated()...) })
	for _, place := range related {
		o, capacity := wire.CellAt(c, place), cell.Capacity(place)
		if m.Phase(o) == cell.Whole && m.authority.Retains(o) && m.Index.CountIn(o, m.Now(), capacity+1) > capacity {
			m.overflow(o)
		}
	}
}

func (s *Splits) remove(c records.CellKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.cells, c)
}

// advance ends phase Splitting after this peer's hand-over, and after enough time for the
// hand-overs of the other keepers.
func (m *Maintainer) advance(c records.CellKey, now time.Time) {
	m.mu.Lock()
	var due, done bool
	if x, ok := m.cells[c]; ok {
		if phase, since := x.Phase(); phase == cell.Splitting {
			due = x.handOver != handOverDone
			if done = !due && now.Sub(since) >= MaintainEvery; done {
				x.FinishSplit(now)
			}
		}
	}
	m.mu.Unlock()
	switch {
	case due:
		m.handOver(c)
	case done:
		m.prune(c)
	}
}

// refillSample removes expired records from a sample and fills the room from the index.
func (m *Maintainer) refillSample(c records.CellKey) {
	room := false
	m.With(c, func(x *cell.Cell) {
		for _, n := range x.Sampled() {
			if _, live := m.Index.Get(n); !live {
				x.Forget(n)
			}
		}
		room = x.Below() == math.MaxUint64
	})
	if !room && c.Cell != geo.Global {
		return
	}
	var unplaced []cell.Member
	for r := range m.Index.In(c, m.Now()) {
		member := m.Member(r)
		if _, placed := r.Facts().Place(); !placed {
			unplaced = append(unplaced, member)
		} else if room {
			m.With(c, func(x *cell.Cell) { x.FillSample(member) })
		}
	}
	m.With(c, func(x *cell.Cell) { x.SetUnplaced(len(unplaced)) })
	for _, n := range cell.Surplus(unplaced, cell.LeafFull) {
		m.Index.Remove(n)
	}
}

// handOver starts to deliver the records of a cell to the keepers of its children. The
// handOverKeepers keepers closest to a record's name deliver it.
func (s *Splits) handOver(c records.CellKey) {
	s.mu.Lock()
	x, ok := s.cells[c]
	started := ok && x.handOver == handOverDue && s.handingOver < maxHandOvers
	if started {
		x.handOver = handOverRunning
		s.handingOver++
	}
	s.mu.Unlock()
	if !started {
		return
	}
	finish := func(err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.handingOver--
		x.handOver = handOverDone
		if err != nil {
			x.handOver = handOverDue
			s.Logger.Debug("hand-over of a split cell failed: the next round tries again", "cell", c, "error", err)
		}
	}
	ctx, end, err := s.Begin(s.Context(), "hand_over", storeTimeout)
	if err != nil {
		finish(err)
		return
	}
	go func() {
		err := s.deliverToChildren(ctx, c)
		finish(err)
		end(err)
	}()
}

func (s *Splits) deliverToChildren(ctx context.Context, c records.CellKey) error {
	set, err := s.closest.Keepers(ctx, c)
	if err != nil {
		return err
	}
	var sends []*send
	for r := range s.Index.In(c, s.Now()) {
		child, ok := cell.ChildOf(c.Cell, r)
		if ok && slices.Contains(route.Nearest(r.Name().String(), set.Peers, handOverKeepers), s.Self) {
			sends = append(sends, &send{record: r, cells: []records.CellKey{wire.CellAt(c, child)}})
		}
	}
	for _, o := range s.StoreAt(ctx, sends) {
		if o.Err != nil && fault.KindOf(o.Err) != fault.Exists && fault.KindOf(o.Err) != fault.LimitReached {
			err = fault.Wrap("keeper.handOver", o.Err)
		}
	}
	return err
}

// refresh takes the safer view of two keepers for stale children. The view of one keeper alone only
// improves a summary.
func (m *Maintainer) refresh(ctx context.Context, stale []records.CellKey, parents map[records.CellKey]records.CellKey) {
	if len(stale) == 0 {
		return
	}
	m.ask.Summaries(ctx, stale, func(c records.CellKey, s cell.Summary, sure bool) {
		m.With(parents[c], func(x *cell.Cell) {
			if sure {
				x.Refresh(c.Cell, s)
			} else {
				x.Adopt(c.Cell, s)
			}
		})
	})
}

// makeWhole fetches all records of a split cell from the keepers of its children, and then
// holds the cell whole again.
func (m *Maintainer) makeWhole(ctx context.Context, c records.CellKey) {
	var children []records.CellKey
	m.With(c, func(x *cell.Cell) {
		for _, place := range x.Populated() {
			children = append(children, wire.CellAt(c, place))
		}
	})
	if len(children) == 0 || m.ask.FetchAll(ctx, c, children) {
		m.remove(c)
		m.Logger.Info("cell whole again", "cell", c)
	}
}
