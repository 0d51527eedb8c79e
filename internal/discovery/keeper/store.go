package keeper

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/sync/semaphore"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// Store sends records to the keepers of their cells and returns an outcome for each record, in
// order. This peer stores the records of its own cells directly.
//
// Stored.Of counts the keepers asked. Stored.On counts the keepers that hold the record for all
// cells in the request, or that split a cell and noted the record; a keeper with a newer version
// does not count. A keeper with a recent split hint receives only the records that the hint
// asks for. Where a cell of geo.MaxLen is split, the keepers of its children receive the record
// too. After an incomplete lookup, Of exceeds On: at least one more keeper should hold the record.
//
// Err is nil if at least one keeper holds the record. Otherwise it is Exists with the highest
// sequence as its value, or the error of the first keeper.
func (k *Keeper) Store(ctx context.Context, recs []*records.Record) []records.Outcome {
	ctx, end, err := k.begin(ctx, "store", storeTimeout)
	if err != nil {
		return failAll(recs, err)
	}
	defer func() { end(err) }()
	targets := make([][]records.CellKey, len(recs))
	for i, r := range recs {
		targets[i] = r.Cells()
	}
	outcomes := k.publisher.storeAt(ctx, recs, targets)
	for _, o := range outcomes {
		err = cmp.Or(err, o.Err)
	}
	return outcomes
}

// publisher sends records to keepers. It is safe for concurrent use.
type publisher struct {
	k     *Keeper
	hints *splitHints
	acks  *acks
}

// storeAt sends each record to the keepers of its target cells, and of their children where
// hints name a split. Hints from one round select the cells of the next round.
func (p *publisher) storeAt(ctx context.Context, recs []*records.Record, targets [][]records.CellKey) []records.Outcome {
	sets := make(map[records.CellKey]*keeperSet)
	done := make([][]records.CellKey, len(recs))
	var batches []storeBatch
	targets = p.nextCells(recs, targets, done)
	ahead := p.storeAhead(ctx, recs, targets)
	defer ahead.close()
	for depth := geo.MaxLen; depth <= geo.DeepLen && slices.ContainsFunc(targets, func(c []records.CellKey) bool { return len(c) > 0 }); depth++ {
		if err := p.addKeepers(ctx, targets, sets); err != nil {
			if batches == nil {
				return failAll(recs, fault.Wrap("keeper.Store", err))
			}
			break
		}
		round := route(recs, targets, sets, p.wants())
		p.deliverAll(ctx, recs, round, ahead)
		p.forward(ctx, recs, round)
		p.unlearn(round)
		batches = append(batches, round...)
		for i := range done {
			done[i] = append(done[i], targets[i]...)
		}
		targets = p.nextCells(recs, done, done)
	}
	outcomes := tally(len(recs), batches)
	for i := range outcomes {
		if slices.ContainsFunc(done[i], func(c records.CellKey) bool { return sets[c].uncertain != nil }) {
			o := &outcomes[i].Stored
			o.Of = max(o.Of, o.On+1)
		}
	}
	return outcomes
}

// nextCells returns the cells of each record and, below split cells, the children that contain
// the record. It leaves out the cells in done.
func (p *publisher) nextCells(recs []*records.Record, cells, done [][]records.CellKey) [][]records.CellKey {
	now := p.k.Now()
	next := make([][]records.CellKey, len(recs))
	for i, r := range recs {
		all := slices.Clone(cells[i])
		for j := 0; j < len(all); j++ { // all grows in the loop
			c := all[j]
			if c.Cell.Len() < geo.MaxLen || !p.hints.isSplit(c, now) {
				continue
			}
			if child, ok := cell.ChildOf(c.Cell, r); ok && !slices.Contains(all, cellAt(c, child)) {
				all = append(all, cellAt(c, child))
			}
		}
		next[i] = slices.DeleteFunc(all, func(c records.CellKey) bool { return slices.Contains(done[i], c) })
	}
	return next
}

// wants returns a predicate: whether a keeper should receive a record for a cell.
func (p *publisher) wants() func(peer.ID, records.CellKey, *records.Record) bool {
	now := p.k.Now()
	return func(id peer.ID, c records.CellKey, r *records.Record) bool { return p.hints.wants(id, c, r, now) }
}

func failAll(recs []*records.Record, err error) []records.Outcome {
	outcomes := make([]records.Outcome, len(recs))
	for i := range outcomes {
		outcomes[i].Err = err
	}
	return outcomes
}

