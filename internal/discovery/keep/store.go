package keep

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// Store takes records into the index: within quotas, for the cells that this peer keeps. It is safe for concurrent use.
type Store struct {
	*protocol.Life
	StoreConfig
	authority *Authority
	client    *protocol.Client
	cells     *Cells
	intake    *Intake
	quotas    quotas
	forwards  protocol.PeerLimit // FORWARD requests
}

// StoreConfig is what a Store uses beside other rooms.
type StoreConfig struct {
	Index    *index.Index
	Verifier *records.Verifier
	Nearby   func(key string, n int) []peer.ID // see protocol.Router
	Wanted   func(*records.Record) bool        // this peer needs the record for itself; nil: never
	Limits   protocol.Limits                   // of the quotas
}

// NewStore returns a store that puts records into an index by way of in.
func NewStore(authority *Authority, c *protocol.Client, cells *Cells, in *Intake, config StoreConfig) *Store {
	return &Store{
		Life: c.Life, StoreConfig: config, authority: authority, client: c, cells: cells, intake: in, quotas: newQuotas(config.Limits),
		forwards: protocol.PeerLimit{Total: maxForwards, PerPeer: peerForwards},
	}
}

// ServeStore handles a STORE request. Each item has its own result: a bad record does not affect the
// others.
func (s *Store) ServeStore(ctx context.Context, from protocol.Source, req *pb.StoreRequest) (*pb.StoreResponse, error) {
	h := s.NewBatch(from)
	results := make([]*pb.StoreResult, len(req.GetItems()))
	for i, item := range req.GetItems() {
		taken, err := s.accept(ctx, from, item, h)
		results[i] = &pb.StoreResult{Refusal: rpc.Refuse(err), Sequence: taken.Sequence, Full: taken.Full}
	}
	return &pb.StoreResponse{Results: results, Full: h.Full()}, nil
}

// accept stores one record. Errors: LimitReached for a quota, or naming "cells" for a full cell without children, Invalid naming
// "cells" for cells that do not contain the record, Exists for a newer version here, Forbidden
// naming "cells" if this peer does not keep one of them, and the errors of records.Open. Cheap
// checks come first.
func (s *Store) accept(ctx context.Context, from protocol.Source, item *pb.StoreItem, h *Batch) (taken Taken, err error) {
	reason := ""
	defer func() {
		if err != nil {
			s.Refused(cmp.Or(reason, fault.KindOf(err).String()))
		}
	}()
	if ctx.Err() != nil {
		s.authority.FallBehind()
		return Taken{}, fault.Wrap("", ctx.Err())
	}
	cells, err := protocol.CellsOf(item.GetCells(), protocol.MaxItemCells)
	if err != nil {
		return Taken{}, err
	}
	now := s.Now()
	if err := s.quotas.take(from, now); err != nil {
		reason = "rate"
		return Taken{}, err
	}
	r, err := s.Verifier.Open(item.GetEnvelope(), now)
	if err != nil {
		return Taken{}, err
	}
	var kept []records.CellKey
	for _, c := range cells {
		if !r.In(c) {
			reason = "wrong_cell"
			return Taken{}, fault.Invalidf("cells", c.String(), "the record lies outside the cell %s", c)
		}
		if h.Accepts(c) {
			kept = append(kept, c)
		}
	}
	if len(kept) > 0 {
		if taken, err = h.Take(r, kept); err != nil {
			reason = "full"
			if fault.FieldOf(err) != "cells" {
				reason = ""
			}
			return taken, err
		}
	}
	if len(kept) < len(cells) { // the accepted cells are stored all the same
		reason = "not_kept"
		return taken, protocol.NotKept()
	}
	return taken, nil
}

// Allow takes a request from the quota of its sender.
func (s *Store) Allow(from protocol.Source) error { return s.quotas.take(from, s.Now()) }

// Batch stores the records of one STORE request. It looks each cell up once. It is not
// safe for concurrent use.
type Batch struct {
	*Store
	from    peer.ID      // sender of the records; "" is this peer
	prefix  netip.Prefix // of the sender; zero if it says nothing about the providers of the records
	accepts map[records.CellKey]bool
	full    map[records.CellKey]bool // to tell the publisher
}

