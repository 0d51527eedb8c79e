package keeper

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// descent is the course of one query: it asks about cells and, where these are divided,
// about their children, those with the best bounds first, for as long as one may have a
// result. It is owned by the query's goroutine.
type descent struct {
	k     *Keeper
	plan  *query.Plan
	notes *journal

	cells   []records.CellKey // asked about
	seen    map[records.CellKey]bool
	groups  []gathered
	open    []prospect // not asked about, best first
	results map[records.Name]*records.Record
	last    float64 // rank value of the last result within the limit; +Inf while there is room
	filled  bool    // there are as many results as asked for
}

// prospect is a child of a divided cell that may have a result.
type prospect struct {
	cell  records.CellKey
	bound float64 // no match in it has a better rank value
}

func (a prospect) compare(b prospect) int {
	return cmp.Or(cmp.Compare(a.bound, b.bound), compareCells(a.cell, b.cell))
}

func newDescent(k *Keeper, p *query.Plan) *descent {
	return &descent{
		k: k, plan: p, notes: &journal{wanted: p.Explain()},
		seen: make(map[records.CellKey]bool), results: make(map[records.Name]*records.Record), last: math.Inf(1),
	}
}

// run asks until nothing that was not asked can have a result, or it may ask no more.
func (d *descent) run(ctx context.Context, cells []records.CellKey) error {
	for _, c := range cells {
		d.seen[c] = true
	}
	for len(cells) > 0 {
		before := len(d.groups)
		if err := d.ask(ctx, cells); err != nil {
			if before == 0 {
				return err
			}
			d.reopen(cells)
			return nil
		}
		for i := range d.groups[before:] {
			d.learn(&d.groups[before+i])
		}
		cells = d.next(ctx)
	}
	return unanswered(ctx, d.groups)
}

// ask asks the keepers of cells.
func (d *descent) ask(ctx context.Context, cells []records.CellKey) error {
	sets, err := d.k.keepersOf(ctx, cells)
	if err != nil {
		return err
	}
	d.cells = append(d.cells, cells...)
	var groups []gathered
	for _, g := range groupOf(cells, sets) {
		for some := range slices.Chunk(g.cells, MaxQueryCells) {
			groups = append(groups, gathered{cells: some, set: g.set})
		}
	}
	q := question{plan: d.plan, worst: d.last}
	var wg sync.WaitGroup
	for i := range groups {
		wg.Go(func() { d.k.gather(ctx, q, &groups[i], d.notes) })
	}
	wg.Wait()
	d.groups = append(d.groups, groups...)
	return nil
}

// reopen says that cells were not asked about after all.
func (d *descent) reopen(cells []records.CellKey) {
	for _, c := range cells {
		d.open = append(d.open, prospect{c, math.Inf(-1)})
	}
}

// learn takes in what a group's keepers answered: results, and the children of cells that
// any of them has divided. Of several views of a child the better bound holds.
func (d *descent) learn(g *gathered) {
	for _, a := range g.answers {
		for _, r := range a.records {
			d.result(r)
		}
	}
	for _, c := range g.cells {
		bounds := make(map[geo.Cell]float64)
		for _, a := range g.answers {
			for place, s := range a.splits[c].Children {
				if bound, some := s.Bound(d.plan, place); some {
					if known, ok := bounds[place]; !ok || bound < known {
						bounds[place] = bound
					}
				}
			}
		}
		for place, bound := range bounds {
			child := records.CellKey{Type: c.Type, Subtype: c.Subtype, Cell: place}
			if !d.seen[child] {
				d.seen[child] = true
				d.open = append(d.open, prospect{child, bound})
			}
		}
	}
	slices.SortFunc(d.open, prospect.compare)
}

// result notes a record, or the fresher version that is known of it here.
func (d *descent) result(r *records.Record) {
	if latest, ok := d.k.Index.Latest(r.Name()); ok && records.Compare(latest, r) > 0 {
		r = latest
	}
	if known, ok := d.results[r.Name()]; ok && records.Compare(known, r) >= 0 {
		return
	}
	d.results[r.Name()] = r
}

// rank finds the last of the results within the limit.
func (d *descent) rank() {
	best, now := query.NewTopK(d.plan.Limit()), d.k.Now()
	for _, r := range d.results {
		if !r.Expired(now) && d.plan.Match(r) {
			best.Offer(query.Hit{Record: r, Value: d.plan.Value(r)})
		}
	}
	d.last = math.Inf(1)
	var worst query.Hit
	if worst, d.filled = best.Worst(); d.filled {
		d.last = worst.Value
	}
}

// next takes the cells to ask about next: those that can have a result.
func (d *descent) next(ctx context.Context) []records.CellKey {
	if len(d.open) == 0 {
		return nil
	}
	d.rank()
	able := len(d.open)
	if d.filled {
		at := slices.IndexFunc(d.open, func(p prospect) bool { return p.bound > d.last }) // on a tie the names decide
		if at >= 0 {
			able = at
		}
	}
	n := min(able, descentWidth, maxDescents-len(d.cells))
	if n <= 0 || ctx.Err() != nil {
		return nil
	}
	var cells []records.CellKey
	for _, p := range d.open[:n] {
		cells = append(cells, p.cell)
		d.notes.add("descending into %s, which has nothing better than %g", p.cell, p.bound)
	}
	d.open = slices.Clone(d.open[n:])
	return cells
}

// lacks says why the merged records may not hold the best matches; "" when they do.
func (d *descent) lacks(recs []*records.Record) string {
	if why := lacks(d.plan, recs, d.groups); why != "" {
		return why
	}
	worst := worstKept(d.plan, recs)
	left := 0
	for _, p := range d.open {
		if p.bound <= worst {
			left++
		}
	}
	if n := len(d.open) - left; n > 0 {
		d.notes.add("left out %d parts of divided cells, which have nothing better than %g", n, worst)
	}
	switch {
	case left == 0:
		return ""
	case len(d.cells) >= maxDescents:
		return fmt.Sprintf("%d parts of divided cells were not asked about, after %d that were", left, len(d.cells))
	default:
		return fmt.Sprintf("%d parts of divided cells were not asked about in time", left)
	}
}
