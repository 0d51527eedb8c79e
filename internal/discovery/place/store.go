// Package place takes records for the cells that this peer keeps, and sends records to the keepers of their cells.
//
// A cell with too many records is split (package cell): its keepers hold a sample, and
// summaries of its children. Publishers continue at the keepers of children below geo.MaxLen.
package place

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/internal/discovery/route"
	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// Store takes records into the index: within quotas, for the cells that this peer keeps. It is safe for concurrent use.
type Store struct {
	*wire.Env
	authority *route.Authority
	client    *wire.Client
	splits    *Splits
	intake    *Intake
	quotas    quotas
	forwards  wire.PeerLimit // FORWARD requests
}

// NewStore returns a store that puts records into an index by way of in.
func NewStore(authority *route.Authority, c *wire.Client, splits *Splits, in *Intake) *Store {
	return &Store{
		Env: c.Env, authority: authority, client: c, splits: splits, intake: in, quotas: newQuotas(c.Limits),
		forwards: wire.PeerLimit{Total: maxForwards, PerPeer: peerForwards},
	}
}

// ServeStore handles a STORE request. Each item has its own result: a bad record does not affect the
// others.
func (s *Store) ServeStore(ctx context.Context, from wire.Source, req *pb.StoreRequest) (*pb.StoreResponse, error) {
	h := s.NewBatch(from, false)
	results := make([]*pb.StoreResult, len(req.GetItems()))
	for i, item := range req.GetItems() {
		sequence, err := s.accept(ctx, from, item, h)
		results[i] = &pb.StoreResult{Refusal: rpc.Refuse(err), Sequence: sequence}
	}
	return &pb.StoreResponse{Results: results, Splits: h.Finish()}, nil
}

// accept stores one record. Errors: LimitReached for a quota or a nearly full cell, Invalid naming
// "cells" for cells that do not contain the record, Exists for a newer version here, Forbidden
// naming "cells" if this peer does not keep one of them, and the errors of records.Open. Cheap
// checks come first. Sequence is the highest sequence of the record at this peer.
func (s *Store) accept(ctx context.Context, from wire.Source, item *pb.StoreItem, h *Batch) (sequence uint64, err error) {
	reason := ""
	defer func() {
		if err != nil {
			s.Signals.Metrics.Refused(cmp.Or(reason, fault.KindOf(err).String()))
		}
	}()
	if ctx.Err() != nil {
		s.authority.FallBehind()
		return 0, fault.Wrap("", ctx.Err())
	}
	cells, err := wire.CellsOf(item.GetCells(), wire.MaxItemCells)
	if err != nil {
		return 0, err
	}
	now := s.Now()
	if err := s.quotas.take(from, now); err != nil {
		reason = "rate"
		return 0, err
	}
	r, err := s.Verifier.Open(item.GetEnvelope(), now)
	if err != nil {
		return 0, err
	}
	var kept []records.CellKey
	for _, c := range cells {
		if !r.In(c) {
			reason = "wrong_cell"
			return 0, fault.Invalidf("cells", c.String(), "the record lies outside the cell %s", c)
		}
		if h.Accepts(c) {
			kept = append(kept, c)
		}
	}
	if len(kept) > 0 {
		if sequence, err = h.Take(r, kept); err != nil {
			return sequence, err
		}
	}
	if len(kept) < len(cells) { // the accepted cells are stored all the same
		reason = "not_kept"
		return sequence, wire.NotKept()
	}
	return sequence, nil
}

// Allow takes a request from the quota of its sender.
func (s *Store) Allow(from wire.Source) error { return s.quotas.take(from, s.Now()) }

// Batch stores the records of one STORE request. It looks each cell up once. It is not
// safe for concurrent use.
type Batch struct {
	*Store
	from     peer.ID      // sender of the records; "" is this peer
	prefix   netip.Prefix // of the sender; zero if it says nothing about the providers of the records
	now      time.Time
	admitted bool // another keeper admitted the records: they do not queue again

	cells   map[records.CellKey]*storeCell
	counted []records.CellKey // whole cells that got records, in order
}

// storeCell is the part of a request for one cell.
type storeCell struct {
	checked bool              // accepts is known
	accepts bool              // this peer is responsible for the cell
	records []*records.Record // received for the cell
	count   int               // records in the whole cell; -1 if not counted
}

// NewBatch begins to store records of one sender. Records that another keeper admitted skip the queue.
func (s *Store) NewBatch(from wire.Source, admitted bool) *Batch {
	h := &Batch{Store: s, from: from.Peer, now: s.Now(), admitted: admitted, cells: make(map[records.CellKey]*storeCell)}
	if !from.Exempt && !from.Prefix.Addr().IsPrivate() { // a private network has many owners
		h.prefix = from.Prefix
	}
	return h
}

func (h *Batch) cell(c records.CellKey) *storeCell {
	x, ok := h.cells[c]
	if !ok {
		x = &storeCell{count: -1}
		h.cells[c] = x
	}
	return x
}

// Accepts reports whether this peer is responsible for a cell.
func (h *Batch) Accepts(c records.CellKey) bool {
	x := h.cell(c)
	if !x.checked {
		x.checked, x.accepts = true, h.authority.Accepts(c)
	}
	return x.accepts
}

