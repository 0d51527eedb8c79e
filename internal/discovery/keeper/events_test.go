package keeper

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/internal/discovery/registry"
	"github.com/blackhole/blackhole/internal/discovery/route"
	"github.com/blackhole/blackhole/internal/platform/heap"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// Rules of rooms that need a network.
const (
	retained    = route.Replicas + 2 // route.retainWithin
	hintTTL     = 10 * time.Minute   // place.hintTTL
	reportEvery = 2 * time.Minute    // place.refreshEvery
	reportBatch = 128                // place.refreshBatch
	cellsOf     = 2 + geo.MaxLen     // of a record with a place and without a subtype; the last is its provider's
)

// simulation plays a script as events in virtual time, without goroutines, so it knows networks that no machine plays. The rules of
// cells, hashes and records are the real ones. It simplifies:
//
//   - The keepers of a divided cell share one cell.Cell: they differ by delays. So do their hints to a publisher.
//   - Messages arrive at once, each peer knows who is there, and no publisher repeats for a silent keeper. A hand-over by SYNC
//     (compare.Syncer), which follows a change of the routing table within seconds, takes no time.
//   - Nobody's id is chosen, no address prefix is known, and no record waits for a place in a cell.
//   - A record that leaves a sample makes room for the next one that is sent, not for one of the keepers' other cells.
//   - Cells of geo.MaxLen stay whole. More records in one end the simulation.
type simulation struct {
	*script
	began  time.Time
	now    time.Duration
	events *heap.Heap[*event]
	number int // of events so far
	random *rand.Rand

	hashes []uint64 // of the ids of peers, sorted: no two of 10^6 share these 64 bits. A peer is its position here
	alive  []bool
	at     []int32 // position of each peer of the script

	cells   []simCell
	byHash  []int32            // cells
	named   map[geo.Cell]int32 // cells that are no provider's
	records []simOffer
	hints   map[hintAt]*hint
	old     []hintAt // of hints, to find those that are over
	load    []load   // of peers

	announced int // records since the beginning of the window
}

// event is something to do at a time.
type event struct {
	at     time.Duration
	number int // of events at one time the first made comes first
	do     func()
	slot   int // in the queue
}

// load is what one peer did since the beginning of the window.
type load struct {
	stores  int // STORE requests received
	records int // in them
	sent    int // STORE requests sent
	reports int // summaries of children told to the keepers of their parents
	pulled  int // bytes of records taken over from other keepers, and of their entries
}

// simCell is one cell.
type simCell struct {
	hash    uint64
	place   geo.Cell // "" for a provider's
	near    []int32  // the closest peers, nearest first: the keepers, and who retains records; nil if unknown
	offers  []int32  // of all times
	live    int
	divided *dividedCell  // nil for a whole one
	total   *cell.Summary // of the live offers of a whole one; nil if unknown
}

type dividedCell struct {
	*cell.Cell
	stable map[geo.Cell]*cell.Summary // what publishers hear of children; equal ones share memory
}

// simOffer is one record, with the state that registry.scheduler keeps of it.
type simOffer struct {
	record  *records.Record // nil before the registration
	gone    bool            // withdrawn
	cells   [cellsOf]int32
	created time.Duration
	issued  time.Duration
	next    *event
	held    []holding // by peer
	told    uint8     // cells of the last announcement: bits
}

// holding is a peer that has a record until it expires there.
type holding struct{ peer, until int32 } // until: seconds

// sending is a record on its way to one keeper, for some of its cells.
type sending struct {
	peer  int32
	cells uint8 // bits
}

type hintAt struct{ publisher, cell int32 }

// hint is what a publisher knows of a divided cell: place.splitHint.
type hint struct {
	until, last time.Duration // last: until the cell counts as split
	below       uint64
	children    map[geo.Cell]*cell.Summary
}

func newSimulation(s *script) *simulation {
	x := &simulation{
		script: s, began: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), random: rand.New(rand.NewPCG(3, 4)),
		events: heap.New(func(a, b *event) bool { return cmp.Or(cmp.Compare(a.at, b.at), a.number-b.number) < 0 }, func(e *event) *int { return &e.slot }),
		named:  make(map[geo.Cell]int32), hints: make(map[hintAt]*hint), load: make([]load, len(s.peers)),
		hashes: make([]uint64, len(s.peers)), alive: make([]bool, len(s.peers)), at: make([]int32, len(s.peers)),
		records: make([]simOffer, s.offers),
	}
	for i, id := range s.peers {
		x.hashes[i] = route.HashOf(string(id))[0]
	}
	slices.Sort(x.hashes)
	for i, id := range s.peers {
		at, _ := slices.BinarySearch(x.hashes, route.HashOf(string(id))[0])
		x.at[i], x.alive[at] = int32(at), i < s.present
	}
	x.makeCells()
	for _, a := range s.acts {
		x.after(a.at, func() { x.act(a) })
	}
	return x
}

