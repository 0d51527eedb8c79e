package keep

import (
	"context"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/pkg/fault"
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
func (p *Publisher) forward(ctx context.Context, round []storeBatch) {
	var missed []*storeBatch
	for i := range round {
		if round[i].silent {
			missed = append(missed, &round[i])
		}
	}
	if len(missed) > mostMissed {
		return
	}
	protocol.Bounded(mostMissed, len(missed), func(i int) {
		b := missed[i]
		able := forwardersOf(b, round)
		copies := make([]storeBatch, len(able))
		protocol.Bounded(forwarders, len(able), func(i int) {
			copies[i] = storeBatch{to: b.to, items: slices.Clone(b.items)}
			if err := p.forwardBy(ctx, able[i], &copies[i]); err != nil {
				p.Logger.Debug("a keeper did not forward records", "peer", able[i], "to", b.to, "error", err)
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
	return Nearest(string(b.to), able, forwarders)
}

// tookAll reports whether the keeper of a batch holds all records of another batch. Items are in the order of records.
func (b *storeBatch) tookAll(o *storeBatch) bool {
	taken := make(map[*send]bool, len(b.items))
	for _, item := range b.items {
		taken[item.of] = item.err == nil && !item.full
	}
	return !slices.ContainsFunc(o.items, func(item storeItem) bool { return item.err != nil && !taken[item.of] })
}

// forwardBy asks one keeper to forward the failed items of a batch.
func (p *Publisher) forwardBy(ctx context.Context, id peer.ID, b *storeBatch) (err error) {
	ctx, end, err := p.Begin(ctx, "forward", forwardFor)
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
		resp, _, err := p.client.Call(ctx, id, &pb.Request{Op: &pb.Request_Forward{Forward: req}})
		if err != nil {
			return err
		}
		if err := readResults(message, resp.GetForward().GetResults()); err != nil {
			return err
		}
		if err := p.noteFull(b.to, message, resp.GetForward().GetFull()); err != nil {
			return err
		}
		p.acknowledge(b.to, message)
	}
	return nil
}

// ServeForward sends records that this peer holds to another keeper, which their publisher cannot reach. Records come from
// their publisher, so they count against its quota here, and against this peer's at the other keeper. The request waits for the other
// peer most of its time; turn runs the part that needs the processor. Errors: Forbidden for
// a peer outside the routing table, LimitReached, and the errors of the call.
func (s *Store) ServeForward(ctx context.Context, from protocol.Source, req *pb.ForwardRequest, turn func(func() error) error) (*pb.ForwardResponse, error) {
	to := peer.ID(req.GetTo())
	if to == from.Peer || !slices.Contains(s.authority.Table().Ids(), to) {
		return nil, fault.New("", fault.Forbidden, "this peer forwards records only to peers in its routing table")
	}
	if !s.forwards.Enter(from.Peer) {
		return nil, fault.New("", fault.LimitReached, "this peer forwards for too many others: try again later")
	}
	defer s.forwards.Leave(from.Peer)
	if err := turn(func() error { return s.holdsAll(from, req.GetItems()) }); err != nil {
		return nil, err
	}
	ctx, end, err := s.Begin(ctx, "forward", forwardFor)
	if err != nil {
		return nil, err
	}
	resp, _, err := s.client.Call(ctx, to, &pb.Request{Op: &pb.Request_Store{Store: &pb.StoreRequest{Items: req.GetItems()}}})
	end(err)
	if err != nil {
		return nil, fault.As("", fault.Unavailable, err)
	}
	return &pb.ForwardResponse{Results: resp.GetStore().GetResults(), Full: resp.GetStore().GetFull()}, nil
}

// holdsAll checks that this peer holds the records of all items in their versions: each costs the processor a signature.
func (s *Store) holdsAll(from protocol.Source, items []*pb.StoreItem) error {
	for _, item := range items {
		now := s.Now()
		if err := s.quotas.take(from, now); err != nil {
			return err
		}
		r, err := s.Verifier.Open(item.GetEnvelope(), now)
		if err != nil {
			return err
		}
		if held, ok := s.Index.Latest(r.Name()); !ok || held.Digest() != r.Digest() {
			return fault.New("", fault.NotFound, "this peer does not hold this version of the record %s", r.Name())
		}
	}
	return nil
}
