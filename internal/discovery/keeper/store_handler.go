package keeper

import (
	"net/netip"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// storeHandler stores the records of one STORE request. It looks each cell up once. It is not
// safe for concurrent use.
type storeHandler struct {
	k        *Keeper
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

func (k *Keeper) newStoreHandler(from source) *storeHandler {
	h := &storeHandler{k: k, from: from.peer, now: k.Now(), cells: make(map[records.CellKey]*storeCell)}
	if !from.exempt && !from.prefix.Addr().IsPrivate() { // a private network has many owners
		h.prefix = from.prefix
	}
	return h
}

func (h *storeHandler) cell(c records.CellKey) *storeCell {
	x, ok := h.cells[c]
	if !ok {
		x = &storeCell{count: -1}
		h.cells[c] = x
	}
	return x
}

// accepts reports whether this peer is responsible for a cell.
func (h *storeHandler) accepts(c records.CellKey) bool {
	x := h.cell(c)
	if !x.checked {
		x.checked, x.accepts = true, h.k.closest.accepts(c)
	}
	return x.accepts
}

// store stores a verified record for accepted cells. If all the cells are split and no sample
// takes the record, store succeeds without storing it: the keepers of the children hold it.
// Errors: Exists if this peer holds a newer version, LimitReached for a record that must queue.
// Sequence is the highest sequence of the record at this peer.
func (h *storeHandler) store(r *records.Record, cells []records.CellKey) (sequence uint64, err error) {
	x, splits := h.k.Index, h.k.splits
	latest, known := x.Latest(r.Name())
	if known && records.Compare(latest, r) > 0 || r.Withdrawn() {
		if r.Withdrawn() {
			splits.forget(r, cells)
		}
		return h.k.put(r)
	}
	_, live := x.Get(r.Name())
	prefix, admitted := h.prefix, h.admitted
	if h.handedOver(r, cells) {
		prefix, admitted = netip.Prefix{}, true
	}
	if left := h.wait(r, cells, prefix, live, admitted); left > 0 {
		h.k.Recorder.Refused("near_full")
		err = fault.New("", fault.LimitReached, "the cell is nearly full: try again in %s", left.Round(time.Second))
		h.k.server.keptOut.note(r.Name(), err, h.now)
		return 0, err
	}
	h.note(r, cells)
	wanted := splits.offer(cell.Member{Record: r, Prefix: prefix}, cells)
	if !wanted && !live {
		return r.Sequence(), nil
	}
	if prefix.IsValid() && !live {
		splits.prefixes.Add(r.Name(), prefix)
	}
	if sequence, err = h.k.put(r); err != nil {
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
func (h *storeHandler) handedOver(r *records.Record, cells []records.CellKey) bool {
	if h.from == "" || h.from == r.Name().Provider {
		return false
	}
	return slices.ContainsFunc(cells, func(c records.CellKey) bool {
		near := func(c records.CellKey) bool {
			return slices.Contains(h.k.Router.Nearby(routingKey(c), acceptWithin), h.from)
		}
		parent, _ := c.Cell.Parent()
		return near(c) || c.Cell.Len() > geo.MaxLen && near(cellAt(c, parent))
	})
}

// note adds a record to its cells, for the split hints in finish.
func (h *storeHandler) note(r *records.Record, cells []records.CellKey) {
	for _, c := range cells {
		x := h.cell(c)
		x.records = append(x.records, r)
		if c.Cell.Len() > geo.MaxLen {
			h.k.splits.deep.Add(c, struct{}{})
		}
	}
}

// size returns the number of records in a whole cell, up to one above its capacity.
func (h *storeHandler) size(c records.CellKey) int {
	x := h.cell(c)
	if x.count < 0 {
		x.count = h.k.Index.CountIn(c, h.now, cell.Capacity(c.Cell)+1)
		h.counted = append(h.counted, c)
	}
	return x.count
}

// countIn adds a new record to the counts of its cells.
func (h *storeHandler) countIn(r *records.Record, cells []records.CellKey, prefix netip.Prefix) {
	for _, c := range cells {
		if x := h.cell(c); x.count >= 0 {
			x.count++
			h.k.splits.countIn(c, r, prefix)
		}
	}
}

// wait returns the remaining queueing time of a new record. Records do not queue in a small
// network: all peers hold all cells there, and only the index itself can be full.
func (h *storeHandler) wait(r *records.Record, cells []records.CellKey, prefix netip.Prefix, live, admitted bool) (left time.Duration) {
	if live || h.k.Router.Size() < acceptWithin {
		return 0
	}
	var longest time.Duration
	for _, c := range cells {
		if !c.OfProvider() && h.k.splits.phase(c) == cell.Whole {
			longest = max(longest, h.waitFor(r, c, prefix))
		}
	}
	if admitted || r.Name().Provider == h.k.Self {
		return 0
	}
	return h.k.splits.admit(r.Name(), longest, h.now)
}

// waitFor returns the queueing time of a new record at one whole cell.
func (h *storeHandler) waitFor(r *records.Record, c records.CellKey, prefix netip.Prefix) time.Duration {
	size, capacity := h.size(c), cell.Capacity(c.Cell)
	if !cell.NearFull(size, capacity) {
		return 0
	}
	ofProvider, ofPrefix := h.k.splits.shares(c, r, prefix, h.now)
	_, splits := cell.Children(c.Cell)
	return cell.Wait(cell.Load{
		Count: size, Capacity: capacity, OfProvider: ofProvider, OfPrefix: ofPrefix, Splits: splits,
	})
}

// finish splits overfull cells and returns hints for the split cells of the request.
func (h *storeHandler) finish() []*pb.Split {
	for _, c := range h.counted {
		switch n := h.cell(c).count; {
		case n > cell.Capacity(c.Cell):
			h.k.splits.overflow(c)
		case h.admitted && n >= cell.SampleSize/2:
			h.k.splits.suspectSplit(c)
		}
	}
	children := make(map[records.CellKey][]geo.Cell)
	for c, x := range h.cells {
		if len(x.records) == 0 || h.k.splits.phase(c) == cell.Whole {
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
	return h.k.splits.forPublisher(children)
}
