package keeper

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// modelCell is a cell as its keepers hold it, from the rules of cells alone. So a search below it is known for more records than can be played.
type modelCell struct {
	place    geo.Cell
	held     []*records.Record // of a divided cell the sample, and records without a place
	summary  cell.Summary
	children map[geo.Cell]*modelCell // of a divided cell
}

func modelCellOf(place geo.Cell, recs []*records.Record) *modelCell {
	c := &modelCell{place: place}
	for _, r := range recs {
		c.summary.Add(r)
	}
	if len(recs) <= cell.Full || !cell.Divisible(place) {
		c.held = recs
		return c
	}
	var sample cell.Sample
	parts := make(map[geo.Cell][]*records.Record)
	for _, r := range recs {
		if child, placed := cell.ChildOf(place, r); placed {
			parts[child] = append(parts[child], r)
			sample.Offer(cell.Member{Record: r})
		}
	}
	for _, r := range recs {
		if _, placed := cell.ChildOf(place, r); !placed || sample.Has(r.Name()) {
			c.held = append(c.held, r)
		}
	}
	c.children = make(map[geo.Cell]*modelCell, len(parts))
	for child, part := range parts {
		c.children[child] = modelCellOf(child, part)
	}
	return c
}

// size returns the number of cells below c, and the length of the smallest.
func (c *modelCell) size() (below, deepest int) {
	deepest = c.place.Len()
	for _, child := range c.children {
		n, d := child.size()
		below, deepest = below+1+n, max(deepest, d)
	}
	return below, deepest
}

// search is ask.treeSearch among honest keepers that miss nothing. It returns the number of cells asked below c, and the ids of the results.
func (c *modelCell) search(p *query.Plan) (below int, ids []string, complete bool) {
	const width = 16
	type candidate struct {
		*modelCell
		bound float64
	}
	var candidates []candidate
	results := make(map[records.Name]query.Hit)
	asked, worst := 0, math.Inf(1)
	var best []query.Hit
	for due := []candidate{{c, 0}}; len(due) > 0; {
		for _, x := range due {
			var hits []query.Hit
			for _, r := range x.held {
				if p.Match(r) {
					hits = append(hits, p.Hit(r))
				}
			}
			p.Arrange(hits)
			for _, h := range hits[:min(len(hits), p.Limit())] {
				results[h.Record.Name()] = h
			}
			for _, child := range x.children {
				if bound, some := child.summary.Bound(p, child.place); some {
					candidates = append(candidates, candidate{child, bound})
				}
			}
		}
		asked += len(due)
		best = slices.SortedFunc(maps.Values(results), query.Hit.Compare)
		if best = best[:min(len(best), p.Limit())]; len(best) == p.Limit() {
			worst = best[p.Limit()-1].Value
		}
		slices.SortFunc(candidates, func(a, b candidate) int { return cmp.Or(cmp.Compare(a.bound, b.bound), cmp.Compare(a.place, b.place)) })
		able := 0
		for able < len(candidates) && candidates[able].bound <= worst {
			able++
		}
		n := max(0, min(able, width, maxSearchedCells-asked))
		complete = able == 0
		due, candidates = slices.Clone(candidates[:n]), candidates[n:]
	}
	for _, h := range best {
		ids = append(ids, h.Record.Name().ID)
	}
	return asked - 1, ids, complete
}

// requireModel compares the model's search with all records, and with the number of cells that a played search asked, if some was played. With
// few peers that is smaller: a keeper of a divided cell has records of other cells too, and answers with all.
func requireModel(t testing.TB, recs []*records.Record, played map[string]int) {
	root := modelCellOf(geo.Global, recs)
	below, deepest := root.size()
	t.Logf("model of %d records: %d cells below global, of up to %d characters", len(recs), below, deepest)
	plans := worldQueries(t)
	plans[middle] = middlePage(t, recs)
	for _, name := range slices.Sorted(maps.Keys(plans)) {
		n, ids, complete := root.search(plans[name])
		right := slices.Equal(best(plans[name], recs), ids)
		t.Logf("model of %d records, %-27s %3d cells, exact %t, complete %t", len(recs), name, n, right, complete)
		require.True(t, right || !complete, name)
		if asked, some := played[name]; some {
			require.LessOrEqual(t, asked, n+2+n/10, name)
			require.GreaterOrEqual(t, asked, n/3-1, name)
		}
	}
}

const middle = "100 stable, from the middle"