// addKeepers looks up the keepers of new cells and adds them to sets.
func (p *publisher) addKeepers(ctx context.Context, targets [][]records.CellKey, sets map[records.CellKey]*keeperSet) error {
	var cells []records.CellKey
	for _, c := range slices.Concat(targets...) {
		if _, ok := sets[c]; !ok {
			sets[c] = nil
			cells = append(cells, c)
		}
	}
	found, err := p.k.closest.keepersOf(ctx, cells)
	for i, c := range cells {
		if err != nil {
			delete(sets, c)
			continue
		}
		sets[c] = found[i]
	}
	return err
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
	record int // index among the records of the Store
	wire   *pb.StoreItem

	err      error
	sequence uint64 // highest sequence of the record at the keeper
}

// route returns one batch for each keeper, sorted by peer id. A batch holds the records that
// the keeper wants, each with the cells to store it for.
func route(recs []*records.Record, targets [][]records.CellKey, sets map[records.CellKey]*keeperSet,
	wants func(peer.ID, records.CellKey, *records.Record) bool) []storeBatch {
	byKeeper := make(map[peer.ID]*storeBatch)
	for i, r := range recs {
		for _, c := range targets[i] {
			key := c.String()
			for _, id := range sets[c].peers {
				if !wants(id, c, r) {
					continue
				}
				b, ok := byKeeper[id]
				if !ok {
					b = &storeBatch{to: id}
					byKeeper[id] = b
				}
				b.add(i, r.Envelope(), key)
			}
		}
	}
	batches := make([]storeBatch, 0, len(byKeeper))
	for _, id := range slices.Sorted(maps.Keys(byKeeper)) {
		batches = append(batches, *byKeeper[id])
	}
	return batches
}

