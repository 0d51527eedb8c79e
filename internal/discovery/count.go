package discovery

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/libp2p/go-libp2p/core/peer"

	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// countedCells bounds the cells of one length that a count asks other keepers about. A question for more gets larger cells.
const countedCells = 128

// counter answers queries with Cells: from this peer's index where it keeps all that can match, else with the keepers of the cells.
type counter struct {
	*Parts
	defaults queries.Defaults
}

func (c *counter) answer(ctx context.Context, q query.Query) (*ranked, error) {
	const op = "discovery.Query"
	start := c.Now()
	if err := queries.Check(q, c.defaults); err != nil {
		c.Metrics.Failed(op, err)
		return nil, fault.Wrap(op, err)
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	t := tally{length: q.Cells, several: len(q.Types) > 0, counts: make(map[geo.Cell]query.CellCount)}
	q.Cells, q.Limit, q.ExactTotal = 0, 1, true
	list, err := queries.Split(q)
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	parts := make([]*part, len(list))
	for i, one := range list {
		plan, err := queries.Compile(one, c.defaults)
		if err != nil {
			return nil, fault.Wrap(op, err)
		}
		t.about = one.Type
		a := c.count(ctx, plan, &t)
		a.AtLeast = !a.Complete
		parts[i] = &part{about: one.Type, answer: &ranked{Answer: *a}}
	}
	a := join(parts)
	a.Cells = t.cells()
	a.Took = c.Now().Sub(start)
	c.Metrics.Queried(string(a.Source), a.Took, len(a.Cells.Counts))
	return a, nil
}

// count adds the matches of a plan to a tally, and returns an answer without them.
func (c *counter) count(ctx context.Context, plan *queries.Plan, t *tally) *query.Answer {
	found, kept := c.Keepers.Local(plan)
	if !kept {
		a, err := c.ask(ctx, plan, t)
		if err == nil {
			return a
		}
		found = queries.Found{Reason: err.Error() + "; the counts are of those that this peer knows"}
	}
	hidden := c.hidden(plan.AnyHealth())
	a := &query.Answer{Source: query.SourceLocal, Complete: kept && found.Complete, Reason: found.Reason, Beyond: found.Beyond}
	for _, cell := range plan.Cells(1) {
		for r := range c.Index.In(cell, c.Now()) {
			if plan.Match(r) && !hidden.has(r) {
				a.Total++
				t.add(plan, r)
			}
		}
	}
	return a
}

// ask counts at other keepers: first in large cells, then in the parts of those with a match. An error changes no count.
func (c *counter) ask(ctx context.Context, plan *queries.Plan, t *tally) (*query.Answer, error) {
	a := &query.Answer{Source: query.SourceNetwork, Complete: true}
	if plan.Cells(1)[0].OfProvider() { // a few records without cells
		q := plan.Query()
		q.Limit = queries.MaxLimit
		all, err := queries.Compile(q, c.defaults)
		if err != nil {
			return nil, err
		}
		found, err := c.Keepers.Query(ctx, all)
		a.Total, a.Complete, a.Reason, a.Beyond = len(found.Records), found.Complete, found.Reason, found.Beyond
		if found.Total > q.Limit {
			a.Complete, a.Reason = false, fmt.Sprintf("the count reached its limit of %d offers of one provider", q.Limit)
		}
		for _, r := range found.Records {
			t.add(plan, r)
		}
		return a, err
	}
	disc, bounded := plan.Disc()
	places := geo.Global.Children()
	var unplaced []queries.Found
	if bounded {
		for length := 1; length <= t.length; length++ {
			if cover, ok := geo.CoverAt(disc, length, countedCells); ok {
				places = cover
			}
		}
	} else {
		q := plan.Query()
		q.Where = append(q.Where, query.Clause{Field: "location.latitude", Op: query.OpStated, Not: true})
		nowhere, err := queries.Compile(q, c.defaults)
		if err == nil {
			unplaced, err = c.Keepers.Count(ctx, nowhere, []geo.Cell{geo.Global}, true)
		}
		if err != nil {
			return nil, err
		}
	}
	found, err := c.Keepers.Count(ctx, plan, places, false)
	if err != nil {
		return nil, err
	}
	a.Beyond = found[0].Beyond
	for places[0].Len() < t.length {
		var parts []geo.Cell
		for i, f := range found {
			if f.Total > 0 {
				parts = append(parts, slices.DeleteFunc(places[i].Children(), func(p geo.Cell) bool { return bounded && !disc.Intersects(p.Box()) })...)
			}
		}
		if len(parts) == 0 || len(parts) > countedCells {
			break
		}
		finer, err := c.Keepers.Count(ctx, plan, parts, false)
		if err != nil {
			break
		}
		places, found = parts, finer
	}
	c.leaveOut(plan, found, places, unplaced)
	t.shorten(places[0].Len())
	for i, f := range found {
		t.put(places[i], f.Total, priceAmong(plan, f.Records), t.menu(f.Total, f.Menu))
	}
	for _, f := range unplaced {
		t.unplaced += f.Total
		t.elsewhere.Join(t.menu(f.Total, f.Menu))
	}
	for _, f := range slices.Concat(found, unplaced) {
		a.Total, a.Complete, a.Reason = a.Total+f.Total, a.Complete && f.Complete, cmp.Or(a.Reason, f.Reason)
	}
	return a, nil
}

// leaveOut takes the matches that are dead out of what keepers counted, as far as this peer knows them.
func (c *counter) leaveOut(plan *queries.Plan, found []queries.Found, places []geo.Cell, unplaced []queries.Found) {
	hidden := c.hidden(plan.AnyHealth())
	providers := make(map[peer.ID]bool)
	for n := range hidden.dead {
		providers[n.Provider] = true
	}
	for id := range providers {
		for _, r := range c.Index.OfProvider(id) {
			if !hidden.has(r) || r.Expired(c.Now()) || !plan.Match(r) {
				continue
			}
			at, placed := r.Facts().Place()
			for i := range found {
				if placed && places[i].Contains(at) {
					found[i].Total = max(found[i].Total-1, 0)
				}
			}
			for i := range unplaced {
				if !placed {
					unplaced[i].Total = max(unplaced[i].Total-1, 0)
				}
			}
		}
	}
}

// tally are the counts of an answer.
type tally struct {
	length    int // of the geohashes
	counts    map[geo.Cell]query.CellCount
	unplaced  int
	elsewhere query.Menu // of the unplaced ones

	several bool   // types are counted
	about   string // the present one
}

// menu adds the present type to what is known of n matches.
func (t *tally) menu(n int, m query.Menu) query.Menu {
	if t.several && n > 0 {
		m.Types = map[string]int{t.about: n}
	}
	return m
}

// add counts a match.
func (t *tally) add(p *queries.Plan, r *records.Record) {
	m := p.Menu(r)
	if at, placed := r.Facts().Place(); placed {
		t.put(geo.CellOf(at, t.length), 1, priceAmong(p, []*records.Record{r}), t.menu(1, m))
	} else {
		t.unplaced++
		t.elsewhere.Join(t.menu(1, m))
	}
}

// put counts n matches in a cell of at least the tally's length.
func (t *tally) put(c geo.Cell, n int, least *float64, m query.Menu) {
	if n == 0 {
		return
	}
	c = c[:t.length]
	x := t.counts[c]
	x.Cell, x.Count = c, x.Count+n
	if least != nil && (x.Least == nil || *least < *x.Least) {
		x.Least = least
	}
	x.Menu.Join(m)
	t.counts[c] = x
}

// priceAmong returns the least price of some matches of a plan by price; nil without one.
func priceAmong(p *queries.Plan, recs []*records.Record) (least *float64) {
	for _, r := range recs {
		if v := p.Value(r); p.Sort() == query.SortPrice && !math.IsInf(v, 1) && (least == nil || v < *least) {
			least = &v
		}
	}
	return least
}

// shorten joins cells to those of a smaller length.
func (t *tally) shorten(length int) {
	if length >= t.length {
		return
	}
	finer := t.counts
	t.length, t.counts = length, make(map[geo.Cell]query.CellCount)
	for c, x := range finer {
		t.put(c, x.Count, x.Least, x.Menu)
	}
}

// cells returns the counts by cell. While they are too many, it joins cells to larger ones.
func (t *tally) cells() *query.Cells {
	for len(t.counts) > queries.MaxCells {
		t.shorten(t.length - 1)
	}
	all := t.elsewhere
	for _, x := range t.counts {
		all.Join(x.Menu)
	}
	byCell := func(a, b query.CellCount) int { return strings.Compare(string(a.Cell), string(b.Cell)) }
	return &query.Cells{Length: t.length, Counts: append([]query.CellCount{}, slices.SortedFunc(maps.Values(t.counts), byCell)...), Unplaced: t.unplaced, Menu: all}
}
