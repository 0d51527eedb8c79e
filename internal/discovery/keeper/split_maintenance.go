package keeper

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// splitMaintainer maintains the split cells. One goroutine uses it.
type splitMaintainer struct {
	splits  *splits
	lastSeq uint64 // Index.Seq at the last prune
}

// run maintains the split cells every maintainEvery until ctx ends.
func (m *splitMaintainer) run(ctx context.Context) {
	tick := time.NewTicker(maintainEvery)
	defer tick.Stop()
	for round := 0; ; round++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			m.maintain(ctx, round)
			m.splits.k.asker.lacking.tell(m.splits.k.Now())
		}
	}
}

// staleChild is a child of a split cell with an old summary.
type staleChild struct {
	parent records.CellKey
	key    records.CellKey
}

// maintain advances every split cell: it hands over records, fills samples, refreshes
// summaries, and makes small cells whole again.
func (m *splitMaintainer) maintain(ctx context.Context, round int) {
	m.confirmSuspected(ctx)
	keys := m.splits.keys()
	now, lastSeq := m.splits.k.Now(), m.lastSeq
	refreshing := round%(int(refreshEvery/maintainEvery)) == 0
	var stale []staleChild
	for _, c := range keys {
		if !m.splits.k.closest.accepts(c) {
			m.splits.remove(c)
			continue
		}
		m.advance(c, now)
		m.refillSample(c)
		if refreshing && lastSeq != m.splits.k.Index.Seq() && m.splits.phase(c) == cell.Split {
			m.splitRelated(c)
			m.splits.prune(c) // queries and SYNC also add records to the index
		}
		m.splits.with(c, func(x *cell.Cell) {
			for _, place := range x.Stale(refreshBatch-len(stale), now.Add(-refreshEvery), now) {
				stale = append(stale, staleChild{parent: c, key: cellAt(c, place)})
			}
		})
	}
	if refreshing {
		m.lastSeq = m.splits.k.Index.Seq()
	}
	m.refresh(ctx, stale)
	for _, c := range keys {
		ripe := false
		m.splits.with(c, func(x *cell.Cell) { ripe = x.UpdatePhase(now) })
		if ripe {
			m.makeWhole(ctx, c)
		}
	}
}

// suspectSplit schedules a check of a cell after SYNC pulled about as many records as a
// sample holds: the other keepers may have split the cell.
func (s *splits) suspectSplit(c records.CellKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.suspected) < maxSuspected {
		s.suspected[c] = true
	}
}

// confirmSuspected asks other keepers about suspected cells and adopts their splits. A false
// answer costs a split until the keepers of the children report how few records they hold.
func (m *splitMaintainer) confirmSuspected(ctx context.Context) {
	m.splits.mu.Lock()
	cells := make([]records.CellKey, 0, len(m.splits.suspected))
	for c := range m.splits.suspected {
		cells = append(cells, c)
	}
	clear(m.splits.suspected)
	m.splits.mu.Unlock()
	slices.SortFunc(cells, compareCells)
	for _, c := range cells {
		set, err := m.splits.k.closest.keepers(ctx, c)
		if err != nil || m.splits.phase(c) != cell.Whole || m.splits.k.Router.Size() < acceptWithin {
			continue
		}
		plan, err := planOfAll(c, 1)
		if err != nil {
			continue
		}
		order := slices.DeleteFunc(m.splits.k.asker.askingOrder(set), func(id peer.ID) bool { return id == m.splits.k.Self })
		for _, id := range order[:min(askedAtOnce, len(order))] {
			r := m.splits.k.asker.ask(ctx, id, cellQuery{plan: plan, cells: []records.CellKey{c}, worst: math.Inf(1)}, &queryTrace{})
			if info, ok := r.answer.splits[c]; r.err == nil && ok {
				m.splits.adopt(c, info)
			}
		}
	}
}

