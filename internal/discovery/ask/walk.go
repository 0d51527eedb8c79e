package ask

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/pkg/records"
)

// walk is one question. It asks about cells and, where most keepers of a cell say that it is full, about its children that can have a
// match. In an order of places it begins at the best ones, and ends when no other child can improve the result. Only the
// goroutine of the question uses it.
type walk struct {
	*Asker
	q     cellQuery
	trace *queryTrace
	each  bool // ask about each cell by itself
	upper bool // stay above the children: all matches are without a place

	asked   []records.CellKey
	known   map[records.CellKey]bool         // asked or due
	groups  []group                          // answers about the asked cells
	due     []child                          // not asked yet, best first
	results map[records.Name]*records.Record // newest versions in the answers
}

// child is a part of a full cell that may have a result.
type child struct {
	cell  records.CellKey
	bound float64 // no match in it has a better rank value
}

func (a child) compare(b child) int {
	return cmp.Or(cmp.Compare(a.bound, b.bound), protocol.CompareCells(a.cell, b.cell))
}

func newWalk(a *Asker, q cellQuery) *walk {
	q.worst = math.Inf(1)
	return &walk{
		Asker: a, q: q, trace: &queryTrace{enabled: q.plan.Explain()},
		known: make(map[records.CellKey]bool), results: make(map[records.Name]*records.Record),
	}
}

// run asks until no child can improve the result, or until a limit.
func (w *walk) run(ctx context.Context, first []records.CellKey) error {
	for _, c := range first {
		w.known[c] = true
	}
	for cells := first; len(cells) > 0; cells = w.next(ctx) {
		before := len(w.groups)
		if err := w.askAbout(ctx, cells); err != nil {
			if before == 0 {
				return err
			}
			for _, c := range cells { // not asked after all
				w.due = append(w.due, child{c, math.Inf(-1)})
			}
			return nil
		}
		for i := range w.groups[before:] {
			w.merge(&w.groups[before+i])
		}
	}
	w.trace.add("asked about %d cells", len(w.asked))
	return unanswered(ctx, w.groups)
}

// askAbout asks the keepers of the cells.
func (w *walk) askAbout(ctx context.Context, cells []records.CellKey) error {
	sets, err := w.closest.KeepersOf(ctx, cells)
	if err != nil {
		return err
	}
	w.asked = append(w.asked, cells...)
	var groups []group
	for _, g := range groupCells(cells, sets) {
		size := protocol.MaxQueryCells
		if w.each {
			size = 1
		}
		for some := range slices.Chunk(g.cells, size) {
			groups = append(groups, group{cells: some, set: g.set})
		}
	}
	protocol.Bounded(searchWidth, len(groups), func(i int) { w.askGroup(ctx, w.q, &groups[i], w.trace) })
	for i := range groups {
		if id, some := groups[i].odd(); some {
			w.client.Avoid(id)
		}
		for _, id := range groups[i].outdated() {
			w.client.Outdated(id)
		}
	}
	w.groups = append(w.groups, groups...)
	return nil
}

// merge adds the records of a group's answers to the results, and the children of full cells to those that are due.
func (w *walk) merge(g *group) {
	addNewest(w.results, g.answers)
	for _, c := range g.cells {
		if w.upper || !keep.Divisible(c) || !g.crowded(c) {
			continue
		}
		w.trace.add("the cell %s is full: searching its children", c)
		for _, part := range c.Cell.Children() {
			if bound, some := w.q.plan.Bound(part); some && !w.known[protocol.CellAt(c, part)] {
				w.known[protocol.CellAt(c, part)] = true
				w.due = append(w.due, child{protocol.CellAt(c, part), bound})
			}
		}
	}
	slices.SortFunc(w.due, child.compare)
}

// found returns the newest version of every record in the answers, by name.
func (w *walk) found() []*records.Record {
	return slices.SortedFunc(maps.Values(w.results), func(a, b *records.Record) int { return a.Name().Compare(b.Name()) })
}

// next takes the children that can improve the result, or count: all at once, or a few in an order of places.
func (w *walk) next(ctx context.Context) []records.CellKey {
	if len(w.due) == 0 || ctx.Err() != nil {
		return nil
	}
	n := len(w.due)
	if !math.IsInf(w.due[0].bound, -1) && !w.q.plan.ExactTotal() {
		live, now := make([]*records.Record, 0, len(w.results)), w.Now()
		for _, r := range w.results {
			if latest, ok := w.Index.Latest(r.Name()); ok && records.Compare(latest, r) > 0 {
				r = latest
			}
			if !r.Expired(now) && w.q.plan.Match(r) {
				live = append(live, r)
			}
		}
		w.q.worst = w.q.plan.Worst(live)
		n = min(w.able(w.q.worst), orderedWidth)
	}
	n = min(n, maxSearchedCells-len(w.asked))
	if n <= 0 {
		return nil
	}
	var cells []records.CellKey
	for _, c := range w.due[:n] {
		cells = append(cells, c.cell)
	}
	w.due = slices.Clone(w.due[n:])
	return cells
}

// able counts the due children that may have a match of at most a rank value. Of equal ones the names decide.
func (w *walk) able(worst float64) int {
	n := slices.IndexFunc(w.due, func(c child) bool { return c.bound > worst })
	if n < 0 {
		return len(w.due)
	}
	return n
}

// incomplete returns the reason why the merged records may miss a best match; "" if they
// cannot.
func (w *walk) incomplete(recs []*records.Record) string {
	if why := incomplete(w.q.plan, recs, w.groups); why != "" {
		return why
	}
	if ago, recent := w.authority.Know.Returned(w.authority.Clock()); recent && slices.ContainsFunc(w.groups, group.foreign) {
		return fmt.Sprintf("contact with other peers returned %s ago: the keepers may not have compared their records yet", ago.Round(time.Millisecond))
	}
	able := w.able(w.q.plan.Worst(recs))
	if n := len(w.due) - able; n > 0 {
		w.trace.add("skipped %d children of full cells, which are behind the last result", n)
	}
	switch {
	case able == 0:
		return ""
	case len(w.asked) >= maxSearchedCells:
		return fmt.Sprintf("the search reached its limit of %d cells: %d children of full cells are not searched", len(w.asked), able)
	default:
		return fmt.Sprintf("%d children of full cells are not searched in time", able)
	}
}