// makeCells finds the cells of all offers.
func (x *simulation) makeCells() {
	add := func(c records.CellKey) int32 {
		a := simCell{hash: route.HashOf(route.KeyOf(c))[0]}
		if !c.OfProvider() {
			a.place = c.Cell
		}
		x.cells = append(x.cells, a)
		return int32(len(x.cells) - 1)
	}
	var own int32
	for i := range x.records {
		if i%x.each == 0 {
			own = add(records.ProviderCell(x.peers[i/x.each]))
		}
		o := x.offer(i, 1)
		for j, at := range geo.IndexCells(geo.Point{Lat: *o.Location.Latitude, Lon: *o.Location.Longitude}) {
			c, known := x.named[at]
			if !known {
				c = add(records.CellKey{Type: o.Metadata.Type, Subtype: records.AnySubtype, Cell: at})
				x.named[at] = c
			}
			x.records[i].cells[j] = c
		}
		x.records[i].cells[cellsOf-1] = own
		for _, c := range x.records[i].cells {
			x.cells[c].offers = append(x.cells[c].offers, int32(i))
		}
	}
	x.byHash = make([]int32, len(x.cells))
	for i := range x.byHash {
		x.byHash[i] = int32(i)
	}
	slices.SortFunc(x.byHash, func(a, b int32) int { return cmp.Compare(x.cells[a].hash, x.cells[b].hash) })
}

// after does something at a time.
func (x *simulation) after(at time.Duration, do func()) *event {
	x.number++
	e := &event{at: at, number: x.number, do: do}
	x.events.Push(e)
	return e
}

// run plays all events up to a time.
func (x *simulation) run(until time.Duration) {
	for e, ok := x.events.Min(); ok && e.at <= until; e, ok = x.events.Min() {
		x.events.Remove(e)
		x.now = e.at
		e.do()
	}
	x.now = until
}

func (x *simulation) clock() time.Time { return x.began.Add(x.now) }

func (x *simulation) act(a act) {
	switch a.kind {
	case joins, leaves:
		x.move(x.at[a.who], a.kind == joins)
	case registers:
		x.register(a.who)
	case changes:
		x.change(a.who, a.price)
	case withdraws:
		x.withdraw(a.who)
	}
}

// register announces all offers of a provider.
func (x *simulation) register(p int) {
	var all []int32
	for i := p * x.each; i < min((p+1)*x.each, len(x.records)); i++ {
		o := &x.records[i]
		o.record = x.sign(i, 0, records.Stamp{Sequence: 1, Issued: x.clock()})
		o.created, o.issued = x.now, x.now
		for _, c := range o.cells {
			if a := &x.cells[c]; a.total != nil {
				a.total.Add(o.record)
			}
			x.cells[c].live++
		}
		all = append(all, int32(i))
	}
	x.announce(x.at[p], all)
	for _, i := range all {
		x.records[i].next = x.after(x.renewal(), func() { x.due(int(i)) })
	}
}

// renewal is the time of the next version of one that is made now.
func (x *simulation) renewal() time.Duration {
	return x.now + time.Duration(float64(x.refresh)*(0.9+0.2*x.random.Float64())) // registry.jitterShare
}

// due announces a version that replaces one, or a tombstone again: registry.scheduler.
func (x *simulation) due(i int) {
	o := &x.records[i]
	if o.gone && x.now >= o.issued+registry.DefaultTTL {
		return
	}
	if !o.gone {
		o.issued = x.now
	}
	x.announceNow(i)
}

// announceNow announces a version, and again after a while.
func (x *simulation) announceNow(i int) {
	x.announce(x.at[i/x.each], []int32{int32(i)})
	x.records[i].next = x.after(x.renewal(), func() { x.due(i) })
}

// change announces another price.
func (x *simulation) change(i int, price float64) {
	o := &x.records[i]
	if !o.live() {
		return
	}
	before := o.record
	o.record = x.sign(i, price, records.Stamp{Sequence: before.Sequence() + 1, Created: x.began.Add(o.created), Issued: x.clock()})
	o.issued = x.now
	was, _ := query.LowestRate(before)
	for _, c := range o.cells {
		a := &x.cells[c]
		if a.total != nil && slices.ContainsFunc(a.total.Prices, func(p cell.Price) bool { return p.Least == was }) {
			a.total = nil
		} else if a.total != nil {
			a.total.Note(o.record)
		}
	}
	x.events.Remove(o.next)
	x.announceNow(i)
}

