package keep

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	libp2pprotocol "github.com/libp2p/go-libp2p/core/protocol"
	"github.com/multiformats/go-multistream"

	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/digest"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// Compare finds the records that a partner has and this peer lacks, and pulls them. After a nil error
// no available record is missing.
func (y *Syncer) Compare(ctx context.Context, id peer.ID, table *TableState) (of Partner, err error) {
	ctx, end, err := y.Begin(ctx, "sync", syncPeer)
	if err != nil {
		return Partner{}, err
	}
	defer func() { end(err) }()
	c := &diff{Syncer: y, peer: id, at: table, mine: y.viewOf(table), full: make(map[records.CellKey]time.Duration)}
	began := y.Clock()
	if err = c.run(ctx); err != nil {
		took := y.Clock().Sub(began)
		y.Logger.Debug("comparison with a keeper failed", "peer", id, "error", err)
		y.reportFailure(ctx, id, took, err)
		if strange := (multistream.ErrNotSupported[libp2pprotocol.ID]{}); errors.As(err, &strange) {
			y.Know.Strange(id, y.Clock())
		} else {
			y.Know.Missed(id, reached(err) || y.client.RanLate(took), y.Clock())
		}
	}
	if c.taken > 0 {
		y.Outdate() // the next comparison must see the new records
	}
	if err == nil {
		y.cells.Hear(id, c.full, y.Authoritative)
		y.Know.Met(id, c.of.Informed)
	}
	return c.of, err
}

// reached reports whether a failed comparison proves contact with the partner.
func reached(err error) bool {
	switch fault.KindOf(err) {
	case fault.Timeout, fault.Unavailable, fault.Canceled:
		return false
	}
	return true
}

// reportFailure updates the stats of a partner after a failed comparison. A refusal has no effect:
// a busy or older peer still answers queries well.
func (y *Syncer) reportFailure(ctx context.Context, id peer.ID, took time.Duration, err error) {
	switch fault.KindOf(err) {
	case fault.Unauthentic, fault.Timeout, fault.Unavailable:
		y.client.Observe(ctx, id, took, err)
	}
}

// diff is the comparison with one partner.
type diff struct {
	*Syncer
	peer peer.ID
	at   *TableState
	mine *view
	of   Partner

	roots bool // send the roots of the cells alone: most are equal

	taken int                               // number of records
	full  map[records.CellKey]time.Duration // cells that are full there and not here, and for how long
}

// differingCell is a cell with different records at the partner.
type differingCell struct {
	cell records.CellKey
	mine *digest.Set // nil without a record of the cell
}

func (c *diff) run(ctx context.Context) error {
	flat := !c.at.Whole && c.mine.cells().anyFull(c.peer)
	mine := c.mine.sharedWith(c.peer, c.at.Whole, flat)
	root := mine.set.Root()
	resp, err := c.ask(ctx, &pb.SyncRequest{Sums: root[:], Flat: flat})
	if err != nil {
		return err
	}
	c.of = Partner{Whole: resp.Whole && c.at.Whole, Informed: resp.Informed}
	if resp.Same {
		return nil
	}
	if !c.of.Whole {
		if c.at.Whole { // here, and not there
			resp.Flat = resp.Flat || c.mine.cells().anyFull(c.peer)
		}
		mine = c.mine.sharedWith(c.peer, false, resp.Flat)
	}
	cells, err := c.differing(ctx, mine, resp.Flat)
	if err != nil {
		return err
	}
	listed := 0
	for len(cells) > 0 {
		some := cells[:min(len(cells), protocol.SyncCells)]
		cells = cells[len(some):]
		entries, err := c.entries(ctx, some)
		if err != nil {
			return err
		}
		if listed += len(entries); listed > maxListed {
			return fault.New("keeper.sync", fault.LimitReached, "the peer lists more than %d records: too many for one comparison", maxListed)
		}
		if err := c.fetch(ctx, some, entries); err != nil {
			return err
		}
	}
	return nil
}

// ask sends one step of the comparison.
func (c *diff) ask(ctx context.Context, req *pb.SyncRequest) (*pb.SyncResponse, error) {
	req.Whole = c.at.Whole
	resp, err := c.send(ctx, &pb.Request{Op: &pb.Request_Sync{Sync: req}})
	if err != nil {
		return nil, err
	}
	if resp.GetSync() == nil {
		return nil, protocol.Breach("the response does not answer a comparison")
	}
	return resp.GetSync(), nil
}

func (c *diff) send(ctx context.Context, req *pb.Request) (*pb.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, syncCall)
	defer cancel()
	resp, refused, err := c.client.Call(ctx, c.peer, req)
	if refused {
		if fault.KindOf(err) == fault.Unsupported {
			return nil, err
		}
		return nil, fault.As("keeper.sync", fault.LimitReached, err) // the kind of a refusal concerns this peer, not the caller
	}
	return resp, err
}

