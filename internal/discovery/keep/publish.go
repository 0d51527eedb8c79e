package keep

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/sync/semaphore"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

const (
	storeTimeout = time.Minute                       // of a Store without a deadline
	deliveries   = (2*(1+geo.MaxLen) + 1) * Replicas // at a time: all keepers of one record
	inFlight     = 500                               // records of one Store under way to keepers, each keeper's counted
	avoidedShare = 5                                 // an avoided peer gets 1/avoidedShare of the usual time for a delivery
)

// Store sends records to the keepers of their cells and returns an outcome for each record, in
// order. This peer stores the records of its own cells directly.
//
// Stored.Of counts the keepers asked, without those that are full for all cells that they were asked for: they get no
// record of these cells for skipFor. Stored.On counts the keepers that hold the record for all other
// cells in the request; a keeper with a newer version does not count. Where a keeper calls a cell of geo.MaxLen or more full, the
// keepers of the child receive the record too. After an incomplete lookup, Of exceeds On: at least one more keeper should hold the record.
//
// Err is nil if at least one keeper holds the record. Otherwise it is Exists with the highest
// sequence as its value, or the error of the first keeper. It is LimitReached, naming "cells", too if half of the keepers of a
// cell without children have no room: other peers do not find the record there.
func (p *Publisher) Store(ctx context.Context, recs []*records.Record) []records.Outcome {
	sends := make([]*send, len(recs))
	for i, r := range recs {
		sends[i] = &send{record: r, cells: r.Cells()}
	}
	ctx, end, err := p.Begin(ctx, "store", storeTimeout)
	if err != nil {
		return failAll(sends, err)
	}
	defer func() { end(err) }()
	outcomes := p.storeAt(ctx, sends)
	for _, o := range outcomes {
		err = cmp.Or(err, o.Err)
	}
	return outcomes
}

// Publisher sends records to keepers. It is safe for concurrent use.
type Publisher struct {
	*protocol.Life
	serving   func() bool   // this peer is a server of the DHT
	patience  time.Duration // with one keeper
	authority *Authority
	closest   *Closest
	client    *protocol.Client
	store     *Store // of this peer
	skips     skips
	acks      acks
}

// NewPublisher returns a publisher. It stores records for this peer's own cells in s, and gives up a delivery to a keeper after a time.
func NewPublisher(closest *Closest, authority *Authority, c *protocol.Client, s *Store, patience time.Duration) *Publisher {
	return &Publisher{Life: c.Life, serving: closest.Router.Serving, patience: patience, authority: authority, closest: closest, client: c, store: s, skips: newSkips(), acks: newAcks()}
}

// send is one record of a Store.
type send struct {
	record *records.Record
	cells  []records.CellKey // to store the record for; children of full cells follow
	done   int               // number of cells of earlier rounds

	outcome records.Outcome
	newest  uint64 // highest sequence at a keeper with a newer version
	noRoom  int    // keepers of cells without children that have no room
	missing error  // what the last of them said
}

// target is a record and its cells of one round.
type target struct {
	*send
	cells []records.CellKey
}

// storeAt sends each record to the keepers of its cells, and of their children where
// a keeper is full. The answers of one round select the cells of the next round.
func (p *Publisher) storeAt(ctx context.Context, sends []*send) []records.Outcome {
	sets := make(map[records.CellKey]*Set)
	var batches []storeBatch
	targets := p.targets(sends)
	for depth := geo.MaxLen; depth <= geo.DeepLen && len(targets) > 0; depth++ {
		if err := p.addKeepers(ctx, targets, sets); err != nil {
			if batches == nil {
				return failAll(sends, fault.Wrap("keeper.Store", err))
			}
			break
		}
		round := batchesOf(targets, sets, p.wants())
		p.deliverAll(ctx, round)
		p.forward(ctx, round)
		p.unlearn(round)
		batches = append(batches, round...)
		for _, t := range targets {
			t.done += len(t.cells)
		}
		targets = p.targets(sends)
	}
	return tally(p.Self, sends, batches, sets)
}

// targets returns the records with cells to store them for. Below full cells of geo.MaxLen or more these include the
// children that contain the record.
func (p *Publisher) targets(sends []*send) []target {
	now := p.Now()
	var targets []target
	for _, s := range sends {
		for i := 0; i < len(s.cells); i++ { // cells grow in the loop
			if child, ok := p.skips.childOf(s.cells[i], s.record, now); ok && !slices.Contains(s.cells, child) {
				s.cells = append(s.cells, child)
			}
		}
		if s.done < len(s.cells) {
			targets = append(targets, target{s, s.cells[s.done:]})
		}
	}
	return targets
}