// adopt takes over the split of another keeper.
func (s *splits) adopt(c records.CellKey, info cell.SplitInfo) {
	members := s.members(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	x, ok := s.cells[c]
	if !ok {
		if len(s.cells) >= maxSplits {
			return
		}
		x = &splitCell{Cell: cell.New(c.Cell, cell.Split, s.k.Now())}
		for _, m := range members {
			x.FillSample(m)
		}
		s.cells[c] = x
	}
	for place, summary := range info.Children {
		x.Adopt(place, summary)
	}
}

// planOfAll returns a query for all records of a cell, up to a limit.
func planOfAll(c records.CellKey, limit int) (*query.Plan, error) {
	q := query.Query{Type: c.Type, Quality: query.Quality{Health: query.HealthAny}, Limit: limit}
	if c.Subtype != records.AnySubtype {
		q.Subtype = c.Subtype
	}
	return query.Compile(q, query.Defaults{})
}

// splitRelated splits the ancestors and children of a split cell that became overfull through
// records for other cells.
func (m *splitMaintainer) splitRelated(c records.CellKey) {
	var related []geo.Cell
	for place, ok := c.Cell.Parent(); ok; place, ok = place.Parent() {
		if place == geo.Global || place.Len() >= geo.MinLen {
			related = append(related, place)
		}
	}
	m.splits.with(c, func(x *cell.Cell) { related = append(related, x.Populated()...) })
	for _, place := range related {
		o, capacity := cellAt(c, place), cell.Capacity(place)
		if m.splits.phase(o) == cell.Whole && m.splits.k.closest.retains(o) && m.splits.k.Index.CountIn(o, m.splits.k.Now(), capacity+1) > capacity {
			m.splits.overflow(o)
		}
	}
}

func (s *splits) remove(c records.CellKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.cells, c)
}

// advance ends phase Splitting after this peer's hand-over, and after enough time for the
// hand-overs of the other keepers.
func (m *splitMaintainer) advance(c records.CellKey, now time.Time) {
	m.splits.mu.Lock()
	var due, done bool
	if x, ok := m.splits.cells[c]; ok {
		if phase, since := x.Phase(); phase == cell.Splitting {
			due = x.handOver != handOverDone
			if done = !due && now.Sub(since) >= maintainEvery; done {
				x.FinishSplit(now)
			}
		}
	}
	m.splits.mu.Unlock()
	switch {
	case due:
		m.splits.handOver(c)
	case done:
		m.splits.prune(c)
	}
}

// refillSample removes expired records from a sample and fills the room from the index.
func (m *splitMaintainer) refillSample(c records.CellKey) {
	room := false
	m.splits.with(c, func(x *cell.Cell) {
		for _, n := range x.Sampled() {
			if _, live := m.splits.k.Index.Get(n); !live {
				x.Forget(n)
			}
		}
		room = x.Below() == math.MaxUint64
	})
	if !room && c.Cell != geo.Global {
		return
	}
	var unplaced []cell.Member
	for r := range m.splits.k.Index.In(c, m.splits.k.Now()) {
		member := m.splits.member(r)
		if _, placed := r.Facts().Place(); !placed {
			unplaced = append(unplaced, member)
		} else if room {
			m.splits.with(c, func(x *cell.Cell) { x.FillSample(member) })
		}
	}
	m.splits.with(c, func(x *cell.Cell) { x.SetUnplaced(len(unplaced)) })
	for _, n := range cell.Surplus(unplaced, cell.LeafFull) {
		m.splits.k.Index.Remove(n)
	}
}

// handOver starts to deliver the records of a cell to the keepers of its children. The
// handOverKeepers keepers closest to a record's name deliver it.
func (s *splits) handOver(c records.CellKey) {
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
			s.k.Logger.Debug("hand-over of a split cell failed: the next round tries again", "cell", c, "error", err)
		}
	}
	ctx, end, err := s.k.begin(s.k.ctx, "hand_over", storeTimeout)
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

func (s *splits) deliverToChildren(ctx context.Context, c records.CellKey) error {
	set, err := s.k.closest.keepers(ctx, c)
	if err != nil {
		return err
	}
	var recs []*records.Record
	var targets [][]records.CellKey
	for r := range s.k.Index.In(c, s.k.Now()) {
		child, ok := cell.ChildOf(c.Cell, r)
		if ok && slices.Contains(nearest(r.Name().String(), set.peers, handOverKeepers), s.k.Self) {
			recs = append(recs, r)
			targets = append(targets, []records.CellKey{cellAt(c, child)})
		}
	}
	for _, o := range s.k.publisher.storeAt(ctx, recs, targets) {
		if o.Err != nil && fault.KindOf(o.Err) != fault.Exists && fault.KindOf(o.Err) != fault.LimitReached {
			err = fault.Wrap("keeper.handOver", o.Err)
		}
	}
	return err
}

