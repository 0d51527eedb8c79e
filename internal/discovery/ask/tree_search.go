package ask

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// treeSearch is one query. It asks about cells and, below split cells, about children: best
// bound first, until no other child can improve the result. Only the goroutine of the query
// uses it.
type treeSearch struct {
	*Asker
	plan  *query.Plan
	trace *queryTrace

	asked      []records.CellKey
	known      map[records.CellKey]bool         // asked or candidate
	groups     []group                          // answers about the asked cells
	candidates []candidate                      // children not asked yet, best first
	results    map[records.Name]*records.Record // newest versions in the answers
	worst      float64                          // rank value of the last result within the limit; +Inf below the limit
}

// candidate is a child of a split cell that may have a result.
type candidate struct {
	cell  records.CellKey
	bound float64 // best possible rank value of a match in the cell
}

func (a candidate) compare(b candidate) int {
	return cmp.Or(cmp.Compare(a.bound, b.bound), wire.CompareCells(a.cell, b.cell))
}

func newTreeSearch(a *Asker, p *query.Plan) *treeSearch {
	return &treeSearch{
		Asker: a, plan: p, trace: &queryTrace{enabled: p.Explain()},
		known: make(map[records.CellKey]bool), results: make(map[records.Name]*records.Record), worst: math.Inf(1),
	}
}

// run asks until no candidate can improve the result, or until a limit.
func (t *treeSearch) run(ctx context.Context, first []records.CellKey) error {
	for _, c := range first {
		t.known[c] = true
	}
	for cells := first; len(cells) > 0; cells = t.next(ctx) {
		before := len(t.groups)
		if err := t.askAbout(ctx, cells); err != nil {
			if before == 0 {
				return err
			}
			for _, c := range cells { // not asked after all
				t.candidates = append(t.candidates, candidate{c, math.Inf(-1)})
			}
			return nil
		}
		for i := range t.groups[before:] {
			t.merge(&t.groups[before+i])
		}
	}
	return unanswered(ctx, t.groups)
}

// askAbout asks the keepers of the cells.
func (t *treeSearch) askAbout(ctx context.Context, cells []records.CellKey) error {
	sets, err := t.closest.KeepersOf(ctx, cells)
	if err != nil {
		return err
	}
	t.asked = append(t.asked, cells...)
	var groups []group
	for _, g := range groupCells(cells, sets) {
		for some := range slices.Chunk(g.cells, wire.MaxQueryCells) {
			groups = append(groups, group{cells: some, set: g.set})
		}
	}
	q := cellQuery{plan: t.plan, worst: t.worst}
	var wg sync.WaitGroup
	for i := range groups {
		wg.Go(func() { t.askGroup(ctx, q, &groups[i], t.trace) })
	}
	wg.Wait()
	for i := range groups {
		if id, some := groups[i].odd(); some {
			t.client.Avoid(id)
		}
	}
	t.groups = append(t.groups, groups...)
	return nil
}

// merge adds the records of a group's answers to the results, and the children of split cells
// to the candidates. Of several bounds for a child the best applies.
func (t *treeSearch) merge(g *group) {
	addNewest(t.results, g.answers)
	for _, c := range g.cells {
		if !g.divided(c) {
			continue
		}
		for place, bound := range g.children(c, t.plan) {
			if child := wire.CellAt(c, place); !t.known[child] {
				t.known[child] = true
				t.candidates = append(t.candidates, candidate{child, bound})
			}
		}
	}
	slices.SortFunc(t.candidates, candidate.compare)
}

// found returns the newest version of every record in the answers, by name.
func (t *treeSearch) found() []*records.Record {
	return slices.SortedFunc(maps.Values(t.results), func(a, b *records.Record) int { return a.Name().Compare(b.Name()) })
}

// next takes from the candidates the cells that can improve the result.
func (t *treeSearch) next(ctx context.Context) []records.CellKey {
	if len(t.candidates) == 0 {
		return nil
	}
	live, now := make([]*records.Record, 0, len(t.results)), t.Now()
	for _, r := range t.results {
		if latest, ok := t.Index.Latest(r.Name()); ok && records.Compare(latest, r) > 0 {
			r = latest
		}
		if !r.Expired(now) && t.plan.Match(r) {
			live = append(live, r)
		}
	}
	t.worst = t.plan.Worst(live)
	able := slices.IndexFunc(t.candidates, func(c candidate) bool { return c.bound > t.worst }) // equal bounds: the names decide
	if able < 0 {
		able = len(t.candidates)
	}
	n := min(able, searchWidth, maxSearchedCells-len(t.asked))
	if n <= 0 || ctx.Err() != nil {
		return nil
	}
	var cells []records.CellKey
	for _, c := range t.candidates[:n] {
		cells = append(cells, c.cell)
		t.trace.add("searching child cell %s, bound %g", c.cell, c.bound)
	}
	t.candidates = slices.Clone(t.candidates[n:])
	return cells
}

// incomplete returns the reason why the merged records may miss a best match; "" if they
// cannot.
func (t *treeSearch) incomplete(recs []*records.Record) string {
	if why := incomplete(t.plan, recs, t.groups); why != "" {
		return why
	}
	if ago, recent := t.authority.Know.Returned(t.authority.Clock()); recent && slices.ContainsFunc(t.groups, group.foreign) {
		return fmt.Sprintf("contact with other peers returned %s ago: the keepers may not have compared their records yet", ago.Round(time.Millisecond))
	}
	worst := t.plan.Worst(recs)
	able := 0
	for _, c := range t.candidates {
		if c.bound <= worst {
			able++
		}
	}
	if n := len(t.candidates) - able; n > 0 {
		t.trace.add("skipped %d child cells with bounds above %g", n, worst)
	}
	switch {
	case able == 0:
		return ""
	case len(t.asked) >= maxSearchedCells:
		return fmt.Sprintf("the search reached its limit of %d cells: %d child cells of split cells are not searched", len(t.asked), able)
	default:
		return fmt.Sprintf("%d child cells of split cells are not searched in time", able)
	}
}