// wants returns a predicate: whether a keeper should receive a record for a cell.
func (p *Publisher) wants() func(peer.ID, records.CellKey, *records.Record) bool {
	now := p.Now()
	return func(id peer.ID, c records.CellKey, r *records.Record) bool { return p.skips.wants(id, c, r, now) }
}

func failAll(sends []*send, err error) []records.Outcome {
	return slices.Repeat([]records.Outcome{{Err: err}}, len(sends))
}

// addKeepers looks up the keepers of new cells and adds them to sets.
func (p *Publisher) addKeepers(ctx context.Context, targets []target, sets map[records.CellKey]*Set) error {
	cells := slices.DeleteFunc(cellsIn(targets), func(c records.CellKey) bool { return sets[c] != nil })
	found, err := p.closest.KeepersOf(ctx, cells)
	for i, set := range found {
		sets[cells[i]] = set
	}
	return err
}

// cellsIn returns the cells of some targets, each once.
func cellsIn(targets []target) (cells []records.CellKey) {
	seen := make(map[records.CellKey]bool)
	for _, t := range targets {
		for _, c := range t.cells {
			if !seen[c] {
				seen[c] = true
				cells = append(cells, c)
			}
		}
	}
	return cells
}

// storeBatch is the list of records for one keeper.
type storeBatch struct {
	to     peer.ID
	items  []storeItem
	sent   bool // over the network, and answered
	silent bool // the keeper gave no answer
}

// storeItem is one record of a batch and the result of the keeper.
type storeItem struct {
	of   *send
	wire *pb.StoreItem

	err      error
	sequence uint64 // highest sequence of the record at the keeper
	full     bool   // the keeper is full for all the cells
}

// batchesOf returns one batch for each keeper, sorted by peer id. A batch holds the records that
// the keeper wants, each with the cells to store it for.
func batchesOf(targets []target, sets map[records.CellKey]*Set, wants func(peer.ID, records.CellKey, *records.Record) bool) []storeBatch {
	byKeeper := make(map[peer.ID]*storeBatch)
	for _, t := range targets {
		for _, c := range t.cells {
			key := c.String()
			for _, id := range sets[c].All() {
				if !wants(id, c, t.record) {
					continue
				}
				if byKeeper[id] == nil {
					byKeeper[id] = &storeBatch{to: id}
				}
				byKeeper[id].add(t.send, key)
			}
		}
	}
	batches := make([]storeBatch, 0, len(byKeeper))
	for _, id := range slices.Sorted(maps.Keys(byKeeper)) {
		batches = append(batches, *byKeeper[id])
	}
	return batches
}

func (b *storeBatch) add(s *send, key string) {
	if n := len(b.items); n == 0 || b.items[n-1].of != s {
		b.items = append(b.items, storeItem{of: s, wire: &pb.StoreItem{Envelope: s.record.Envelope()}})
	}
	item := b.items[len(b.items)-1].wire
	item.Cells = append(item.Cells, key)
}

// fail sets err as the result of the items.
func fail(items []storeItem, err error) {
	for i := range items {
		items[i].err = err
	}
}

// pack divides items into messages within the bounds of the protocol.
func pack(items []storeItem) [][]storeItem {
	const limit = protocol.MaxRequest - 128 // 128 bytes for the framing of the request, and the receiver of a FORWARD
	var messages [][]storeItem
	size, start := 0, 0
	for i, item := range items {
		n := protowire.SizeTag(1) + protowire.SizeBytes(proto.Size(item.wire))
		if i > start && (size+n > limit || i-start == protocol.MaxItems) {
			messages = append(messages, items[start:i])
			size, start = 0, i
		}
		size += n
	}
	if start < len(items) {
		messages = append(messages, items[start:])
	}
	return messages
}

