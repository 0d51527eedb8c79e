package keeper

import (
	"context"
	"errors"
	"math"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// store judges each item by itself: what is wrong with one record is no reason against the others.
func (s *server) store(ctx context.Context, from source, req *pb.StoreRequest) (*pb.StoreResponse, error) {
	in := s.k.newStoreHandler(from)
	results := make([]*pb.StoreResult, len(req.GetItems()))
	for i, item := range req.GetItems() {
		sequence, err := s.accept(ctx, from, item, in)
		results[i] = &pb.StoreResult{Refusal: refusalOf(err), Sequence: sequence}
	}
	return &pb.StoreResponse{Results: results, Splits: in.finish()}, nil
}

// accept takes one record, or says why not: LimitReached for a quota or a crowded cell, Invalid naming
// "cells" for cells that the record is not of, Exists when a fresher version is known,
// Forbidden naming "cells" when this peer does not keep one of them, and what
// records.Open returns. The cheap checks come first. Sequence is the highest known of the record.
func (s *server) accept(ctx context.Context, from source, item *pb.StoreItem, in *storeHandler) (sequence uint64, err error) {
	reason := ""
	defer func() {
		if err != nil {
			s.k.Recorder.Refused(reasonOf(reason, err))
		}
	}()
	if ctx.Err() != nil {
		return 0, fault.Wrap("", ctx.Err())
	}
	cells, err := cellsOf(item.GetCells(), MaxItemCells)
	if err != nil {
		return 0, err
	}
	now := s.k.Now()
	if !s.quotas.take(from, now) {
		reason = "rate"
		return 0, fault.New("", fault.LimitReached, "too many records from %s", from.prefix)
	}
	r, err := s.k.Verifier.Open(item.GetEnvelope(), now)
	if err != nil {
		return 0, err
	}
	var kept []records.CellKey
	for _, c := range cells {
		if !r.In(c) {
			reason = "wrong_cell"
			return 0, fault.Invalidf("cells", c.String(), "the record is not of the cell %s", c)
		}
		if in.accepts(c) {
			kept = append(kept, c)
		}
	}
	if len(kept) > 0 {
		if sequence, err = in.store(r, kept); err != nil {
			return sequence, err
		}
	}
	if len(kept) < len(cells) { // acceptssal for the others all the same: it costs nothing more
		reason = "not_kept"
		return sequence, &fault.Error{Kind: fault.Forbidden, Field: "cells", Err: errNotKept}
	}
	return sequence, nil
}

var errNotKept = errors.New("this peer is not among the keepers of some of the cells")

func reasonOf(reason string, err error) string {
	if reason == "" {
		return fault.KindOf(err).String()
	}
	return reason
}

// put takes a verified record into the index. It is no error that the index has this very
// version; a fresher one is Exists. Sequence is the highest known.
func (k *Keeper) put(r *records.Record) (sequence uint64, err error) {
	known, ok := k.Index.Latest(r.Name())
	if ok && records.Equivocates(known, r) {
		k.Recorder.Refused("equivocation") // whichever of the two wins
		k.Logger.Debug("provider signed two records as one version", "record", r.Name(), "sequence", r.Sequence())
	}
	if ok && known.Digest() == r.Digest() {
		return known.Sequence(), nil
	}
	_, err = k.Index.Put(r, k.Now())
	if latest, ok := k.Index.Latest(r.Name()); ok {
		sequence = latest.Sequence()
	}
	return sequence, err
}

// query answers from the index, restricted to the cells asked. Cells that this peer does
// not keep, or has only just come to keep, are named, and answered with what it happens to have.
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
	resp.Splits = s.k.splits.forQuery(plan, cells)
	for _, c := range cells {
		if !s.k.closest.authoritative(c) {
			resp.NotKept = append(resp.NotKept, c.String())
		}
	}
	return resp, nil
}

// cellQuery reads a query and the cells it is asked of.
func (s *server) parseQuery(req *pb.QueryRequest) (*query.Plan, []records.CellKey, error) {
	if req.GetQuery() == nil {
		return nil, nil, fault.Invalidf("query", nil, "is missing")
	}
	q, err := query.FromProto(req.Query)
	if err != nil {
		return nil, nil, err
	}
	plan, err := query.Compile(q, query.Defaults{})
	if err != nil {
		return nil, nil, err
	}
	cells, err := cellsOf(req.GetCells(), MaxQueryCells)
	if err != nil {
		return nil, nil, err
	}
	for _, c := range cells {
		if c.Type != plan.Query().Type || c.Subtype != cells[0].Subtype {
			return nil, nil, fault.Invalidf("cells", c.String(), "must be of the query's type, and all of one subtype")
		}
		if c.Subtype != records.AnySubtype && c.Subtype != plan.Query().Subtype {
			return nil, nil, fault.Invalidf("cells", c.String(), "must be of the query's subtype, or of any")
		}
	}
	return plan, cells, nil
}

// cellsOf reads 1 to most keys of cells.
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

// geoCells gives the cells' places for a search: nil, which is no restriction, when one is Global.
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

// responseOf gives the best matches that are of use and fit into an answer, and the bound on
// the others.
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