// NewBatch begins to store records of one sender.
func (s *Store) NewBatch(from protocol.Source) *Batch {
	h := &Batch{Store: s, from: from.Peer, accepts: make(map[records.CellKey]bool), full: make(map[records.CellKey]bool)}
	if !from.Exempt && !from.Prefix.Addr().IsPrivate() { // a private network has many owners
		h.prefix = from.Prefix
	}
	return h
}

// Accepts reports whether this peer is responsible for a cell.
func (h *Batch) Accepts(c records.CellKey) bool {
	accepts, known := h.accepts[c]
	if !known {
		accepts = h.authority.Accepts(c)
		h.accepts[c] = accepts
	}
	return accepts
}

// Full returns the full cells that the publisher has to hear of.
func (h *Batch) Full() []string {
	var cells []records.CellKey
	for c := range h.full {
		cells = append(cells, c)
	}
	slices.SortFunc(cells, protocol.CompareCells)
	return protocol.CellNames(cells[:min(len(cells), protocol.MaxQueryCells)])
}

// Taken is what became of a record.
type Taken struct {
	Sequence uint64 // highest sequence of the record at this peer
	Full     bool   // all cells are full: this peer does not hold the record
}

// Take stores a verified record for accepted cells, and marks those that have no room for it as full.
// Errors: Exists if this peer holds a newer version, LimitReached, naming "cells", for a record that a cell without
// children has no room for; the other cells are stored all the same.
func (h *Batch) Take(r *records.Record, cells []records.CellKey) (taken Taken, err error) {
	h.authority.Know.Came(r.Name(), r.Sequence())
	latest, known := h.Index.Latest(r.Name())
	if known && records.Compare(latest, r) > 0 || r.Withdrawn() {
		taken.Sequence, err = h.intake.Put(r)
		return taken, err
	}
	held, live := h.Index.Get(r.Name())
	prefix := h.prefix
	if h.passedOn(r, cells) {
		prefix = netip.Prefix{}
	}
	wanted, missing := live || h.Wanted != nil && h.Wanted(r) || r.Name().Provider == h.Self, error(nil) // the old version must go
	for _, c := range cells {
		room := roomy
		if !live || !held.In(c) {
			room = h.cells.take(c, r, prefix, h.needed(c))
		}
		switch room {
		case roomy:
			wanted = true
			if c.Cell.Len() > geo.MaxLen {
				h.cells.deep.Add(c, struct{}{})
			}
		case none:
			if h.cells.refuse(c) {
				h.Logger.Info("a cell is full: its parts answer for it", "cell", c)
			}
			h.full[c] = true
		case overfull:
			leaf, _ := leafOf(c, r)
			h.cells.refuse(leaf)
			missing = full(c, "has no room for further offers")
		case unfair:
			missing = full(c, "has no room for further offers of this provider, or from this network")
		}
		if Divisible(c) && Sends(c) && h.cells.Full(c) {
			h.full[c] = true
		}
	}
	if missing != nil {
		h.intake.keepOut(r.Name())
	}
	if !wanted {
		if taken.Full = missing == nil; known {
			taken.Sequence = latest.Sequence()
		}
		return taken, missing
	}
	if prefix.IsValid() && !live {
		h.cells.senders.Add(r.Name(), prefix)
	}
	taken.Sequence, err = h.intake.Put(r)
	return taken, cmp.Or(err, missing)
}

// full is the refusal of a cell without children.
func full(c records.CellKey, why string) error {
	return &fault.Error{Kind: fault.LimitReached, Field: "cells", Value: c.String(), Err: fmt.Errorf("the cell %s is full: it %s", c, why)}
}

// needed returns whether this peer must hold a record for another of its cells than one without children.
func (h *Batch) needed(but records.CellKey) func(*records.Record) bool {
	return func(r *records.Record) bool {
		if r.Name().Provider == h.Self || h.Wanted != nil && h.Wanted(r) {
			return true
		}
		return slices.ContainsFunc(h.cells.CellsOf(r), func(c records.CellKey) bool {
			return c != but && h.authority.Retains(c) && !h.cells.Full(c)
		})
	}
}

// passedOn reports whether another keeper of a cell sent the record. Then the address of the sender says nothing about
// the provider.
func (h *Batch) passedOn(r *records.Record, cells []records.CellKey) bool {
	return h.from != "" && h.from != r.Name().Provider && slices.ContainsFunc(cells, func(c records.CellKey) bool {
		return slices.Contains(h.Nearby(KeyOf(c), AcceptWithin), h.from)
	})
}