// deliverAll sends all batches. Records of one call are few at each keeper, and all go out at once. Of a provider with many, or where
// few keepers have all cells, only inFlight records are under way: when many peers announce at once, as after a common start, each
// keeper would otherwise get more at a time than it verifies within Limits.Deliver, and everything would be repeated. Each peer
// begins with the keepers after itself, so that not all begin with the same one.
func (p *Publisher) deliverAll(ctx context.Context, round []storeBatch) {
	first, _ := slices.BinarySearchFunc(round, p.Self, func(b storeBatch, id peer.ID) int { return cmp.Compare(b.to, id) })
	batch := func(i int) *storeBatch { return &round[(first+i)%len(round)] }
	weights := make([]int, len(round))
	for i := range weights {
		weights[i] = len(batch(i).items)
	}
	for _, i := range weighed(ctx, deliveries, inFlight, weights, func(i int) {
		p.deliver(ctx, batch(i))
	}) {
		fail(batch(i).items, fault.Wrap("keeper.Store", ctx.Err()))
	}
}

// weighed is bounded with a call for each weight. A call starts while it and those under way weigh at most so much together, or alone. It
// returns the calls that did not start before the end of ctx.
func weighed(ctx context.Context, width, most int, weights []int, do func(int)) (late []int) {
	room := semaphore.NewWeighted(int64(most))
	var mu sync.Mutex // guards late
	protocol.Bounded(width, len(weights), func(i int) {
		w := int64(min(weights[i], most))
		if room.Acquire(ctx, w) != nil {
			mu.Lock()
			defer mu.Unlock()
			late = append(late, i)
			return
		}
		defer room.Release(w)
		do(i)
	})
	return late
}

// deliver sends a batch to its keeper, message by message, and sets the results of the items.
// A failed message ends the delivery: the remaining items fail too.
func (p *Publisher) deliver(ctx context.Context, b *storeBatch) {
	if b.to == p.Self {
		p.storeHere(b.items)
		return
	}
	delivered := p.skipAcknowledged(b)
	for _, message := range pack(b.items[delivered:]) {
		refused, err := p.send(ctx, b.to, message)
		if err != nil {
			if b.silent = !refused && fault.KindOf(err) != fault.Unauthentic; b.silent {
				p.skips.forget(b.to)
			}
			p.Logger.Debug("delivery of records to a keeper failed", "peer", b.to, "records", len(b.items)-delivered, "error", err)
			fail(b.items[delivered:], err)
			return
		}
		delivered += len(message)
		p.acknowledge(b.to, message)
	}
	b.sent = true
}

// unlearn drops the lookups that led to peers which do not keep the cells. The repeated announcement looks again.
func (p *Publisher) unlearn(round []storeBatch) {
	for _, b := range round {
		var refused []records.CellKey
		for _, item := range b.items {
			if fault.KindOf(item.err) != fault.Forbidden || fault.FieldOf(item.err) != "cells" {
				continue
			}
			if cells, err := protocol.CellsOf(item.wire.Cells, protocol.MaxItemCells); err == nil {
				refused = append(refused, cells...)
			}
		}
		if len(refused) > 0 {
			p.closest.Forget(b.to, refused)
		}
	}
}

// skipAcknowledged moves the items that the keeper took a short time ago to the front, and returns
// their number.
func (p *Publisher) skipAcknowledged(b *storeBatch) int {
	now := p.Now()
	var taken, open []storeItem
	for _, item := range b.items {
		if r := item.of.record; r.Name().Provider == p.Self && p.acks.has(r, b.to, item.wire.Cells, now) {
			item.sequence = r.Sequence()
			taken = append(taken, item)
		} else {
			open = append(open, item)
		}
	}
	b.items = append(taken, open...)
	return len(taken)
}

// acknowledge notes the own records that a keeper took.
func (p *Publisher) acknowledge(keeper peer.ID, items []storeItem) {
	now := p.Now()
	for _, item := range items {
		if r := item.of.record; item.err == nil && !item.full && r.Name().Provider == p.Self {
			p.acks.add(r, keeper, item.wire.Cells, now)
		}
	}
}

// storeHere stores records for the cells that this peer keeps itself. A peer that is no keeper gets
// here only without contact to any keeper.
func (p *Publisher) storeHere(items []storeItem) {
	if !p.serving() && !p.authority.Alone() {
		fail(items, fault.New("keeper.Store", fault.Unavailable, "no keeper was reached, and this peer, behind NAT or a leaf, keeps no records"))
		return
	}
	h := p.store.NewBatch(protocol.Source{Exempt: true})
	for i := range items {
		item := &items[i]
		cells, err := protocol.CellsOf(item.wire.Cells, protocol.MaxItemCells)
		if err == nil {
			var taken Taken
			taken, err = h.Take(item.of.record, cells)
			item.sequence, item.full = taken.Sequence, taken.Full
		}
		item.err = err
	}
	if err := p.skips.add(p.Self, h.Full(), func(string) bool { return true }, p.Now()); err != nil {
		p.Logger.Error("own full cell rejected: please report this defect", "error", err)
	}
}

