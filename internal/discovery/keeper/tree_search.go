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

// treeSearch is the course of one query: it asks about cells and, where these are divided,
// about their children, those with the best bounds first, for as long as one may have a
// result. It is owned by the query's goroutine.
type treeSearch struct {
	k     *Keeper
	plan  *query.Plan
	trace *queryTrace

	cells      []records.CellKey // asked about
	known      map[records.CellKey]bool
	groups     []group
	candidates []candidate // not asked about, best first
	results    map[records.Name]*records.Record
	worst      float64 // rank value of the last result within the limit; +Inf while there is room
	filled     bool    // there are as many results as asked for
}

// candidate is a child of a divided cell that may have a result.
type candidate struct {
	cell  records.CellKey
	bound float64 // no match in it has a better rank value
}

func (a candidate) compare(b candidate) int {
	return cmp.Or(cmp.Compare(a.bound, b.bound), compareCells(a.cell, b.cell))
}

func newTreeSearch(k *Keeper, p *query.Plan) *treeSearch {
	return &treeSearch{
		k: k, plan: p, trace: &queryTrace{enabled: p.Explain()},
		known: make(map[records.CellKey]bool), results: make(map[records.Name]*records.Record), worst: math.Inf(1),
	}
}

// run asks until nothing that was not asked can have a result, or it may ask no more.
func (d *treeSearch) run(ctx context.Context, cells []records.CellKey) error {
	for _, c := range cells {
		d.known[c] = true
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
			d.merge(&d.groups[before+i])
		}
		cells = d.next(ctx)
	}
	return unanswered(ctx, d.groups)
}

// ask asks the keepers of cells.
func (d *treeSearch) ask(ctx context.Context, cells []records.CellKey) error {
	sets, err := d.k.keepersOf(ctx, cells)
	if err != nil {
		return err
	}
	d.cells = append(d.cells, cells...)
	var groups []group
	for _, g := range groupCells(cells, sets) {
		for some := range slices.Chunk(g.cells, MaxQueryCells) {
			groups = append(groups, group{cells: some, set: g.set})
		}
	}
	q := cellQuery{plan: d.plan, worst: d.worst}
	var wg sync.WaitGroup
	for i := range groups {
		wg.Go(func() { d.k.askGroup(ctx, q, &groups[i], d.trace) })
	}
	wg.Wait()
	d.groups = append(d.groups, groups...)
	return nil
}

// reopen says that cells were not asked about after all.
func (d *treeSearch) reopen(cells []records.CellKey) {
	for _, c := range cells {
		d.candidates = append(d.candidates, candidate{c, math.Inf(-1)})
	}
}

// merge takes in what a group's keepers answered: results, and the children of cells that
// any of them has divided. Of several views of a child the better bound holds.
func (d *treeSearch) merge(g *group) {
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
			if !d.known[child] {
				d.known[child] = true
				d.candidates = append(d.candidates, candidate{child, bound})
			}
		}
	}
	slices.SortFunc(d.candidates, candidate.compare)
}

// result notes a record, or the fresher version that is known of it here.
func (d *treeSearch) result(r *records.Record) {
	if latest, ok := d.k.Index.Latest(r.Name()); ok && records.Compare(latest, r) > 0 {
		r = latest
	}
	if known, ok := d.results[r.Name()]; ok && records.Compare(known, r) >= 0 {
		return
	}
	d.results[r.Name()] = r
}

// rank finds the last of the results within the limit.
func (d *treeSearch) rank() {
	best, now := query.NewTopK(d.plan.Limit()), d.k.Now()
	for _, r := range d.results {
		if !r.Expired(now) && d.plan.Match(r) {
			best.Offer(query.Hit{Record: r, Value: d.plan.Value(r)})
		}
	}
	d.worst = math.Inf(1)
	var worst query.Hit
	if worst, d.filled = best.Worst(); d.filled {
		d.worst = worst.Value
	}
}

// next takes the cells to ask about next: those that can have a result.
func (d *treeSearch) next(ctx context.Context) []records.CellKey {
	if len(d.candidates) == 0 {
		return nil
	}
	d.rank()
	able := len(d.candidates)
	if d.filled {
		at := slices.IndexFunc(d.candidates, func(p candidate) bool { return p.bound > d.worst }) // on a tie the names decide
		if at >= 0 {
			able = at
		}
	}
	n := min(able, searchWidth, maxSearchedCells-len(d.cells))
	if n <= 0 || ctx.Err() != nil {
		return nil
	}
	var cells []records.CellKey
	for _, p := range d.candidates[:n] {
		cells = append(cells, p.cell)
		d.trace.add("descending into %s, which has nothing better than %g", p.cell, p.bound)
	}
	d.candidates = slices.Clone(d.candidates[n:])
	return cells
}

// incomplete says why the merged records may not hold the best matches; "" when they do.
func (d *treeSearch) incomplete(recs []*records.Record) string {
	if why := incomplete(d.plan, recs, d.groups); why != "" {
		return why
	}
	worst := worstValue(d.plan, recs)
	left := 0
	for _, p := range d.candidates {
		if p.bound <= worst {
			left++
		}
	}
	if n := len(d.candidates) - left; n > 0 {
		d.trace.add("left out %d parts of divided cells, which have nothing better than %g", n, worst)
	}
	switch {
	case left == 0:
		return ""
	case len(d.cells) >= maxSearchedCells:
		return fmt.Sprintf("%d parts of divided cells were not asked about, after %d that were", left, len(d.cells))
	default:
		return fmt.Sprintf("%d parts of divided cells were not asked about in time", left)
	}
}
