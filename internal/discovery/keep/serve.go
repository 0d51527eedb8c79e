package keep

import (
	"context"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/digest"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// ServeSync answers one step of a comparison from a view of the index. The view may be viewTTL old: the
// next comparison shows the newer changes.
func (y *Syncer) ServeSync(ctx context.Context, from peer.ID, req *pb.SyncRequest) (*pb.SyncResponse, error) {
	table := y.Table()
	if !table.Serving {
		return nil, fault.New("", fault.Forbidden, "this peer is no keeper: it is behind NAT or a leaf")
	}
	v := y.viewOf(table)
	if ctx.Err() != nil {
		return nil, fault.Wrap("", ctx.Err())
	}
	whole := req.Whole && table.Whole
	resp := &pb.SyncResponse{Whole: table.Whole, Informed: y.Know.Knows.Load()}
	if len(req.Cells) > 0 {
		return resp, listEntries(v, whole, req, resp)
	}
	resp.Flat = !whole && (req.Flat || v.cells().anyFull(from))
	return resp, y.listDiffering(v.sharedWith(from, whole, resp.Flat), req, resp)
}

// listDiffering compares the cells that both peers keep, and lists the different ones.
func (y *Syncer) listDiffering(o *sharedCells, req *pb.SyncRequest, resp *pb.SyncResponse) error {
	if len(req.Sums) == digest.SumSize {
		resp.Same = digest.Sum(req.Sums) == o.set.Root()
		return nil
	}
	theirs, err := digest.ParseSums(req.Sums)
	if err != nil {
		return err
	}
	mine := o.set.Sums()
	for bucket := int(min(req.Bucket, digest.Buckets)); bucket < digest.Buckets; bucket++ {
		if theirs[bucket] == mine[bucket] {
			continue
		}
		entries := o.set.In(bucket)
		if len(resp.Cells) > 0 && len(resp.Cells)+len(entries) > protocol.CellsListed {
			resp.Next = &pb.SyncPosition{Bucket: uint32(bucket)}
			return nil
		}
		for _, e := range entries[:min(len(entries), protocol.CellsListed)] {
			h := o.find(e.ID)
			root := h.set().Root()
			listed := &pb.SyncCell{Cell: h.key, Sums: root[:]}
			if h.full {
				listed.FullMs = uint64(max(y.cells.Left(h.cell).Milliseconds(), 1))
			}
			resp.Cells = append(resp.Cells, listed)
		}
	}
	return nil
}

// listEntries lists the entries of differing cells from a position on, as many as a response
// holds.
func listEntries(v *view, whole bool, req *pb.SyncRequest, resp *pb.SyncResponse) error {
	const room = protocol.EntriesListed * digest.EntrySize
	from := int(min(req.Bucket, digest.Buckets))
	for i := int(min(req.Cell, protocol.SyncCells)); i < len(req.Cells); i++ {
		c, theirs, root, err := cellAsked(req.Cells[i])
		if err != nil {
			return err
		}
		h := v.held(c, whole)
		if h == nil || h.set().Root() == root {
			continue
		}
		wire, next := h.set().List(theirs, from, room-len(resp.Entries), room)
		resp.Entries = append(resp.Entries, wire...)
		if next < digest.Buckets {
			resp.Next = &pb.SyncPosition{Cell: uint32(i), Bucket: uint32(next)}
			return nil
		}
		from = 0
	}
	return nil
}

// cellAsked parses a cell and the asker's sums of it, nil without sums, or its root.
func cellAsked(m *pb.SyncCell) (c records.CellKey, theirs *digest.Sums, root digest.Sum, err error) {
	c, err = records.ParseCellKey(m.GetCell())
	switch sums := m.GetSums(); {
	case err != nil || len(sums) == 0:
	case len(sums) == digest.SumSize:
		root = digest.Sum(sums)
	default:
		theirs, err = digest.ParseSums(sums)
	}
	return c, theirs, root, err
}

// ServePull returns the current versions of some records.
func (y *Syncer) ServePull(ctx context.Context, req *pb.PullRequest) (*pb.PullResponse, error) {
	ids, err := digest.ParseIDs(req.GetIds(), protocol.PullRecords)
	if err != nil {
		return nil, err
	}
	known := y.viewOf(y.Table()).byID()
	if ctx.Err() != nil {
		return nil, fault.Wrap("", ctx.Err())
	}
	resp := new(pb.PullResponse)
	size := 0
	for _, id := range ids {
		r, ok := known[id]
		if !ok {
			continue
		}
		if latest, ok := y.Index.Latest(r.Name()); ok {
			r = latest // the view may be older than the index
		}
		if size += len(r.Envelope()); size > protocol.PulledBytes {
			break
		}
		resp.Envelopes = append(resp.Envelopes, r.Envelope())
	}
	return resp, nil
}