// refresh asks the keepers of stale children for new summaries.
func (m *splitMaintainer) refresh(ctx context.Context, stale []staleChild) {
	if len(stale) == 0 {
		return
	}
	ctx, end, err := m.splits.k.begin(ctx, "summarise", maintainEvery/2)
	if err != nil {
		return
	}
	defer func() { end(err) }()
	cells := make([]records.CellKey, len(stale))
	parents := make(map[records.CellKey]records.CellKey, len(stale))
	for i, child := range stale {
		cells[i] = child.key
		parents[child.key] = child.parent
	}
	sets, err := m.splits.k.closest.keepersOf(ctx, cells)
	if err != nil {
		return
	}
	groups := groupCells(cells, sets)
	bounded(deliveries, len(groups), func(i int) { m.refreshGroup(ctx, groups[i], parents) })
}

// refreshGroup takes the safer view of two keepers. The view of one keeper alone only
// improves a summary.
func (m *splitMaintainer) refreshGroup(ctx context.Context, g group, parents map[records.CellKey]records.CellKey) {
	for cells := range slices.Chunk(g.cells, MaxQueryCells) {
		reported := make([]cell.Summary, len(cells))
		answers := 0
		for _, id := range m.splits.k.asker.askingOrder(g.set) {
			if answers == g.needed() || ctx.Err() != nil {
				break
			}
			views, err := m.splits.k.asker.askSummaries(ctx, id, cells)
			if err != nil {
				continue
			}
			answers++
			for i, v := range views {
				reported[i].Merge(v)
			}
		}
		for i, c := range cells {
			m.splits.with(parents[c], func(x *cell.Cell) {
				if answers == g.needed() {
					x.Refresh(c.Cell, reported[i])
				} else {
					x.Adopt(c.Cell, reported[i])
				}
			})
		}
	}
}

// askSummaries asks one keeper, or this peer itself, for the summaries of its cells.
func (a *asker) askSummaries(ctx context.Context, id peer.ID, cells []records.CellKey) (all []cell.Summary, err error) {
	if id == a.k.Self {
		for _, c := range cells {
			all = append(all, a.k.splits.summaryOf(c))
		}
		return all, nil
	}
	start := a.k.Now()
	ctx, end, err := a.k.begin(ctx, "ask", a.k.Limits.Ask)
	if err != nil {
		return nil, err
	}
	defer func() {
		a.observe(ctx, id, a.k.Now().Sub(start), err)
		end(err)
	}()
	req := &pb.SummaryRequest{Cells: cellQuery{cells: cells}.names()}
	resp, refused, err := a.call(ctx, id, &pb.Request{Op: &pb.Request_Summary{Summary: req}})
	if refused {
		err = fault.As("keeper.ask", fault.Unavailable, err)
	}
	if err != nil {
		return nil, err
	}
	return parseSummaries(resp.GetSummary(), cells)
}

// parseSummaries reads the answer to a SUMMARY request for cells.
func parseSummaries(resp *pb.SummaryResponse, cells []records.CellKey) ([]cell.Summary, error) {
	if n := len(resp.GetSummaries()); n != len(cells) {
		return nil, breach("%d summaries for %d cells", n, len(cells))
	}
	all := make([]cell.Summary, len(cells))
	for i, m := range resp.Summaries {
		place, summary, err := cell.FromProto(m)
		if err != nil {
			return nil, err
		}
		if place != cells[i].Cell {
			return nil, breach("a summary of %s instead of %s", place, cells[i].Cell)
		}
		all[i] = summary
	}
	if lacksAny(resp.NotKept, cells) {
		return nil, fault.New("keeper.ask", fault.Unavailable, "other keepers store some cells")
	}
	return all, nil
}

// makeWhole fetches all records of a split cell from the keepers of its children, and then
// holds the cell whole again.
func (m *splitMaintainer) makeWhole(ctx context.Context, c records.CellKey) {
	plan, err := planOfAll(c, query.MaxLimit)
	if err != nil {
		m.splits.k.Logger.Error("invalid query for a whole cell: please report this defect", "cell", c, "error", err)
		return
	}
	var cells []records.CellKey
	m.splits.with(c, func(x *cell.Cell) {
		for _, place := range x.Populated() {
			cells = append(cells, cellAt(c, place))
		}
	})
	complete := len(cells) == 0
	if !complete {
		ctx, end, err := m.splits.k.begin(ctx, "query", m.splits.k.Limits.Query)
		if err != nil {
			return
		}
		found, err := m.splits.k.find(ctx, plan, cells)
		end(err)
		complete = err == nil && found.Complete
	}
	if complete {
		m.splits.remove(c)
		m.splits.k.Logger.Info("cell whole again", "cell", c)
	}
}
