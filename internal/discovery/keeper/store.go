package keeper

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// Store hands records to the keepers of their cells, this peer included where it is one,
// and gives an outcome for each record, in order. Stored.Of counts the keepers asked,
// Stored.On those that now hold the record for all of the cells they were asked to, or have
// divided a cell and taken note of it; a keeper that knows a fresher version is not one of
// them. A keeper that said lately that it has divided a cell is asked only where it wants
// the record, and where a cell of geo.MaxLen is divided the record goes to the keepers of its
// children too. Where a lookup did not find all the keepers, Of says that at least one more
// should hold it.
//
// Err is nil when at least one keeper holds the record, and otherwise Exists with the
// highest sequence known as its value, or what the first keeper said.
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
	outcomes := k.storeAt(ctx, recs, targets)
	for _, o := range outcomes {
		err = cmp.Or(err, o.Err)
	}
	return outcomes
}

// storeAt hands each record to the keepers of its targets and of their children, as far as
// those are known to be divided or turn out to be.
func (k *Keeper) storeAt(ctx context.Context, recs []*records.Record, targets [][]records.CellKey) []records.Outcome {
	places := make(map[records.CellKey]*keeperSet)
	var shipments []storeBatch
	var verdicts [][]verdict
	done := make([][]records.CellKey, len(recs))
	targets = k.nextCells(recs, targets, done)
	for depth := geo.MaxLen; depth <= geo.DeepLen && slices.ContainsFunc(targets, func(c []records.CellKey) bool { return len(c) > 0 }); depth++ {
		if err := k.placeAll(ctx, targets, places); err != nil {
			if shipments == nil {
				return failAll(recs, fault.Wrap("keeper.Store", err))
			}
			break
		}
		round := route(recs, targets, places, k.wants())
		heard := make([][]verdict, len(round))
		bounded(deliveries, len(round), func(i int) { heard[i] = k.deliver(ctx, recs, round[i]) })
		shipments, verdicts = append(shipments, round...), append(verdicts, heard...)
		for i := range done {
			done[i] = append(done[i], targets[i]...)
		}
		targets = k.nextCells(recs, done, done)
	}
	outcomes := tally(len(recs), shipments, verdicts)
	for i := range outcomes {
		if uncertainAny(done[i], places) {
			o := &outcomes[i].Stored
			o.Of = max(o.Of, o.On+1)
		}
	}
	return outcomes
}

// nextCells gives for each record the cells, and the children that it lies in of those of them
// that publishers must descend into, but for what is done.
func (k *Keeper) nextCells(recs []*records.Record, cells, done [][]records.CellKey) [][]records.CellKey {
	now := k.Now()
	deeper := make([][]records.CellKey, len(recs))
	for i, r := range recs {
		all := slices.Clone(cells[i])
		for j := 0; j < len(all); j++ { // which grows
			c := all[j]
			if c.Cell.Len() < geo.MaxLen || !k.hints.isSplit(c, now) {
				continue
			}
			if child, ok := cell.ChildOf(c.Cell, r); ok {
				below := records.CellKey{Type: c.Type, Subtype: c.Subtype, Cell: child}
				if !slices.Contains(all, below) {
					all = append(all, below)
				}
			}
		}
		deeper[i] = slices.DeleteFunc(all, func(c records.CellKey) bool { return slices.Contains(done[i], c) })
	}
	return deeper
}

// wants tells which keepers are to be brought a record for a cell.
func (k *Keeper) wants() func(peer.ID, records.CellKey, *records.Record) bool {
	now := k.Now()
	return func(id peer.ID, c records.CellKey, r *records.Record) bool { return k.hints.wants(id, c, r, now) }
}

func failAll(recs []*records.Record, err error) []records.Outcome {
	outcomes := make([]records.Outcome, len(recs))
	for i := range outcomes {
		outcomes[i].Err = err
	}
	return outcomes
}

// placeAll adds the keepers of cells to places.
func (k *Keeper) placeAll(ctx context.Context, targets [][]records.CellKey, places map[records.CellKey]*keeperSet) error {
	var cells []records.CellKey
	for _, some := range targets {
		for _, c := range some {
			if _, ok := places[c]; !ok {
				places[c] = nil
				cells = append(cells, c)
			}
		}
	}
	sets, err := k.keepersOf(ctx, cells)
	for i, c := range cells {
		if err != nil {
			delete(places, c)
			continue
		}
		places[c] = sets[i]
	}
	return err
}

// uncertainAny reports whether the lookup of one of the cells did not settle who keeps it.
func uncertainAny(cells []records.CellKey, places map[records.CellKey]*keeperSet) bool {
	return slices.ContainsFunc(cells, func(c records.CellKey) bool { return places[c].uncertain != nil })
}

// storeBatch is all that one keeper is to be given.
type storeBatch struct {
	to    peer.ID
	items []storeItem // keeper record
}

// storeItem is one record and the cells that the keeper is to hold it for.
type storeItem struct {
	record int // position among the records stored
	item   *pb.StoreItem
}

// route turns records, the cells they go to, and the keepers of these that want them into
// one shipment for each keeper, by id.
func route(recs []*records.Record, targets [][]records.CellKey, places map[records.CellKey]*keeperSet,
	wants func(peer.ID, records.CellKey, *records.Record) bool) []storeBatch {
	byKeeper := make(map[peer.ID]*storeBatch)
	for i, r := range recs {
		for _, c := range targets[i] {
			key := c.String()
			for _, id := range places[c].peers {
				if !wants(id, c, r) {
					continue
				}
				s, ok := byKeeper[id]
				if !ok {
					s = &storeBatch{to: id}
					byKeeper[id] = s
				}
				s.add(i, r.Envelope(), key)
			}
		}
	}
	shipments := make([]storeBatch, 0, len(byKeeper))
	for _, id := range slices.Sorted(maps.Keys(byKeeper)) {
		shipments = append(shipments, *byKeeper[id])
	}
	return shipments
}