// send delivers one message to a keeper and sets the results of the items. Refused reports an answer. The timeout is
// shorter for a keeper that failed recently.
func (p *Publisher) send(ctx context.Context, to peer.ID, items []storeItem) (refused bool, err error) {
	timeout := p.patience
	if p.client.Avoided(to) {
		timeout /= avoidedShare
	}
	ctx, end, err := p.Begin(ctx, "deliver", timeout)
	if err != nil {
		return false, err
	}
	defer func() { end(err) }()
	req := &pb.StoreRequest{Items: make([]*pb.StoreItem, len(items))}
	for i := range items {
		req.Items[i] = items[i].wire
	}
	resp, refused, err := p.client.Call(ctx, to, &pb.Request{Op: &pb.Request_Store{Store: req}})
	if err == nil {
		err = p.readStoreResponse(to, items, resp.GetStore())
	}
	if err != nil && !refused {
		p.client.Observe(ctx, to, 0, err)
	}
	return refused, err
}

// readStoreResponse sets the results of the items and notes the full cells. It returns
// Unauthentic for a response that violates the protocol.
func (p *Publisher) readStoreResponse(from peer.ID, items []storeItem, resp *pb.StoreResponse) error {
	if err := readResults(items, resp.GetResults()); err != nil {
		return err
	}
	return p.noteFull(from, items, resp.GetFull())
}

// noteFull notes the full cells of a keeper that was asked for some items.
func (p *Publisher) noteFull(keeper peer.ID, items []storeItem, full []string) error {
	return p.skips.add(keeper, full, func(c string) bool {
		return slices.ContainsFunc(items, func(item storeItem) bool { return slices.Contains(item.wire.Cells, c) })
	}, p.Now())
}

// readResults sets the results of the items. It returns Unauthentic for another number of results.
func readResults(items []storeItem, results []*pb.StoreResult) error {
	if len(results) != len(items) {
		return protocol.Breach("%d results for %d records", len(results), len(items))
	}
	for i, r := range results {
		items[i].err, items[i].sequence, items[i].full = rpc.Restore("keeper.Store", r.GetRefusal()), r.GetSequence(), r.GetFull()
	}
	return nil
}

// tally returns the outcomes of the records from the results in the batches.
func tally(self peer.ID, sends []*send, batches []storeBatch, sets map[records.CellKey]*Set) []records.Outcome {
	for _, b := range batches {
		for _, item := range b.items {
			o := &item.of.outcome
			if item.err == nil && item.full {
				continue
			}
			o.Stored.Of++
			switch {
			case fault.KindOf(item.err) == fault.LimitReached && fault.FieldOf(item.err) == "cells":
				item.of.noRoom++
				item.of.missing = item.err
			case item.err == nil:
				o.Stored.ThisPeerOnly = b.to == self && (o.Stored.On == 0 || o.Stored.ThisPeerOnly)
				o.Stored.On++
			case fault.KindOf(item.err) == fault.Exists:
				item.of.newest = max(item.of.newest, item.sequence)
			case o.Err == nil:
				o.Err = item.err
			}
		}
	}
	outcomes := make([]records.Outcome, len(sends))
	for i, s := range sends {
		o := s.outcome
		switch {
		case 2*s.noRoom >= Replicas:
			o.Err = s.missing
		case o.Stored.On > 0:
			o.Err = nil
		case s.newest > 0:
			o.Err = newer(s.newest)
		}
		if slices.ContainsFunc(s.cells[:s.done], func(c records.CellKey) bool { return sets[c].Uncertain != nil }) {
			o.Stored.Of = max(o.Stored.Of, o.Stored.On+1)
		}
		outcomes[i] = o
	}
	return outcomes
}

// newer returns the error for a record whose keepers hold a later version.
func newer(sequence uint64) error {
	return &fault.Error{
		Op: "keeper.Store", Kind: fault.Exists, Field: "sequence", Value: sequence,
		Err: fmt.Errorf("the keepers hold version %d", sequence),
	}
}
