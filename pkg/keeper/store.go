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

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// Store hands records to the keepers of their cells, this peer included where it is one,
// and gives an outcome for each record, in order. Stored.Of counts the keepers asked,
// Stored.On those that now hold the record for all of the cells they were asked to; a
// keeper that knows a fresher version is not one of them. Where a lookup did not find all
// the keepers, Of says that at least one more should hold it.
//
// Err is nil when at least one keeper holds the record, and otherwise Exists with the
// highest sequence known as its value, or what the first keeper said.
func (k *Keeper) Store(ctx context.Context, recs []*records.Record) []records.Outcome {
	const op = "keeper.Store"
	ctx, end, err := k.begin(ctx, "store", storeMost)
	if err != nil {
		return failAll(recs, err)
	}
	defer func() { end(err) }()
	places, err := k.placesOf(ctx, recs)
	if err != nil {
		return failAll(recs, fault.Wrap(op, err))
	}
	shipments := route(recs, places)
	verdicts := make([][]verdict, len(shipments))
	bounded(deliveries, len(shipments), func(i int) {
		verdicts[i] = k.deliver(ctx, recs, shipments[i])
	})
	outcomes, best := tally(len(recs), shipments, verdicts), error(nil)
	for i := range outcomes {
		if doubtful(recs[i], places) {
			o := &outcomes[i].Stored
			o.Of = max(o.Of, o.On+1)
		}
		best = cmp.Or(best, outcomes[i].Err)
	}
	err = best
	return outcomes
}

func failAll(recs []*records.Record, err error) []records.Outcome {
	outcomes := make([]records.Outcome, len(recs))
	for i := range outcomes {
		outcomes[i].Err = err
	}
	return outcomes
}

// placesOf gives the keepers of all cells of the records.
func (k *Keeper) placesOf(ctx context.Context, recs []*records.Record) (map[records.CellKey]*keeperSet, error) {
	places := make(map[records.CellKey]*keeperSet)
	var cells []records.CellKey
	for _, r := range recs {
		for _, c := range r.Cells() {
			if _, ok := places[c]; !ok {
				places[c] = nil
				cells = append(cells, c)
			}
		}
	}
	sets, err := k.keepersOf(ctx, cells)
	if err != nil {
		return nil, err
	}
	for i, c := range cells {
		places[c] = sets[i]
	}
	return places, nil
}

// doubtful reports whether the lookup of one of the record's cells did not settle who keeps it.
func doubtful(r *records.Record, places map[records.CellKey]*keeperSet) bool {
	return slices.ContainsFunc(r.Cells(), func(c records.CellKey) bool { return places[c].doubt != nil })
}

// shipment is all that one keeper is to be given.
type shipment struct {
	to      peer.ID
	parcels []parcel // by record
}

// parcel is one record and the cells that the keeper is to hold it for.
type parcel struct {
	record int // position among the records stored
	item   *pb.StoreItem
}

// route turns records and the keepers of their cells into one shipment for each keeper, by id.
func route(recs []*records.Record, places map[records.CellKey]*keeperSet) []shipment {
	byKeeper := make(map[peer.ID]*shipment)
	for i, r := range recs {
		for _, c := range r.Cells() {
			key := c.String()
			for _, id := range places[c].peers {
				s, ok := byKeeper[id]
				if !ok {
					s = &shipment{to: id}
					byKeeper[id] = s
				}
				s.add(i, r.Envelope(), key)
			}
		}
	}
	shipments := make([]shipment, 0, len(byKeeper))
	for _, id := range slices.Sorted(maps.Keys(byKeeper)) {
		shipments = append(shipments, *byKeeper[id])
	}
	return shipments
}

func (s *shipment) add(record int, envelope []byte, cell string) {
	if n := len(s.parcels); n == 0 || s.parcels[n-1].record != record {
		s.parcels = append(s.parcels, parcel{record: record, item: &pb.StoreItem{Envelope: envelope}})
	}
	item := s.parcels[len(s.parcels)-1].item
	item.Cells = append(item.Cells, cell)
}

// pack cuts parcels into messages within the protocol's bounds.
func pack(parcels []parcel) [][]parcel {
	const most = MaxRequest - 64 // the rest is the request's own framing
	var messages [][]parcel
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
func (k *Keeper) deliver(ctx context.Context, recs []*records.Record, s shipment) []verdict {
	verdicts := make([]verdict, 0, len(s.parcels))
	if s.to == k.Self {
		for _, p := range s.parcels {
			sequence, err := k.keep(recs[p.record])
			verdicts = append(verdicts, verdict{err, sequence})
		}
		return verdicts
	}
	for _, message := range pack(s.parcels) {
		some, err := k.send(ctx, s.to, message)
		if err != nil {
			k.Logger.Debug("records not delivered", "peer", s.to, "records", len(s.parcels)-len(verdicts), "error", err)
			for len(verdicts) < len(s.parcels) {
				verdicts = append(verdicts, verdict{err: err})
			}
			return verdicts
		}
		verdicts = append(verdicts, some...)
	}
	return verdicts
}

// send gives a keeper one message. One that failed lately is not waited for as long.
func (k *Keeper) send(ctx context.Context, to peer.ID, parcels []parcel) (_ []verdict, err error) {
	allowed := k.Limits.Deliver
	if k.peers.avoided(to, k.Now()) {
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
	resp, refused, err := k.pool.call(ctx, to, &pb.Request{Op: &pb.Request_Store{Store: req}})
	if err != nil {
		if !refused {
			k.judged(ctx, to, 0, err)
		}
		return nil, err
	}
	results := resp.GetStore().GetResults()
	if len(results) != len(parcels) {
		err = nonsense("%d results for %d records", len(results), len(parcels))
		k.judged(ctx, to, 0, err)
		return nil, err
	}
	verdicts := make([]verdict, len(results))
	for i, r := range results {
		verdicts[i] = verdict{faultOf("keeper.Store", r.GetRefusal()), r.GetSequence()}
	}
	return verdicts, nil
}

// tally counts the verdicts on each of n records.
func tally(n int, shipments []shipment, verdicts [][]verdict) []records.Outcome {
	outcomes := make([]records.Outcome, n)
	newest := make([]uint64, n)
	for i, s := range shipments {
		for j, p := range s.parcels {
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