func (s *storeBatch) add(record int, envelope []byte, key string) {
	if n := len(s.items); n == 0 || s.items[n-1].record != record {
		s.items = append(s.items, storeItem{record: record, item: &pb.StoreItem{Envelope: envelope}})
	}
	item := s.items[len(s.items)-1].item
	item.Cells = append(item.Cells, key)
}

// pack cuts parcels into messages within the protocol's bounds.
func pack(parcels []storeItem) [][]storeItem {
	const most = MaxRequest - 64 // the rest is the request's own framing
	var messages [][]storeItem
	size, start := 0, 0
	for i, p := range parcels {
		n := protowire.SizeTag(1) + protowire.SizeBytes(proto.Size(p.item))
		if i > start && (size+n > most || i-start == MaxItems) {
			messages = append(messages, parcels[start:i])
			size, start = 0, i
		}
		size += n
	}
	if start < len(parcels) {
		messages = append(messages, parcels[start:])
	}
	return messages
}

// verdict is what a keeper made of one record.
type verdict struct {
	err      error
	sequence uint64 // highest that the keeper knows of the record
}

// deliver gives a keeper its shipment, message by message, and returns a verdict for each
// parcel. After a message that fails the rest is not tried.
func (k *Keeper) deliver(ctx context.Context, recs []*records.Record, s storeBatch) []verdict {
	verdicts := make([]verdict, 0, len(s.items))
	if s.to == k.Self {
		return k.storeHere(recs, s)
	}
	for _, message := range pack(s.items) {
		some, err := k.send(ctx, s.to, message)
		if err != nil {
			k.Logger.Debug("records not delivered", "peer", s.to, "records", len(s.items)-len(verdicts), "error", err)
			for len(verdicts) < len(s.items) {
				verdicts = append(verdicts, verdict{err: err})
			}
			return verdicts
		}
		verdicts = append(verdicts, some...)
	}
	return verdicts
}

// storeHere keeps records for this peer's own cells.
func (k *Keeper) storeHere(recs []*records.Record, s storeBatch) []verdict {
	in := k.newStoreHandler(source{exempt: true})
	verdicts := make([]verdict, len(s.items))
	asked := make(map[records.CellKey]bool)
	for i, p := range s.items {
		cells, err := cellsOf(p.item.Cells, MaxItemCells)
		if err == nil {
			for _, c := range cells {
				asked[c] = true
			}
			verdicts[i].sequence, err = in.store(recs[p.record], cells)
		}
		verdicts[i].err = err
	}
	if err := k.hints.add(k.Self, in.finish(), func(c records.CellKey) bool { return asked[c] }, k.Now()); err != nil {
		k.Logger.Error("this peer does not understand itself", "error", err)
	}
	return verdicts
}

// send gives a keeper one message. One that failed lately is not waited for as long.
func (k *Keeper) send(ctx context.Context, to peer.ID, parcels []storeItem) (_ []verdict, err error) {
	allowed := k.Limits.Deliver
	if k.stats.avoided(to, k.Now()) {
		allowed /= avoidedShare
	}
	ctx, end, err := k.begin(ctx, "deliver", allowed)
	if err != nil {
		return nil, err
	}
	defer func() { end(err) }()
	req := &pb.StoreRequest{Items: make([]*pb.StoreItem, len(parcels))}
	for i, p := range parcels {
		req.Items[i] = p.item
	}
	resp, refused, err := k.call(ctx, to, &pb.Request{Op: &pb.Request_Store{Store: req}})
	if err != nil {
		if !refused {
			k.observe(ctx, to, 0, err)
		}
		return nil, err
	}
	results := resp.GetStore().GetResults()
	if len(results) != len(parcels) {
		err = breach("%d results for %d records", len(results), len(parcels))
		k.observe(ctx, to, 0, err)
		return nil, err
	}
	asked := func(c records.CellKey) bool {
		return slices.ContainsFunc(parcels, func(p storeItem) bool { return slices.Contains(p.item.Cells, c.String()) })
	}
	if err = k.hints.add(to, resp.GetStore().GetSplits(), asked, k.Now()); err != nil {
		k.observe(ctx, to, 0, err)
		return nil, err
	}
	verdicts := make([]verdict, len(results))
	for i, r := range results {
		verdicts[i] = verdict{faultOf("keeper.Store", r.GetRefusal()), r.GetSequence()}
	}
	return verdicts, nil
}

// tally counts the verdicts on each of n records.
func tally(n int, shipments []storeBatch, verdicts [][]verdict) []records.Outcome {
	outcomes := make([]records.Outcome, n)
	newest := make([]uint64, n)
	for i, s := range shipments {
		for j, p := range s.items {
			o, v := &outcomes[p.record], verdicts[i][j]
			o.Stored.Of++
			switch {
			case v.err == nil:
				o.Stored.On++
			case fault.KindOf(v.err) == fault.Exists:
				newest[p.record] = max(newest[p.record], v.sequence)
			case o.Err == nil:
				o.Err = v.err
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

// newer is the outcome of a record whose keepers know a later version.
func newer(sequence uint64) error {
	return &fault.Error{
		Op: "keeper.Store", Kind: fault.Exists, Field: "sequence", Value: sequence,
		Err: fmt.Errorf("keepers know version %d", sequence),
	}
}