// differing returns the differing cells that this peer accepts.
func (c *diff) differing(ctx context.Context, mine *sharedCells, flat bool) ([]differingCell, error) {
	var found []differingCell
	req := &pb.SyncRequest{Sums: mine.set.Sums().Bytes(), Flat: flat}
	for {
		resp, err := c.ask(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, m := range resp.Cells {
			cell, err := records.ParseCellKey(m.Cell)
			if err != nil {
				continue // a kind of cells of a later version: this peer keeps none
			}
			if len(m.Sums) != digest.SumSize {
				return nil, protocol.Breach("a malformed sum of a cell")
			}
			d, ok := c.differs(cell, digest.Sum(m.Sums), m.FullMs > 0)
			if m.FullMs > 0 && ok && !c.of.Whole && !c.Syncer.cells.Full(cell) {
				if len(c.full) >= MaxHeard {
					return nil, fault.New("keeper.sync", fault.LimitReached, "the peer calls more than %d cells full", MaxHeard)
				}
				c.full[cell] = time.Duration(min(m.FullMs, uint64(math.MaxInt64/time.Millisecond))) * time.Millisecond
			}
			if ok && !c.settled(cell, m.FullMs > 0) {
				found = append(found, d)
			}
		}
		switch next := resp.Next; {
		case next == nil:
			return found, nil
		case next.Bucket <= req.Bucket || next.Bucket >= digest.Buckets:
			return nil, protocol.Breach("an endless list of cells")
		default:
			req.Bucket = next.Bucket
		}
	}
}

// settled reports whether nothing of a differing cell is to be pulled: it is full here, or there.
func (c *diff) settled(cell records.CellKey, fullThere bool) bool {
	fullHere := !c.of.Whole && c.Syncer.cells.Full(cell)
	switch {
	case c.of.Whole || Divisible(cell) && Sends(cell):
		return fullHere
	case cell.Cell == geo.Global:
		return fullHere != fullThere && fullHere
	case Sends(cell):
		return false
	default:
		return fullHere || fullThere
	}
}

// differs reports whether a cell differs and this peer accepts it.
func (c *diff) differs(cell records.CellKey, root digest.Sum, full bool) (differingCell, bool) {
	d := differingCell{cell: cell}
	if h := c.mine.held(cell, c.of.Whole); h != nil {
		if d.mine = h.set(); d.mine.Root() == root && full == h.full {
			return d, false
		}
	}
	return d, c.of.Whole || c.Accepts(cell)
}

// entries returns the partner's entries of differing cells.
func (c *diff) entries(ctx context.Context, cells []differingCell) ([]digest.Entry, error) {
	req := &pb.SyncRequest{Cells: make([]*pb.SyncCell, len(cells))}
	for i, d := range cells {
		req.Cells[i] = &pb.SyncCell{Cell: d.cell.String()}
		if root := c.roots && d.mine != nil; root && d.mine.Len() > 0 {
			sum := d.mine.Root()
			req.Cells[i].Sums = sum[:]
		} else if !root && d.mine != nil && d.mine.Len() >= fewEntries {
			req.Cells[i].Sums = d.mine.Sums().Bytes()
		}
	}
	var all []digest.Entry
	for {
		resp, err := c.ask(ctx, req)
		if err != nil {
			return nil, err
		}
		some, err := digest.Parse(resp.Entries)
		if err != nil || len(some) > protocol.EntriesListed || len(all)+len(some) > maxListed {
			return nil, protocol.Breach("entries that are none, or too many")
		}
		all = append(all, some...)
		switch next := resp.Next; {
		case next == nil:
			return all, nil
		case next.Cell < req.Cell, next.Cell == req.Cell && next.Bucket <= req.Bucket,
			next.Cell >= uint32(len(cells)), next.Bucket >= digest.Buckets:
			return nil, protocol.Breach("entries without an end")
		default:
			req.Cell, req.Bucket = next.Cell, next.Bucket
		}
	}
}

// fetch pulls the missing records among the listed entries. Only one pull runs at a time, so that a
// record from one partner is not pulled from the next.
func (c *diff) fetch(ctx context.Context, cells []differingCell, listed []digest.Entry) error {
	select {
	case c.pulling <- struct{}{}:
		defer func() { <-c.pulling }()
	case <-ctx.Done():
		return fault.Wrap("keeper.sync", ctx.Err())
	}
	wanted := c.wanted(listed)
	for len(wanted) > 0 {
		if ctx.Err() != nil {
			return fault.Wrap("keeper.sync", ctx.Err())
		}
		got, err := c.page(ctx, cells, wanted[:min(len(wanted), protocol.PullRecords)])
		if err != nil {
			return err
		}
		if got == 0 { // these records left the partner
			got = min(len(wanted), protocol.PullRecords)
		}
		wanted = wanted[got:]
	}
	return nil
}

// wanted returns the entries that are newer than this peer's and were not pulled recently. The cells
// of a comparison overlap, and the partner's index changes between two lists of entries, so one
// record may be listed several times: it is wanted once, in its newest version.
func (c *diff) wanted(listed []digest.Entry) []digest.Entry {
	known := c.mine.byID()
	now := c.Now()
	var wanted []digest.Entry
	at := make(map[digest.ID]int)
	for _, e := range listed {
		if r, ok := known[e.ID]; ok && !e.Version.Newer(digest.VersionOf(r.Sequence(), r.Digest())) {
			continue
		}
		if c.pulled.Has(e, now) {
			continue
		}
		i, again := at[e.ID]
		switch {
		case !again:
			at[e.ID] = len(wanted)
			wanted = append(wanted, e)
		case e.Version.Newer(wanted[i].Version):
			wanted[i] = e
		}
	}
	return wanted
}

// page pulls the first of the wanted entries and returns how many are done. The response has the
// order of the request, so an entry missing before the last one does not exist any more.
//
// Between list and pull the partner may have received a newer version, in whatever cell, or dropped
// the record and received an older version. Neither is a violation of the protocol.
func (c *diff) page(ctx context.Context, cells []differingCell, wanted []digest.Entry) (done int, err error) {
	ids := make([]byte, 0, len(wanted)*digest.IDSize)
	at := make(map[digest.ID]int, len(wanted))
	for i, e := range wanted {
		ids = append(ids, e.ID[:]...)
		at[e.ID] = i
	}
	resp, err := c.send(ctx, &pb.Request{Op: &pb.Request_Pull{Pull: &pb.PullRequest{Ids: ids}}})
	if err != nil {
		return 0, err
	}
	envelopes := resp.GetPull().GetEnvelopes()
	if len(envelopes) > len(wanted) {
		return 0, protocol.Breach("%d records for %d ids", len(envelopes), len(wanted))
	}
	h := c.store.NewBatch(protocol.Source{Exempt: true})
	skipped, answered := 0, make(map[int]bool)
	for n, envelope := range envelopes {
		done = max(done, n+1) // each envelope answers at least one id
		r, left, err := protocol.Receive(c.Verifier, envelope, c.Now())
		if err != nil {
			return 0, err
		}
		if left != nil {
			c.CountLeft(left)
			if !protocol.Untimely(left) {
				skipped++
			}
			continue
		}
		i, asked := at[digest.IDOf(r.Name().String())]
		version := digest.VersionOf(r.Sequence(), r.Digest())
		switch {
		case !asked:
			return 0, protocol.Breach("record %s is not in the request", r.Name())
		case wanted[i].Version.Newer(version):
			answered[i] = true
			done = max(done, i+1)
			continue
		case version == wanted[i].Version && !inAny(cells, r):
			return 0, protocol.Breach("record %s lies outside the cells that list it", r.Name())
		}
		answered[i] = true
		done = max(done, i+1)
		c.taken++
		c.take(h, cells, wanted[i], r)
	}
	if skipped > 0 {
		c.postpone(wanted[:done], answered)
	}
	return done, nil
}

// postpone keeps entries without a readable record from being pulled again for a while: this version cannot read
// their records.
func (c *diff) postpone(entries []digest.Entry, answered map[int]bool) {
	until := c.Now().Add(pulledTTL)
	for i, e := range entries {
		if !answered[i] {
			c.pulled.Add(e, until)
		}
	}
}

func inAny(cells []differingCell, r *records.Record) bool {
	return slices.ContainsFunc(cells, func(d differingCell) bool { return r.In(d.cell) })
}

// take stores a pulled record for its accepted cells. A refused record is not pulled again for a
// while.
func (c *diff) take(h *Batch, compared []differingCell, e digest.Entry, r *records.Record) {
	c.pulled.Add(e, c.Now().Add(pulledTTL))
	cells := c.Syncer.cells.CellsOf(r)
	for _, d := range compared {
		if r.In(d.cell) && !slices.Contains(cells, d.cell) {
			cells = append(cells, d.cell)
		}
	}
	cells = slices.DeleteFunc(cells, func(k records.CellKey) bool { return !h.Accepts(k) })
	if _, err := h.Take(r, cells); err != nil && fault.KindOf(err) != fault.Exists {
		c.Refused(fault.KindOf(err).String())
	}
}
