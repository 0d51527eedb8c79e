package keeper

import (
	"context"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// A publisher that gets no answer from a keeper asks another keeper of the same records to forward them, before the
// announcement ends: a keeper that lacks a change and does not know it would answer as if it had all records. Dynamo
// (DeCandia et al., 2007) calls a related method hinted handoff; here nothing is kept for later, because comparisons
// repair the rest.
const (
	forwarders   = 2               // keepers asked to forward one batch
	forwardFor   = 2 * time.Second // the keeper is silent, and probably dead
	maxForwards  = 8               // requests to forward served at a time
	peerForwards = 2               // for one peer
	mostMissed   = 8               // silent keepers of one round to forward for; with more, this peer's own network fails
)

// forward asks other keepers to forward the batches of silent keepers, and sets the results of the items.
func (p *publisher) forward(ctx context.Context, recs []*records.Record, round []storeBatch) {
	var missed []*storeBatch
	for i := range round {
		if round[i].silent {
			missed = append(missed, &round[i])
		}
	}
	if len(missed) > mostMissed {
		return
	}
	bounded(mostMissed, len(missed), func(i int) {
		b := missed[i]
		able := forwardersOf(b, round)
		copies := make([]storeBatch, len(able))
		bounded(forwarders, len(able), func(i int) {
			copies[i] = storeBatch{to: b.to, items: slices.Clone(b.items)}
			if err := p.forwardBy(ctx, able[i], recs, &copies[i]); err != nil {
				p.k.Logger.Debug("a keeper did not forward records", "peer", able[i], "to", b.to, "error", err)
			}
		})
		for _, c := range copies {
			b.adopt(c.items)
		}
	})
}

// adopt takes over the successes among other results of the same items.
func (b *storeBatch) adopt(items []storeItem) {
	for i, item := range items {
		if b.items[i].err != nil && item.err == nil {
			b.items[i] = item
		}
	}
}

// forwardersOf returns the keepers nearest to the receiver of a batch that took all its records.
func forwardersOf(b *storeBatch, round []storeBatch) []peer.ID {
	var able []peer.ID
	for i := range round {
		if other := &round[i]; other.sent && other.tookAll(b) {
			able = append(able, other.to)
		}
	}
	return nearest(string(b.to), able, forwarders)
}

// tookAll reports whether the keeper of a batch holds all records of another batch. Items are in the order of records.
func (b *storeBatch) tookAll(o *storeBatch) bool {
	taken := make(map[int]bool, len(b.items))
	for _, item := range b.items {
		taken[item.record] = item.err == nil
	}
	return !slices.ContainsFunc(o.items, func(item storeItem) bool { return item.err != nil && !taken[item.record] })
}

// forwardBy asks one keeper to forward the failed items of a batch.
func (p *publisher) forwardBy(ctx context.Context, id peer.ID, recs []*records.Record, b *storeBatch) (err error) {
	ctx, end, err := p.k.begin(ctx, "forward", forwardFor)
	if err != nil {
		return err
	}
	defer func() { end(err) }()
	delivered := slices.IndexFunc(b.items, func(item storeItem) bool { return item.err != nil })
	for _, message := range pack(b.items[delivered:]) {
		req := &pb.ForwardRequest{To: []byte(b.to)}
		for _, item := range message {
			req.Items = append(req.Items, item.wire)
		}
		resp, _, err := p.k.asker.call(ctx, id, &pb.Request{Op: &pb.Request_Forward{Forward: req}})
		if err != nil {
			return err
		}
		results := resp.GetForward().GetResults()
		if len(results) != len(message) {
			return breach("%d results for %d records", len(results), len(message))
		}
		for i, r := range results {
			message[i].err, message[i].sequence = rpc.Restore("keeper.Store", r.GetRefusal()), r.GetSequence()
		}
		p.acknowledge(recs, b.to, message)
	}
	return nil
}

// forward sends records that this peer holds to another keeper, which their publisher cannot reach. Records come from
// their publisher, so they count against its quota here, and against this peer's at the other keeper. Errors: Forbidden for
// a peer outside the routing table, LimitReached, and the errors of the call.
func (s *server) forward(ctx context.Context, from source, req *pb.ForwardRequest) (*pb.ForwardResponse, error) {
	to := peer.ID(req.GetTo())
	if to == from.peer || !slices.Contains(s.k.sync.table().ids(), to) {
		return nil, fault.New("", fault.Forbidden, "this peer forwards records only to peers in its routing table")
	}
	if !s.forwards.enter(from.peer) {
		return nil, fault.New("", fault.LimitReached, "this peer forwards for too many others: try again later")
	}
	defer s.forwards.leave(from.peer)
	if err := s.holdsAll(ctx, from, req.GetItems()); err != nil {
		return nil, err
	}
	ctx, end, err := s.k.begin(ctx, "forward", forwardFor)
	if err != nil {
		return nil, err
	}
	resp, _, err := s.k.asker.call(ctx, to, &pb.Request{Op: &pb.Request_Store{Store: &pb.StoreRequest{Items: req.GetItems()}}})
	end(err)
	if err != nil {
		return nil, fault.As("", fault.Unavailable, err)
	}
	return &pb.ForwardResponse{Results: resp.GetStore().GetResults()}, nil
}

// holdsAll waits for a turn, and checks all items: each costs the processor a signature.
func (s *server) holdsAll(ctx context.Context, from source, items []*pb.StoreItem) error {
	if s.turns.enter(ctx, from) != nil {
		return errBusy()
	}
	defer s.turns.leave()
	for _, item := range items {
		if err := s.holds(from, item); err != nil {
			return err
		}
	}
	return nil
}

// holds checks that this peer holds a record in the version of an item.
func (s *server) holds(from source, item *pb.StoreItem) error {
	now := s.k.Now()
	if !s.quotas.take(from, now) {
		return fault.New("", fault.LimitReached, "too many records from network %s: try again later", from.prefix)
	}
	r, err := s.k.Verifier.Open(item.GetEnvelope(), now)
	if err != nil {
		return err
	}
	if held, ok := s.k.Index.Latest(r.Name()); !ok || held.Digest() != r.Digest() {
		return fault.New("", fault.NotFound, "this peer does not hold this version of the record %s", r.Name())
	}
	return nil
}