// Take stores a verified record for accepted cells. If all the cells are split and no sample
// needs the record, take succeeds without storing it: the keepers of the children hold it.
// Errors: Exists if this peer holds a newer version, LimitReached for a record that must queue.
// Sequence is the highest sequence of the record at this peer.
func (h *Batch) Take(r *records.Record, cells []records.CellKey) (sequence uint64, err error) {
	x, splits := h.Index, h.splits
	latest, known := x.Latest(r.Name())
	if known && records.Compare(latest, r) > 0 || r.Withdrawn() {
		if r.Withdrawn() {
			splits.forget(r, cells)
		}
		return h.intake.Put(r)
	}
	_, live := x.Get(r.Name())
	prefix, admitted := h.prefix, h.admitted
	if h.handedOver(r, cells) {
		prefix, admitted = netip.Prefix{}, true
	}
	if left := h.wait(r, cells, prefix, live, admitted); left > 0 {
		h.Signals.Metrics.Refused("near_full")
		err = fault.New("", fault.LimitReached, "the cell is nearly full: try again in %s", left.Round(time.Second))
		h.intake.keepOut(r.Name())
		return 0, err
	}
	h.note(r, cells)
	wanted := splits.offer(cell.Member{Record: r, Prefix: prefix}, cells) || h.Wanted != nil && h.Wanted(r)
	if !wanted && !live {
		return r.Sequence(), nil
	}
	if prefix.IsValid() && !live {
		splits.prefixes.Add(r.Name(), prefix)
	}
	if sequence, err = h.intake.Put(r); err != nil {
		return sequence, err
	}
	if !wanted {
		splits.release(r.Name())
	}
	if !live {
		h.countIn(r, cells, prefix)
	}
	return sequence, nil
}

// handedOver reports whether a keeper of the cell or of the surrounding split cell sent the record, which it had
// admitted. Then the address of the sender says nothing about the provider.
func (h *Batch) handedOver(r *records.Record, cells []records.CellKey) bool {
	if h.from == "" || h.from == r.Name().Provider {
		return false
	}
	return slices.ContainsFunc(cells, func(c records.CellKey) bool {
		near := func(c records.CellKey) bool {
			return slices.Contains(h.Router.Nearby(route.KeyOf(c), route.AcceptWithin), h.from)
		}
		parent, _ := c.Cell.Parent()
		return near(c) || c.Cell.Len() > geo.MaxLen && near(wire.CellAt(c, parent))
	})
}

// note adds a record to its cells, for the split hints in finish.
func (h *Batch) note(r *records.Record, cells []records.CellKey) {
	for _, c := range cells {
		x := h.cell(c)
		x.records = append(x.records, r)
		if c.Cell.Len() > geo.MaxLen {
			h.splits.deep.Add(c, struct{}{})
		}
	}
}

// size returns the number of records in a whole cell, up to one above its capacity.
func (h *Batch) size(c records.CellKey) int {
	x := h.cell(c)
	if x.count < 0 {
		x.count = h.Index.CountIn(c, h.now, cell.Capacity(c.Cell)+1)
		h.counted = append(h.counted, c)
	}
	return x.count
}

// countIn adds a new record to the counts of its cells.
func (h *Batch) countIn(r *records.Record, cells []records.CellKey, prefix netip.Prefix) {
	for _, c := range cells {
		if x := h.cell(c); x.count >= 0 {
			x.count++
			h.splits.countIn(c, r, prefix)
		}
	}
}

// wait returns the remaining queueing time of a new record. Records do not queue in a small
// network: all peers hold all cells there, and only the index itself can be full.
func (h *Batch) wait(r *records.Record, cells []records.CellKey, prefix netip.Prefix, live, admitted bool) (left time.Duration) {
	if live || h.Router.Size() < route.AcceptWithin {
		return 0
	}
	var longest time.Duration
	for _, c := range cells {
		if !c.OfProvider() && h.splits.Phase(c) == cell.Whole {
			longest = max(longest, h.waitFor(r, c, prefix))
		}
	}
	if admitted || r.Name().Provider == h.Self {
		return 0
	}
	return h.splits.admit(r.Name(), longest, h.now)
}

// waitFor returns the queueing time of a new record at one whole cell.
func (h *Batch) waitFor(r *records.Record, c records.CellKey, prefix netip.Prefix) time.Duration {
	size, capacity := h.size(c), cell.Capacity(c.Cell)
	if !cell.NearFull(size, capacity) {
		return 0
	}
	ofProvider, ofPrefix := h.splits.shares(c, r, prefix, h.now)
	splits := cell.Divisible(c.Cell)
	return cell.Wait(cell.Load{
		Count: size, Capacity: capacity, OfProvider: ofProvider, OfPrefix: ofPrefix, Splits: splits,
	})
}

// Finish splits overfull cells and returns hints for the split cells of the request.
func (h *Batch) Finish() []*pb.Split {
	for _, c := range h.counted {
		switch n := h.cell(c).count; {
		case n > cell.Capacity(c.Cell):
			h.splits.overflow(c)
		case h.admitted && n >= cell.SampleSize/2:
			h.splits.suspectSplit(c)
		}
	}
	children := make(map[records.CellKey][]geo.Cell)
	for c, x := range h.cells {
		if len(x.records) == 0 || h.splits.Phase(c) == cell.Whole {
			continue
		}
		list := []geo.Cell{}
		for _, r := range x.records {
			if child, ok := cell.ChildOf(c.Cell, r); ok && !slices.Contains(list, child) {
				list = append(list, child)
			}
		}
		children[c] = list
	}
	return h.splits.forPublisher(children)
}
