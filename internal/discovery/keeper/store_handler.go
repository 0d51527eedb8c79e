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

// storeHandler takes in the records of one STORE. It looks at each cell once.
type storeHandler struct {
	k        *Keeper
	from     peer.ID      // who brings the records; "" is this peer
	prefix   netip.Prefix // parentepers who brings them; the zero prefix where that says nothing about their providers
	now      time.Time
	admitted bool // the records were let in by another keeper: newcomers do not wait again

	kept    map[records.CellKey]bool
	counts  map[records.CellKey]int
	touched []records.CellKey // whole cells that records came into
	taken   []taken
}

// pulled is a record and the cells it was brought for.
type taken struct {
	record *records.Record
	cells  []records.CellKey
}

func (k *Keeper) newStoreHandler(from source) *storeHandler {
	in := &storeHandler{
		k: k, from: from.peer, now: k.Now(),
		kept: make(map[records.CellKey]bool), counts: make(map[records.CellKey]int),
	}
	if !from.exempt && !from.prefix.Addr().IsPrivate() { // a private network is no party
		in.prefix = from.prefix
	}
	return in
}

// accepts reports whether this peer keeps a cell.
func (in *storeHandler) accepts(c records.CellKey) bool {
	kept, ok := in.kept[c]
	if !ok {
		kept = in.k.closest.accepts(c)
		in.kept[c] = kept
	}
	return kept
}

// store takes a verified record for cells that this peer keeps. It is no error that it is
// not held, where all the cells are divided and its children's keepers do. A fresher
// version known is Exists, a crowded cell LimitReached. Sequence is the highest known.
func (in *storeHandler) store(r *records.Record, cells []records.CellKey) (sequence uint64, err error) {
	x, d := in.k.Index, in.k.splits
	latest, known := x.Latest(r.Name())
	if known && records.Compare(latest, r) > 0 || r.Withdrawn() {
		if r.Withdrawn() {
			d.forget(r, cells)
		}
		return in.k.put(r)
	}
	_, live := x.Get(r.Name())
	prefix, waited := in.prefix, in.admitted
	if in.handedOver(r, cells) {
		prefix, waited = netip.Prefix{}, true
	}
	if left := in.wait(r, cells, prefix, live, waited); left > 0 {
		in.k.Recorder.Refused("crowded")
		return 0, fault.New("", fault.LimitReached, "the cell is crowded: come again in %s", left.Round(time.Second))
	}
	in.record(r, cells)
	wanted := d.offer(cell.Member{Record: r, Prefix: prefix}, cells)
	if !wanted && !live {
		return r.Sequence(), nil
	}
	if prefix.IsValid() && !live {
		d.prefixes.Add(r.Name(), prefix)
	}
	if sequence, err = in.k.put(r); err != nil {
		return sequence, err
	}
	if !wanted {
		d.release(r.Name())
	}
	if !live {
		in.count(r, cells, prefix)
	}
	return sequence, nil
}

// handedOver reports whether a record is brought by another keeper of the cell around, which
// has divided it: then its address says nothing about the record's provider.
func (in *storeHandler) handedOver(r *records.Record, cells []records.CellKey) bool {
	if in.from == "" || in.from == r.Name().Provider {
		return false
	}
	return slices.ContainsFunc(cells, func(c records.CellKey) bool {
		around, _ := c.Cell.Parent()
		if c.Cell.Len() <= geo.MaxLen {
			return false
		}
		key := routingKey(records.CellKey{Type: c.Type, Subtype: c.Subtype, Cell: around})
		return slices.Contains(in.k.Router.Nearby(key, acceptWithin), in.from)
	})
}

// record remembers what was brought for which cells.
func (in *storeHandler) record(r *records.Record, cells []records.CellKey) {
	in.taken = append(in.taken, taken{r, cells})
	for _, c := range cells {
		if c.Cell.Len() > geo.MaxLen {
			in.k.splits.deep.Add(c, struct{}{})
		}
	}
}

