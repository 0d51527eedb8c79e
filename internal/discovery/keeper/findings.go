package keeper

import (
	"context"
	"net/netip"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/witness"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

const findingsTimeout = 3 * time.Second // of an exchange with all keepers

// Delivered is a statement with the network of the keeper that delivered it; zero if that keeper runs on this
// machine or its address is unknown.
type Delivered struct {
	Statement witness.Statement
	Via       netip.Prefix
}

// Findings exchanges measurements with the witness.Quorum keepers nearest to the first cell of a plan: all peers
// with that question meet there. It gives them own, the signed findings of this peer, and returns the statements
// of others about the providers. own and providers may be empty. Keepers without an answer are left out.
func (k *Keeper) Findings(ctx context.Context, p *query.Plan, providers []peer.ID, own []byte) []Delivered {
	ctx, end, err := k.Begin(ctx, "findings", findingsTimeout)
	if err != nil {
		return nil
	}
	defer func() { end(err) }()
	cell := p.Cells(coverCells)[0]
	set, err := k.closest.keepers(ctx, cell)
	if err != nil {
		return nil
	}
	req := &pb.Request{Op: &pb.Request_Findings{Findings: &pb.FindingsRequest{Own: own}}}
	for _, id := range providers[:min(len(providers), witness.MaxFindings)] {
		req.GetFindings().Providers = append(req.GetFindings().Providers, []byte(id))
	}
	ids := nearest(routingKey(cell), set.peers, witness.Quorum)
	all := make([][]Delivered, len(ids))
	bounded(len(ids), len(ids), func(i int) { all[i] = k.exchangeFindings(ctx, ids[i], req) })
	var out []Delivered
	for _, list := range all {
		out = append(out, list...)
	}
	return out
}

// exchangeFindings exchanges measurements with one keeper, which may be this peer.
func (k *Keeper) exchangeFindings(ctx context.Context, id peer.ID, req *pb.Request) []Delivered {
	var resp *pb.FindingsResponse
	if id == k.Self {
		resp, _ = k.server.findings(source{peer: k.Self, exempt: true}, req.GetFindings())
	} else if answer, _, err := k.client.call(ctx, id, req); err == nil {
		resp = answer.GetFindings()
	}
	via, ok := k.client.prefixOf(id)
	if !ok {
		via = netip.Prefix{}
	}
	var out []Delivered
	for _, data := range resp.GetStatements() {
		if st, err := witness.Open(k.Network, data, k.Now()); err == nil && st.By != k.Self {
			out = append(out, Delivered{st, via})
		}
	}
	return out
}

// findings answers a FINDINGS request. Only a measurer itself can deliver a statement, so the pool knows its network.
func (s *server) findings(from source, req *pb.FindingsRequest) (*pb.FindingsResponse, error) {
	now := s.Now()
	if len(req.GetOwn()) > 0 {
		if s.store.quotas.take(from, now) != nil {
			return nil, fault.New("", fault.LimitReached, "too many requests from network %s: try again later", from.prefix)
		}
		st, err := witness.Open(s.Network, req.GetOwn(), now)
		if err != nil {
			return nil, err
		}
		if st.By != from.peer {
			return nil, fault.New("", fault.Unauthentic, "the statement of %s must come from that peer", st.By)
		}
		prefix := from.prefix
		if from.exempt {
			prefix = netip.Prefix{}
		}
		s.witnesses.Put(st, prefix, now)
	}
	var ids []peer.ID
	for _, b := range req.GetProviders() {
		ids = append(ids, peer.ID(b))
	}
	return &pb.FindingsResponse{Statements: s.witnesses.About(ids, from.peer, now)}, nil
}
