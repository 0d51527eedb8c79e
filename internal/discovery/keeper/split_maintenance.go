package keeper

import (
	"context"
	"maps"
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

// run tends the divisions every maintainEvery until Close.
func (d *splits) run() {
	if !d.k.inflight.enter() {
		return
	}
	go func() {
		defer d.k.inflight.leave()
		tick := time.NewTicker(maintainEvery)
		defer tick.Stop()
		for round := 0; ; round++ {
			select {
			case <-d.k.ctx.Done():
				return
			case <-tick.C:
				d.maintain(d.k.ctx, round)
			}
		}
	}()
}

// staleChild is one child of a divided cell.
type staleChild struct {
	parent records.CellKey
	key    records.CellKey
}

// maintain moves every division on: hands over, fills samples, asks the children's keepers, and
// makes cells whole again that have become small.
func (d *splits) maintain(ctx context.Context, round int) {
	d.confirmSuspected(ctx)
	d.mu.Lock()
	keys := slices.SortedFunc(maps.Keys(d.cells), compareCells)
	d.mu.Unlock()
	now, looked := d.k.Now(), d.lastSeq
	var due []staleChild
	for _, c := range keys {
		if !d.k.closest.accepts(c) {
			d.remove(c)
			continue
		}
		d.progress(c, now)
		d.refillSample(c)
		if seq := d.k.Index.Seq(); looked != seq && round%(int(refreshEvery/maintainEvery)) == 0 && d.phase(c) == cell.Split {
			d.splitRelated(c)
			d.prune(c) // what was learnt otherwise
		}
		d.with(c, func(x *cell.Cell) {
			for _, place := range x.Stale(refreshBatch-len(due), now.Add(-refreshEvery), now) {
				due = append(due, staleChild{parent: c, key: records.CellKey{Type: c.Type, Subtype: c.Subtype, Cell: place}})
			}
		})
	}
	if round%(int(refreshEvery/maintainEvery)) == 0 {
		d.lastSeq = d.k.Index.Seq()
	}
	d.refresh(ctx, due)
	for _, c := range keys {
		ripe := false
		d.with(c, func(x *cell.Cell) { ripe = x.UpdatePhase(now) })
		if ripe {
			d.makeWhole(ctx, c)
		}
	}
}

// suspectSplit has a cell looked into of which so many records were pulled that they may be but
// the sample of a cell that its other keepers have divided.
func (d *splits) suspectSplit(c records.CellKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.suspected) < maxSuspected {
		d.suspected[c] = true
	}
}

// confirmSuspected asks the other keepers of suspect cells, and takes over what they have divided. Who
// wrongly says so costs a division until the children's keepers say how few records they have.
func (d *splits) confirmSuspected(ctx context.Context) {
	d.mu.Lock()
	cells := slices.SortedFunc(maps.Keys(d.suspected), compareCells)
	clear(d.suspected)
	d.mu.Unlock()
	for _, c := range cells {
		set, err := d.k.closest.keepers(ctx, c)
		if err != nil || d.phase(c) != cell.Whole || d.k.Router.Size() < acceptWithin {
			continue
		}
		plan, err := d.planOfAll(c, 1)
		if err != nil {
			continue
		}
		order := slices.DeleteFunc(d.k.askingOrder(set), func(id peer.ID) bool { return id == d.k.Self })
		for _, id := range order[:min(askedAtOnce, len(order))] {
			r := d.k.ask(ctx, id, cellQuery{plan: plan, cells: []records.CellKey{c}, worst: math.Inf(1)}, &queryTrace{})
			if s, ok := r.answer.splits[c]; r.err == nil && ok {
				d.adopt(c, s)
			}
		}
	}
}

// adopt takes over a division of another keeper.
func (d *splits) adopt(c records.CellKey, s cell.SplitInfo) {
	now := d.k.Now()
	members := d.members(c)
	d.mu.Lock()
	x, ok := d.cells[c]
	if !ok && len(d.cells) < maxSplits {
		x, ok = cell.New(c.Cell, cell.Split, now), true
		for _, m := range members {
			x.FillSample(m)
		}
		d.cells[c] = x
	}
	if ok {
		for place, summary := range s.Children {
			x.Adopt(place, summary)
		}
	}
	d.mu.Unlock()
}

// planOfAll asks for all records of a cell, whatever they claim, up to a number.
func (d *splits) planOfAll(c records.CellKey, limit int) (*query.Plan, error) {
	q := query.Query{Type: c.Type, Quality: query.Quality{Health: query.HealthAny}, Limit: limit}
	if c.Subtype != records.AnySubtype {
		q.Subtype = c.Subtype
	}
	return query.Compile(q, query.Defaults{})
}

