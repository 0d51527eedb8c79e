package discovery

import (
	"maps"
	"slices"
	"strings"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
)

// counter answers queries with Cells from this peer's index. It asks no other peer, because a map asks again with each
// movement. So an answer is complete only where this peer keeps all that can match.
type counter struct {
	*Parts
	defaults query.Defaults
	plan     func(query.Query) (plan *query.Plan, unreachable []peer.ID, err error)
}

func (c *counter) answer(q query.Query) (*query.Answer, error) {
	const op = "discovery.Query"
	start := c.Now()
	if err := query.Check(q, c.defaults); err != nil {
		c.Metrics.Failed(op, err)
		return nil, fault.Wrap(op, err)
	}
	length := q.Cells
	q.Cells, q.Limit = 0, 1 // the search below decides only whether this peer keeps all
	list, err := q.Split()
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	counts, unplaced := make(map[geo.Cell]int), 0
	parts := make([]*part, len(list))
	for i, one := range list {
		plan, excluded, err := c.plan(one)
		if err != nil {
			return nil, fault.Wrap(op, err)
		}
		a := c.counted(plan)
		c.tellUnreachable(a, excluded)
		for r := range c.Index.In(plan.Cells(1)[0], start) {
			if !plan.Match(r) {
				continue
			}
			a.Total++
			if at, placed := r.Facts().Place(); placed {
				counts[geo.CellOf(at, length)]++
			} else {
				unplaced++
			}
		}
		parts[i] = &part{about: one.Type, answer: a}
	}
	a := join(parts)
	a.Source, a.Cells = query.SourceLocal, cellsOf(counts, length)
	a.Cells.Unplaced = unplaced
	a.Took = c.Now().Sub(start)
	c.Metrics.Queried(string(a.Source), a.Took, len(a.Cells.Counts))
	return a, nil
}

// counted returns an answer without matches: complete if this peer keeps all that can match.
func (c *counter) counted(plan *query.Plan) *query.Answer {
	found, kept := c.Keepers.Local(plan)
	a := &query.Answer{Complete: kept && found.Complete, Reason: found.Reason, Beyond: found.Beyond}
	if !kept {
		a.Reason += "; the counts are of those that it knows"
	}
	a.AtLeast = !a.Complete
	return a
}

// cellsOf returns the counts by cell. While they are too many, it joins cells to larger ones.
func cellsOf(counts map[geo.Cell]int, length int) *query.Cells {
	for ; len(counts) > query.MaxCells; length-- {
		larger := make(map[geo.Cell]int)
		for c, n := range counts {
			larger[c[:length-1]] += n
		}
		counts = larger
	}
	c := &query.Cells{Length: length, Counts: make([]query.CellCount, 0, len(counts))}
	for _, place := range slices.SortedFunc(maps.Keys(counts), func(a, b geo.Cell) int { return strings.Compare(string(a), string(b)) }) {
		c.Counts = append(c.Counts, query.CellCount{Cell: place, Count: counts[place]})
	}
	return c
}