// size is the number of records in a whole cell, up to a little above its capacity.
func (in *storeHandler) size(c records.CellKey) int {
	n, ok := in.counts[c]
	if !ok {
		n = in.k.Index.CountIn(c, in.now, cell.Capacity(c.Cell)+1)
		in.counts[c] = n
		in.touched = append(in.touched, c)
	}
	return n
}

func (in *storeHandler) count(r *records.Record, cells []records.CellKey, prefix netip.Prefix) {
	for _, c := range cells {
		if _, ok := in.counts[c]; ok {
			in.counts[c]++
			in.k.splits.countIn(c, r, prefix)
		}
	}
}

// sleep is how long a newcomer is still kept out of the cells. Where everybody keeps
// everything, only the index itself can be full.
func (in *storeHandler) wait(r *records.Record, cells []records.CellKey, prefix netip.Prefix, live, waited bool) (left time.Duration) {
	if live || in.k.Router.Size() < acceptWithin {
		return 0
	}
	var longest time.Duration
	for _, c := range cells {
		if in.k.splits.phase(c) == cell.Whole {
			longest = max(longest, in.waitFor(r, c, prefix))
		}
	}
	if waited || r.Name().Provider == in.k.Self {
		return 0
	}
	return in.k.splits.admit(r.Name(), longest, in.now)
}

// waitFor is how long a newcomer is kept out of one whole cell.
func (in *storeHandler) waitFor(r *records.Record, c records.CellKey, prefix netip.Prefix) time.Duration {
	size, capacity := in.size(c), cell.Capacity(c.Cell)
	if !cell.NearFull(size, capacity) {
		return 0
	}
	ofProvider, ofPrefix := in.k.splits.shares(c, r, prefix, in.now)
	_, divides := cell.Children(c.Cell)
	return cell.Wait(cell.Load{
		Count: size, Capacity: capacity, OfProvider: ofProvider, OfPrefix: ofPrefix, Splits: divides,
	})
}

// finish divides the cells that have grown too large, and tells which are divided.
func (in *storeHandler) finish() []*pb.Split {
	for _, c := range in.touched {
		switch n := in.counts[c]; {
		case n > cell.Capacity(c.Cell):
			in.k.splits.overflow(c)
		case in.admitted && n >= cell.SampleSize/2:
			in.k.splits.suspectSplit(c)
		}
	}
	children := make(map[records.CellKey][]geo.Cell)
	for _, t := range in.taken {
		for _, c := range t.cells {
			if in.k.splits.phase(c) == cell.Whole {
				continue
			}
			list := children[c]
			if child, ok := cell.ChildOf(c.Cell, t.record); ok && !slices.Contains(list, child) {
				list = append(list, child)
			}
			children[c] = list
		}
	}
	return in.k.splits.forPublisher(children)
}

// forget takes a withdrawn record out of samples.
func (d *splits) forget(r *records.Record, cells []records.CellKey) {
	for _, c := range cells {
		d.with(c, func(x *cell.Cell) { x.Forget(r.Name()) })
	}
}

// admit lets a newcomer in, or gives the time that it still waits.
func (d *splits) admit(n records.Name, wait time.Duration, now time.Time) (left time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.queue.Admit(n, wait, now)
}

// shares gives how many records of a crowded cell are of a record's provider and prefix.
func (d *splits) shares(c records.CellKey, r *records.Record, prefix netip.Prefix, now time.Time) (ofProvider, ofPrefix int) {
	d.mu.Lock()
	known, ok := d.nearFull.Get(c)
	d.mu.Unlock()
	if !ok || !now.Before(known.until) {
		known = &nearFullCell{until: now.Add(nearFullTTL)}
		for _, m := range d.members(c) {
			known.counter.Add(m.Record.Name().Provider, m.Prefix)
		}
		d.mu.Lock()
		d.nearFull.Add(c, known)
		d.mu.Unlock()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return known.counter.Of(r.Name().Provider, prefix)
}

// countIn keeps a census right.
func (d *splits) countIn(c records.CellKey, r *records.Record, prefix netip.Prefix) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if known, ok := d.nearFull.Peek(c); ok {
		known.counter.Add(r.Name().Provider, prefix)
	}
}