// tableelated divides the cells around and within a divided one that have grown too large by
// what this peer was brought for others.
func (d *splits) splitRelated(c records.CellKey) {
	var near []geo.Cell
	for place, ok := c.Cell.Parent(); ok; place, ok = place.Parent() {
		if place == geo.Global || place.Len() >= geo.MinLen {
			near = append(near, place)
		}
	}
	d.with(c, func(x *cell.Cell) { near = append(near, x.Populated()...) })
	for _, place := range near {
		o := records.CellKey{Type: c.Type, Subtype: c.Subtype, Cell: place}
		most := cell.Capacity(place)
		if d.phase(o) == cell.Whole && d.k.closest.retains(o) && d.k.Index.CountIn(o, d.k.Now(), most+1) > most {
			d.overflow(o)
		}
	}
}

func (d *splits) remove(c records.CellKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.cells, c)
	delete(d.handed, c)
}

// progress ends a division's first phase once this peer has done its part and the others
// had time for theirs.
func (d *splits) progress(c records.CellKey, now time.Time) {
	var again, done bool
	d.with(c, func(x *cell.Cell) {
		phase, since := x.Phase()
		if phase != cell.Splitting {
			return
		}
		if again = !d.handed[c]; !again && now.Sub(since) >= maintainEvery {
			x.FinishSplit(now)
			delete(d.handed, c)
			done = true
		}
	})
	switch {
	case again:
		d.handOver(c)
	case done:
		d.prune(c)
	}
}

// refillSample takes lapsed records out of a sample and fills the room from what is held.
func (d *splits) refillSample(c records.CellKey) {
	room := false
	d.with(c, func(x *cell.Cell) {
		for _, n := range x.Sampled() {
			if _, live := d.k.Index.Get(n); !live {
				x.Forget(n)
			}
		}
		room = x.Below() == math.MaxUint64
	})
	if !room && c.Cell != geo.Global {
		return
	}
	var adrift []cell.Member
	for r := range d.k.Index.In(c, d.k.Now()) {
		m := d.member(r)
		if _, placed := r.Facts().Place(); !placed {
			adrift = append(adrift, m)
		} else if room {
			d.with(c, func(x *cell.Cell) { x.FillSample(m) })
		}
	}
	d.with(c, func(x *cell.Cell) { x.SetUnplaced(len(adrift)) })
	for _, n := range cell.Surplus(adrift, cell.LeafFull) {
		d.k.Index.Remove(n)
	}
}

// handOver brings the records of a cell to its children's keepers, behind the caller's back.
// Each record is brought by handOverKeepers of the cell's keepers, those nearest to its name.
func (d *splits) handOver(c records.CellKey) {
	d.mu.Lock()
	busy := d.busy[c] || len(d.busy) >= maxHandOvers
	if !busy {
		d.busy[c] = true
	}
	d.mu.Unlock()
	if busy {
		return
	}
	ctx, end, err := d.k.begin(d.k.ctx, "hand_over", storeTimeout)
	if err != nil {
		return
	}
	go func() {
		err := d.handOverNow(ctx, c)
		d.mu.Lock()
		delete(d.busy, c)
		if err == nil {
			d.handed[c] = true
		} else {
			d.k.Logger.Debug("cell not handed over", "cell", c, "error", err)
		}
		d.mu.Unlock()
		end(err)
	}()
}

func (d *splits) handOverNow(ctx context.Context, c records.CellKey) error {
	set, err := d.k.closest.keepers(ctx, c)
	if err != nil {
		return err
	}
	var recs []*records.Record
	var targets [][]records.CellKey
	for r := range d.k.Index.In(c, d.k.Now()) {
		child, ok := cell.ChildOf(c.Cell, r)
		if ok && slices.Contains(nearest(r.Name().String(), set.peers, handOverKeepers), d.k.Self) {
			recs = append(recs, r)
			targets = append(targets, []records.CellKey{{Type: c.Type, Subtype: c.Subtype, Cell: child}})
		}
	}
	failed := 0
	for _, o := range d.k.storeAt(ctx, recs, targets) {
		if o.Err != nil && fault.KindOf(o.Err) != fault.Exists && fault.KindOf(o.Err) != fault.LimitReached {
			failed++
			err = o.Err
		}
	}
	if failed > 0 {
		return fault.Wrap("keeper.handOver", err)
	}
	return nil
}