func (b *storeBatch) add(record int, envelope []byte, key string) {
	if n := len(b.items); n == 0 || b.items[n-1].record != record {
		b.items = append(b.items, storeItem{record: record, wire: &pb.StoreItem{Envelope: envelope}})
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
	const limit = MaxRequest - 128 // 128 bytes for the framing of the request, and the receiver of a FORWARD
	var messages [][]storeItem
	size, start := 0, 0
	for i, item := range items {
		n := protowire.SizeTag(1) + protowire.SizeBytes(proto.Size(item.wire))
		if i > start && (size+n > limit || i-start == MaxItems) {
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
// begins with the keepers after itself, so that not all begin with the same one. What went ahead is not sent again.
func (p *publisher) deliverAll(ctx context.Context, recs []*records.Record, round []storeBatch, ahead *aheadRound) {
	first, _ := slices.BinarySearchFunc(round, p.k.Self, func(b storeBatch, id peer.ID) int { return cmp.Compare(b.to, id) })
	batch := func(i int) *storeBatch { return &round[(first+i)%len(round)] }
	weights := make([]int, len(round))
	for i := range weights {
		weights[i] = len(batch(i).items)
	}
	for _, i := range weighed(ctx, deliveries, inFlight, weights, func(i int) {
		if b := batch(i); !ahead.take(b) {
			p.deliver(ctx, recs, b)
		}
	}) {
		fail(batch(i).items, fault.Wrap("keeper.Store", ctx.Err()))
	}
}

// weighed is bounded with a call for each weight. A call starts while it and those under way weigh at most so much together, or alone. It
// returns the calls that did not start before the end of ctx.
func weighed(ctx context.Context, width, most int, weights []int, do func(int)) (late []int) {
	room := semaphore.NewWeighted(int64(most))
	var mu sync.Mutex // guards late
	bounded(width, len(weights), func(i int) {
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
func (p *publisher) deliver(ctx context.Context, recs []*records.Record, b *storeBatch) {
	if b.to == p.k.Self {
		p.storeHere(recs, b.items)
		return
	}
	delivered := p.skipAcknowledged(recs, b)
	for _, message := range pack(b.items[delivered:]) {
		refused, err := p.send(ctx, b.to, message)
		if err != nil {
			b.silent = !refused && fault.KindOf(err) != fault.Unauthentic
			p.k.Logger.Debug("delivery of records to a keeper failed", "peer", b.to, "records", len(b.items)-delivered, "error", err)
			fail(b.items[delivered:], err)
			return
		}
		delivered += len(message)
		p.acknowledge(recs, b.to, message)
	}
	b.sent = true
}

// unlearn drops the lookups that led to peers which do not keep the cells. The repeated announcement looks again.
func (p *publisher) unlearn(round []storeBatch) {
	for _, b := range round {
		var refused []records.CellKey
		for _, item := range b.items {
			if fault.KindOf(item.err) != fault.Forbidden || fault.FieldOf(item.err) != "cells" {
				continue
			}
			if cells, err := cellsOf(item.wire.Cells, MaxItemCells); err == nil {
				refused = append(refused, cells...)
			}
		}
		if len(refused) > 0 {
			p.k.closest.mistaken(b.to, refused)
		}
	}
}

// skipAcknowledged moves the items that the keeper took a short time ago to the front, and returns
// their number.
func (p *publisher) skipAcknowledged(recs []*records.Record, b *storeBatch) int {
	now := p.k.Now()
	var taken, open []storeItem
	for _, item := range b.items {
		if r := recs[item.record]; r.Name().Provider == p.k.Self && p.acks.has(r, b.to, item.wire.Cells, now) {
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
func (p *publisher) acknowledge(recs []*records.Record, keeper peer.ID, items []storeItem) {
	now := p.k.Now()
	for _, item := range items {
		if r := recs[item.record]; item.err == nil && r.Name().Provider == p.k.Self {
			p.acks.add(r, keeper, item.wire.Cells, now)
		}
	}
}

// storeHere stores records for the cells that this peer keeps itself. A peer that is no keeper gets
// here only without contact to any keeper.
func (p *publisher) storeHere(recs []*records.Record, items []storeItem) {
	if !p.k.Router.Serving() && !p.k.sync.alone() {
		fail(items, fault.New("keeper.Store", fault.Unavailable, "no keeper was reached, and this peer, behind NAT or a leaf, keeps no records"))
		return
	}
	h := p.k.newStoreHandler(source{exempt: true})
	asked := make(map[records.CellKey]bool)
	for i := range items {
		item := &items[i]
		cells, err := cellsOf(item.wire.Cells, MaxItemCells)
		if err == nil {
			for _, c := range cells {
				asked[c] = true
			}
			item.sequence, err = h.store(recs[item.record], cells)
		}
		item.err = err
	}
	if err := p.hints.add(p.k.Self, h.finish(), func(c records.CellKey) bool { return asked[c] }, p.k.Now()); err != nil {
		p.k.Logger.Error("own split hint rejected: please report this defect", "error", err)
	}
}

// send delivers one message to a keeper and sets the results of the items. Refused reports an answer. The timeout is
// shorter for a keeper that failed recently.
func (p *publisher) send(ctx context.Context, to peer.ID, items []storeItem) (refused bool, err error) {
	timeout := p.k.Limits.Deliver
	if p.k.asker.stats.avoided(to, p.k.Now()) {
		timeout /= avoidedShare
	}
	ctx, end, err := p.k.begin(ctx, "deliver", timeout)
	if err != nil {
		return false, err
	}
	defer func() { end(err) }()
	req := &pb.StoreRequest{Items: make([]*pb.StoreItem, len(items))}
	for i := range items {
		req.Items[i] = items[i].wire
	}
	resp, refused, err := p.k.asker.call(ctx, to, &pb.Request{Op: &pb.Request_Store{Store: req}})
	if err == nil {
		err = p.readStoreResponse(to, items, resp.GetStore())
	}
	if err != nil && !refused {
		p.k.asker.observe(ctx, to, 0, err)
	}
	return refused, err
}

// readStoreResponse sets the results of the items and adds the split hints. It returns
// Unauthentic for a response that violates the protocol.
func (p *publisher) readStoreResponse(from peer.ID, items []storeItem, resp *pb.StoreResponse) error {
	if n := len(resp.GetResults()); n != len(items) {
		return breach("%d results for %d records", n, len(items))
	}
	asked := func(c records.CellKey) bool {
		return slices.ContainsFunc(items, func(item storeItem) bool { return slices.Contains(item.wire.Cells, c.String()) })
	}
	if err := p.hints.add(from, resp.GetSplits(), asked, p.k.Now()); err != nil {
		return err
	}
	for i, r := range resp.GetResults() {
		items[i].err, items[i].sequence = rpc.Restore("keeper.Store", r.GetRefusal()), r.GetSequence()
	}
	return nil
}

// tally returns the outcomes of n records from the results in the batches.
func tally(n int, batches []storeBatch) []records.Outcome {
	outcomes := make([]records.Outcome, n)
	newest := make([]uint64, n)
	for _, b := range batches {
		for _, item := range b.items {
			o := &outcomes[item.record]
			o.Stored.Of++
			switch {
			case item.err == nil:
				o.Stored.On++
			case fault.KindOf(item.err) == fault.Exists:
				newest[item.record] = max(newest[item.record], item.sequence)
			case o.Err == nil:
				o.Err = item.err
			}
		}
	}
	for i := range outcomes {
		switch o := &outcomes[i]; {
		case o.Stored.On > 0:
			o.Err = nil
		case newest[i] > 0:
			o.Err = newer(newest[i])
		}
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
