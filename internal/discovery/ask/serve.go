package ask

import (
	"context"
	"math"
	"strings"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/strictproto"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// ServeQuery answers a QUERY from the index, restricted to the cells in the request. The response names
// the cells that this peer does not keep, or keeps only since recently; for these it returns the
// records at hand.
func (a *Asker) ServeQuery(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error) {
	plan, cells, err := parseQuery(req)
	if err != nil {
		return nil, err
	}
	h := a.held(cells)
	found := a.searchHeld(plan, &h)
	if ctx.Err() != nil {
		return nil, fault.Wrap("", ctx.Err())
	}
	worst := math.Inf(1)
	if w := req.Worst; w != nil && !math.IsNaN(*w) {
		worst = *w
	}
	resp := responseOf(found, worst)
	a.addBeyond(resp, plan, h.parts)
	resp.Full, resp.UnplacedFull = protocol.CellNames(h.full), a.unplacedFull(cells)
	if req.Menu {
		described, total := a.menuOf(plan, h.counted)
		resp.Menu, resp.Total = queries.MenuProto(described), uint64(total)
	}
	lacking, doubt := a.unsure(cells)
	resp.NotKept, resp.Doubt = protocol.CellNames(lacking), doubt
	return resp, nil
}

// parseQuery parses a query and its cells.
func parseQuery(req *pb.QueryRequest) (*queries.Plan, []records.CellKey, error) {
	if req.GetQuery() == nil {
		return nil, nil, fault.Invalidf("query", nil, "is required")
	}
	q, err := queries.FromProto(req.Query)
	var plan *queries.Plan
	if err == nil {
		plan, err = queries.Compile(q, queries.Defaults{})
	}
	if laterClause(err) {
		return nil, nil, strictproto.Refuse([]string{"query.query.where"})
	}
	if err != nil {
		return nil, nil, err
	}
	cells, err := protocol.CellsOf(req.GetCells(), protocol.MaxQueryCells)
	if err != nil {
		return nil, nil, err
	}
	for _, c := range cells {
		if err := checkCell(c, plan, cells[0].Subtype); err != nil {
			return nil, nil, err
		}
	}
	return plan, cells, nil
}

// laterClause reports whether a query is invalid because of a clause on a field, or with an operation, that this
// version does not know. A newer peer may send it legitimately: do not count it as misbehaviour.
func laterClause(err error) bool {
	field := fault.FieldOf(err)
	return strings.HasPrefix(field, "where[") && (strings.HasSuffix(field, "].field") || strings.HasSuffix(field, "].op"))
}

// checkCell checks that a cell belongs to a query: it is the cell of the query's provider, or it has the query's type
// and the subtype of all other cells.
func checkCell(c records.CellKey, p *queries.Plan, subtype string) error {
	switch {
	case c.OfProvider():
		if c.Provider != p.Filter().Provider {
			return fault.Invalidf("cells", c.String(), "needs a query for that provider")
		}
	case c.Type != p.Type() || c.Subtype != subtype:
		return fault.Invalidf("cells", c.String(), "must match the query's type, with one subtype")
	case c.Subtype != records.AnySubtype && c.Subtype != p.Subtype():
		return fault.Invalidf("cells", c.String(), "must match the query's subtype or use _")
	}
	return nil
}

// geoCells returns the cells' places for a search; nil, without a restriction, if one is Global.
func geoCells(cells []records.CellKey) []geo.Cell {
	places := make([]geo.Cell, len(cells))
	for i, c := range cells {
		if c.Cell == geo.Global {
			return nil
		}
		places[i] = c.Cell
	}
	return places
}

// responseOf returns the best useful matches that fit into a response, and the bound of the
// others.
func responseOf(found index.Found, worst float64) *pb.QueryResponse {
	resp := &pb.QueryResponse{Total: uint64(max(found.Total, 0)), TotalAtLeast: !found.Exact}
	size := 0
	for _, h := range found.Hits {
		size += len(h.Record.Envelope())
		if h.Value > worst { // none behind it is of use: see queries.Plan.Worst
			resp.Withheld, resp.Bound = true, h.Value
			return resp
		}
		if size > protocol.MaxAnswer { // another keeper's matches of the same value may rank behind this one
			resp.Withheld, resp.Bound = true, math.Nextafter(h.Value, math.Inf(-1))
			if h.Class > queries.Callable || h.Turn > 0 {
				resp.Bound = math.Inf(-1) // matches of any value wait for their turn
			}
			return resp
		}
		resp.Envelopes = append(resp.Envelopes, h.Record.Envelope())
	}
	if found.Total > len(found.Hits) || !math.IsInf(found.Next, 1) {
		resp.Withheld, resp.Bound = true, found.Next
	}
	if math.IsNaN(resp.Bound) {
		resp.Bound = math.Inf(-1) // claims nothing
	}
	return resp
}
