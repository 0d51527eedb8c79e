package keeper

import (
	"context"
	"errors"
	"math"
	"strings"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/internal/platform/strictproto"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// store handles a STORE request. Each item has its own result: a bad record does not affect the
// others.
func (s *server) store(ctx context.Context, from source, req *pb.StoreRequest) (*pb.StoreResponse, error) {
	h := s.k.newStoreHandler(from)
	results := make([]*pb.StoreResult, len(req.GetItems()))
	for i, item := range req.GetItems() {
		sequence, err := s.accept(ctx, from, item, h)
		results[i] = &pb.StoreResult{Refusal: rpc.Refuse(err), Sequence: sequence}
	}
	return &pb.StoreResponse{Results: results, Splits: h.finish()}, nil
}

// accept stores one record. Errors: LimitReached for a quota or a nearly full cell, Invalid naming
// "cells" for cells that do not contain the record, Exists for a newer version here, Forbidden
// naming "cells" if this peer does not keep one of them, and the errors of records.Open. Cheap
// checks come first. Sequence is the highest sequence of the record at this peer.
func (s *server) accept(ctx context.Context, from source, item *pb.StoreItem, h *storeHandler) (sequence uint64, err error) {
	reason := ""
	defer func() {
		if err != nil {
			s.k.Recorder.Refused(reasonOf(reason, err))
		}
	}()
	if ctx.Err() != nil {
		s.k.sync.know.lacks(s.k.sync.clock())
		return 0, fault.Wrap("", ctx.Err())
	}
	cells, err := cellsOf(item.GetCells(), MaxItemCells)
	if err != nil {
		return 0, err
	}
	now := s.k.Now()
	if !s.quotas.take(from, now) {
		reason = "rate"
		return 0, fault.New("", fault.LimitReached, "too many records from network %s: try again later", from.prefix)
	}
	r, err := s.k.Verifier.Open(item.GetEnvelope(), now)
	if err != nil {
		return 0, err
	}
	var kept []records.CellKey
	for _, c := range cells {
		if !r.In(c) {
			reason = "wrong_cell"
			return 0, fault.Invalidf("cells", c.String(), "the record lies outside the cell %s", c)
		}
		if h.accepts(c) {
			kept = append(kept, c)
		}
	}
	if len(kept) > 0 {
		if sequence, err = h.store(r, kept); err != nil {
			return sequence, err
		}
	}
	if len(kept) < len(cells) { // the accepted cells are stored all the same
		reason = "not_kept"
		return sequence, &fault.Error{Kind: fault.Forbidden, Field: "cells", Err: errNotKept}
	}
	return sequence, nil
}

var errNotKept = errors.New("other keepers store some cells: repeat the lookup")

func reasonOf(reason string, err error) string {
	if reason == "" {
		return fault.KindOf(err).String()
	}
	return reason
}

// put adds a verified record to the index. An equal version is not an error; a newer version in
// the index is Exists. Sequence is the highest sequence of the record in the index.
func (k *Keeper) put(r *records.Record) (sequence uint64, err error) {
	known, ok := k.Index.Latest(r.Name())
	if ok && records.Equivocates(known, r) {
		k.Recorder.Refused("equivocation") // whichever of the two wins
		k.Logger.Debug("provider signed two different records with the same sequence", "record", r.Name(), "sequence", r.Sequence())
	}
	if ok && known.Digest() == r.Digest() {
		return known.Sequence(), nil
	}
	_, err = k.Index.Put(r, k.Now())
	k.server.keptOut.note(r.Name(), err, k.Now())
	if latest, ok := k.Index.Latest(r.Name()); ok {
		sequence = latest.Sequence()
	}
	return sequence, err
}

// query answers a QUERY from the index, restricted to the cells in the request. The response names
// the cells that this peer does not keep, or keeps only since recently; for these it returns the
// records at hand.
func (s *server) query(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error) {
	plan, cells, err := s.parseQuery(req)
	if err != nil {
		return nil, err
	}
	found := s.k.Index.Search(plan, index.SearchOptions{Now: s.k.Now(), Cells: geoCells(cells), AtLeast: !plan.ExactTotal()})
	if ctx.Err() != nil {
		return nil, fault.Wrap("", ctx.Err())
	}
	worst := math.Inf(1)
	if w := req.Worst; w != nil && !math.IsNaN(*w) {
		worst = *w
	}
	resp := responseOf(found, worst)
	s.addBeyond(resp, plan, cells)
	resp.Splits = s.k.splits.forQuery(plan, cells)
	lacking, doubt := s.k.closest.unauthoritative(cells)
	resp.NotKept, resp.Doubt = cellQuery{cells: lacking}.names(), doubt
	return resp, nil
}

// parseQuery parses a query and its cells.
func (s *server) parseQuery(req *pb.QueryRequest) (*query.Plan, []records.CellKey, error) {
	if req.GetQuery() == nil {
		return nil, nil, fault.Invalidf("query", nil, "is required")
	}
	q, err := query.FromProto(req.Query)
	var plan *query.Plan
	if err == nil {
		plan, err = query.Compile(q, query.Defaults{})
	}
	if laterClause(err) {
		return nil, nil, strictproto.Refuse([]string{"query.query.where"})
	}
	if err != nil {
		return nil, nil, err
	}
	cells, err := cellsOf(req.GetCells(), MaxQueryCells)
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
// version does not know. A later version may know it, so it is no fault of the asker.
func laterClause(err error) bool {
	field := fault.FieldOf(err)
	return strings.HasPrefix(field, "where[") && (strings.HasSuffix(field, "].field") || strings.HasSuffix(field, "].op"))
}

// checkCell checks that a cell belongs to a query: it is the cell of the query's provider, or it
// has the query's type and the subtype of all other cells.
func checkCell(c records.CellKey, p *query.Plan, subtype string) error {
	switch {
	case c.OfProvider():
		if c.Provider != p.Filter().Provider {
			return fault.Invalidf("cells", c.String(), "must be the cell of the query's provider")
		}
	case c.Type != p.Type() || c.Subtype != subtype:
		return fault.Invalidf("cells", c.String(), "must match the query's type, with one subtype")
	case c.Subtype != records.AnySubtype && c.Subtype != p.Subtype():
		return fault.Invalidf("cells", c.String(), "must match the query's subtype or use _")
	}
	return nil
}

// cellsOf parses 1 to most cell keys.
func cellsOf(keys []string, most int) ([]records.CellKey, error) {
	if len(keys) == 0 || len(keys) > most {
		return nil, fault.Invalidf("cells", len(keys), "must be 1 to %d", most)
	}
	cells := make([]records.CellKey, len(keys))
	for i, key := range keys {
		c, err := records.ParseCellKey(key)
		if err != nil {
			return nil, &fault.Error{Kind: fault.Invalid, Field: "cells", Value: key, Err: err}
		}
		cells[i] = c
	}
	return cells, nil
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
		if h.Value > worst {
			resp.Withheld, resp.Bound = true, h.Value
			return resp
		}
		if size > MaxAnswer { // another keeper's matches of the same value may rank behind this one
			resp.Withheld, resp.Bound = true, math.Nextafter(h.Value, math.Inf(-1))
			return resp
		}
		resp.Envelopes = append(resp.Envelopes, h.Record.Envelope())
	}
	if found.Total > len(found.Hits) {
		resp.Withheld, resp.Bound = true, found.Next
	}
	if math.IsNaN(resp.Bound) {
		resp.Bound = math.Inf(-1) // claims nothing
	}
	return resp
}