// refresh asks the children's keepers how many and how good their records are.
func (d *splits) refresh(ctx context.Context, due []staleChild) {
	if len(due) == 0 {
		return
	}
	ctx, end, err := d.k.begin(ctx, "summarise", maintainEvery/2)
	if err != nil {
		return
	}
	defer func() { end(err) }()
	cells := make([]records.CellKey, len(due))
	for i, p := range due {
		cells[i] = p.key
	}
	sets, err := d.k.keepersOf(ctx, cells)
	if err != nil {
		return
	}
	groups := groupCells(cells, sets)
	parents := make(map[records.CellKey]records.CellKey, len(due))
	for _, p := range due {
		parents[p.key] = p.parent
	}
	bounded(deliveries, len(groups), func(i int) { d.refreshGroup(ctx, groups[i], parents) })
}

// refreshGroup takes the safer of the views of two keepers. What one alone says only makes
// a summary better.
func (d *splits) refreshGroup(ctx context.Context, g group, parents map[records.CellKey]records.CellKey) {
	for cells := range slices.Chunk(g.cells, MaxQueryCells) {
		said := make([]cell.Summary, len(cells))
		heard := 0
		for _, id := range d.k.askingOrder(g.set) {
			if heard == g.needed() || ctx.Err() != nil {
				break
			}
			views, err := d.k.askSummaries(ctx, id, cells)
			if err != nil {
				continue
			}
			heard++
			for i, v := range views {
				said[i].Merge(v)
			}
		}
		for i, c := range cells {
			d.with(parents[c], func(x *cell.Cell) {
				if heard == g.needed() {
					x.Refresh(c.Cell, said[i])
				} else {
					x.Adopt(c.Cell, said[i])
				}
			})
		}
	}
}

// askSummaries asks one keeper, which may be this peer, of cells that it keeps.
func (k *Keeper) askSummaries(ctx context.Context, id peer.ID, cells []records.CellKey) (_ []cell.Summary, err error) {
	all := make([]cell.Summary, len(cells))
	if id == k.Self {
		for i, c := range cells {
			all[i] = k.splits.summaryOf(c)
		}
		return all, nil
	}
	start := k.Now()
	ctx, end, err := k.begin(ctx, "ask", k.Limits.Ask)
	if err != nil {
		return nil, err
	}
	defer func() {
		k.observe(ctx, id, k.Now().Sub(start), err)
		end(err)
	}()
	req := &pb.SummaryRequest{Cells: cellQuery{cells: cells}.names()}
	resp, refused, err := k.call(ctx, id, &pb.Request{Op: &pb.Request_Summary{Summary: req}})
	if refused {
		err = fault.As("keeper.ask", fault.Unavailable, err)
	}
	if err != nil {
		return nil, err
	}
	told := resp.GetSummary()
	if len(told.GetSummaries()) != len(cells) {
		return nil, breach("%d summaries of %d cells", len(told.GetSummaries()), len(cells))
	}
	for i, m := range told.Summaries {
		place, s, err := cell.FromProto(m)
		if err != nil {
			return nil, err
		}
		if place != cells[i].Cell {
			return nil, breach("a summary of %s, asked of %s", place, cells[i].Cell)
		}
		all[i] = s
	}
	if lacksAny(told.NotKept, cells) {
		return nil, fault.New("keeper.ask", fault.Unavailable, "it does not keep all the cells")
	}
	return all, nil
}

// makeWhole makes a cell whole again: it takes everything in that the children's keepers have.
func (d *splits) makeWhole(ctx context.Context, c records.CellKey) {
	plan, err := d.planOfAll(c, query.MaxLimit)
	if err != nil {
		d.k.Logger.Error("a cell's own query does not compile", "cell", c, "error", err)
		return
	}
	var cells []records.CellKey
	d.with(c, func(x *cell.Cell) {
		for _, place := range x.Populated() {
			cells = append(cells, records.CellKey{Type: c.Type, Subtype: c.Subtype, Cell: place})
		}
	})
	complete := len(cells) == 0
	if !complete {
		ctx, end, err := d.k.begin(ctx, "query", d.k.Limits.Query)
		if err != nil {
			return
		}
		found, err := d.k.find(ctx, plan, cells)
		end(err)
		complete = err == nil && found.Complete
	}
	if complete {
		d.remove(c)
		d.k.Logger.Info("cell is whole again", "cell", c)
	}
}
