package ask

import (
	"context"
	"math"
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// SplitsOf returns the splits of a cell at two other keepers, if they split it.
func (a *Asker) SplitsOf(ctx context.Context, c records.CellKey) (splits []cell.SplitInfo) {
	set, err := a.closest.Keepers(ctx, c)
	if err != nil {
		return nil
	}
	plan, err := planOfAll(c, 1)
	if err != nil {
		return nil
	}
	order := slices.DeleteFunc(a.askingOrder(set), func(id peer.ID) bool { return id == a.Self })
	for _, id := range order[:min(wire.AskedAtOnce, len(order))] {
		r := a.ask(ctx, id, cellQuery{plan: plan, cells: []records.CellKey{c}, worst: math.Inf(1), tokens: true}, &queryTrace{})
		if info, ok := r.answer.splits[c]; r.err == nil && ok {
			splits = append(splits, info)
		}
	}
	return splits
}

// planOfAll returns a query for all records of a cell, up to a limit.
func planOfAll(c records.CellKey, limit int) (*query.Plan, error) {
	q := query.Query{Type: c.Type, Quality: query.Quality{Health: query.HealthAny}, Limit: limit}
	if c.Subtype != records.AnySubtype {
		q.Subtype = c.Subtype
	}
	return query.Compile(q, query.Defaults{})
}

// FetchAll adds all records of the children of a cell to the index. It reports whether it got all.
func (a *Asker) FetchAll(ctx context.Context, c records.CellKey, children []records.CellKey) bool {
	plan, err := planOfAll(c, query.MaxLimit)
	if err != nil {
		a.Logger.Error("invalid query for a whole cell: please report this defect", "cell", c, "error", err)
		return false
	}
	ctx, end, err := a.Begin(ctx, "query", a.Limits.Query)
	if err != nil {
		return false
	}
	found, err := a.Find(ctx, plan, children)
	end(err)
	return err == nil && found.Complete
}

// Summaries asks the keepers of cells for summaries, and calls use with each. Sure reports that two keepers agree to it, or that the
// only keeper does.
func (a *Asker) Summaries(ctx context.Context, cells []records.CellKey, use func(c records.CellKey, s cell.Summary, sure bool)) {
	ctx, end, err := a.Begin(ctx, "summarise", summariesTimeout)
	if err != nil {
		return
	}
	defer func() { end(err) }()
	sets, err := a.closest.KeepersOf(ctx, cells)
	if err != nil {
		return
	}
	groups := groupCells(cells, sets)
	wire.Bounded(summariesWidth, len(groups), func(i int) { a.summarise(ctx, groups[i], use) })
}

// summarise merges the summaries of the keepers of one group.
func (a *Asker) summarise(ctx context.Context, g group, use func(c records.CellKey, s cell.Summary, sure bool)) {
	for cells := range slices.Chunk(g.cells, wire.MaxQueryCells) {
		merged := make([]cell.Summary, len(cells))
		answers := 0
		for _, id := range a.askingOrder(g.set) {
			if answers == g.needed() || ctx.Err() != nil {
				break
			}
			summaries, err := a.askSummaries(ctx, id, cells)
			if err != nil {
				continue
			}
			answers++
			for i, s := range summaries {
				merged[i].Merge(s)
			}
		}
		for i, c := range cells {
			use(c, merged[i], answers == g.needed())
		}
	}
}

// askSummaries asks one keeper, or this peer itself, for the summaries of its cells.
func (a *Asker) askSummaries(ctx context.Context, id peer.ID, cells []records.CellKey) (all []cell.Summary, err error) {
	if id == a.Self {
		for _, c := range cells {
			all = append(all, a.splits.SummaryOf(c))
		}
		return all, nil
	}
	start := a.Now()
	ctx, end, err := a.Begin(ctx, "ask", a.Limits.Ask)
	if err != nil {
		return nil, err
	}
	defer func() {
		a.client.Observe(ctx, id, a.Now().Sub(start), err)
		end(err)
	}()
	req := &pb.SummaryRequest{Cells: wire.CellNames(cells)}
	resp, refused, err := a.client.Call(ctx, id, &pb.Request{Op: &pb.Request_Summary{Summary: req}})
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
		return nil, wire.Breach("%d summaries for %d cells", n, len(cells))
	}
	all := make([]cell.Summary, len(cells))
	for i, m := range resp.Summaries {
		place, summary, err := cell.FromProto(m)
		if err != nil {
			return nil, err
		}
		if place != cells[i].Cell {
			return nil, wire.Breach("a summary of %s instead of %s", place, cells[i].Cell)
		}
		all[i] = summary
	}
	if lacksAny(resp.NotKept, cells) {
		return nil, fault.New("keeper.ask", fault.Unavailable, "other keepers store some cells")
	}
	return all, nil
}