func (x *simulation) withdraw(i int) {
	o := &x.records[i]
	if !o.live() {
		return
	}
	o.gone, o.issued = true, x.now
	for _, c := range o.cells {
		a := &x.cells[c]
		a.live--
		a.total = nil
		if a.divided != nil {
			a.divided.Forget(o.record.Name())
		}
	}
	x.events.Remove(o.next)
	x.announceNow(i)
}

// announce sends records of one provider to their keepers: place.Publisher.
func (x *simulation) announce(from int32, all []int32) {
	x.announced += len(all)
	var asked []int32
	for _, i := range all {
		sends := x.address(from, i)
		x.receive(&x.records[i], sends)
		for _, s := range sends {
			if s.peer != from {
				asked = append(asked, s.peer)
				x.load[s.peer].records++
			}
		}
	}
	slices.Sort(asked)
	for _, p := range slices.Compact(asked) {
		x.load[p].stores++
		x.load[from].sent++
	}
	for _, i := range all {
		x.overflow(&x.records[i])
	}
	for _, i := range all {
		x.takeHints(from, &x.records[i])
	}
}

// address returns the keepers that want a record, each with the cells that it gets the record for.
func (x *simulation) address(from, i int32) (sends []sending) {
	o := &x.records[i]
	o.told = 0
	for j, c := range o.cells {
		a, h := &x.cells[c], x.hints[hintAt{from, c}]
		if h != nil && x.now < h.until && !o.gone && !h.wants(a.place, o.record) {
			continue
		}
		for _, k := range x.keepersOf(c) {
			at := slices.IndexFunc(sends, func(s sending) bool { return s.peer == k })
			if at < 0 {
				at, sends = len(sends), append(sends, sending{peer: k})
			}
			sends[at].cells |= 1 << j
		}
	}
	for _, s := range sends {
		o.told |= s.cells
	}
	return sends
}

func (h *hint) wants(at geo.Cell, r *records.Record) bool {
	known := map[geo.Cell]cell.Summary{}
	if child, ok := cell.ChildOf(at, r); ok && h.children[child] != nil {
		known[child] = *h.children[child]
	}
	return cell.Wants(at, h.below, known, r)
}

// receive has keepers take a record: place.Batch.Take.
func (x *simulation) receive(o *simOffer, sends []sending) {
	var kept uint8
	for j, c := range o.cells {
		switch a := &x.cells[c]; {
		case o.gone || o.told&(1<<j) == 0:
		case a.divided == nil:
			kept |= 1 << j
		default:
			in, displaced := a.divided.Offer(cell.Member{Record: o.record})
			if in {
				kept |= 1 << j
			}
			for _, n := range displaced {
				x.releaseAll(c, &x.records[numberOf(n)])
			}
		}
	}
	o.held = slices.DeleteFunc(o.held, x.over)
	for _, s := range sends {
		switch {
		case o.gone:
			o.drop(s.peer)
		case s.cells&kept != 0 || o.holds(s.peer):
			o.hold(s.peer)
		}
	}
	for j, c := range o.cells {
		if !o.gone && (o.told&^kept)&(1<<j) != 0 {
			x.releaseAll(c, o)
		}
	}
}

// takeHints notes what the keepers of divided cells answer to a publisher: place.splitHints.
func (x *simulation) takeHints(from int32, o *simOffer) {
	for j, c := range o.cells {
		d := x.cells[c].divided
		if d == nil || o.gone || o.told&(1<<j) == 0 {
			continue
		}
		if phase, _ := d.Phase(); phase.Open() {
			continue
		}
		at := hintAt{from, c}
		h := x.hints[at]
		if h == nil {
			h = new(hint)
			x.hints[at] = h
			x.old = append(x.old, at)
		}
		if x.now >= h.until {
			h.until, h.children = x.now+hintTTL, make(map[geo.Cell]*cell.Summary)
		}
		h.last, h.below = x.now+hintTTL, d.Below()
		child, _ := cell.ChildOf(x.cells[c].place, o.record)
		h.children[child] = d.hinted(child)
	}
	for range min(cellsOf, len(x.old)) { // more than begin
		at := x.old[0]
		if x.old = x.old[1:]; x.now >= x.hints[at].last {
			delete(x.hints, at)
		} else {
			x.old = append(x.old, at)
		}
	}
}
