package ask

import (
	"context"
	"net/netip"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/route"
	"github.com/blackhole/blackhole/internal/discovery/wire"
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

// Findings exchanges measurements with other peers. It is safe for concurrent use.
type Findings struct {
	*wire.Env
	closest *route.Closest
	client  *wire.Client
	allow   func(wire.Source) error // takes a request from the quota of its sender
	pool    *witness.Pool           // measurements of other peers
}

// NewFindings returns an exchange. Allow takes a request from the quota of its sender.
func NewFindings(closest *route.Closest, c *wire.Client, allow func(wire.Source) error) *Findings {
	return &Findings{Env: c.Env, closest: closest, client: c, allow: allow, pool: witness.NewPool()}
}

// Exchange exchanges measurements with the witness.Quorum keepers nearest to the first cell of a plan: all peers
// with that question meet there. It gives them own, the signed findings of this peer, and returns the statements
// of others about the providers. own and providers may be empty. Keepers without an answer are left out.
func (f *Findings) Exchange(ctx context.Context, p *query.Plan, providers []peer.ID, own []byte) []Delivered {
	ctx, end, err := f.Begin(ctx, "findings", findingsTimeout)
	if err != nil {
		return nil
	}
	defer func() { end(err) }()
	cell := p.Cells(coverCells)[0]
	set, err := f.closest.Keepers(ctx, cell)
	if err != nil {
		return nil
	}
	req := &pb.Request{Op: &pb.Request_Findings{Findings: &pb.FindingsRequest{Own: own}}}
	for _, id := range providers[:min(len(providers), witness.MaxFindings)] {
		req.GetFindings().Providers = append(req.GetFindings().Providers, []byte(id))
	}
	ids := route.Nearest(route.KeyOf(cell), set.Peers, witness.Quorum)
	all := make([][]Delivered, len(ids))
	wire.Bounded(len(ids), len(ids), func(i int) { all[i] = f.exchange(ctx, ids[i], req) })
	var out []Delivered
	for _, list := range all {
		out = append(out, list...)
	}
	return out
}

// exchange exchanges measurements with one keeper, which may be this peer.
func (f *Findings) exchange(ctx context.Context, id peer.ID, req *pb.Request) []Delivered {
	var resp *pb.FindingsResponse
	if id == f.Self {
		resp, _ = f.Serve(wire.Source{Peer: f.Self, Exempt: true}, req.GetFindings())
	} else if answer, _, err := f.client.Call(ctx, id, req); err == nil {
		resp = answer.GetFindings()
	}
	via, ok := f.client.PrefixOf(id)
	if !ok {
		via = netip.Prefix{}
	}
	var out []Delivered
	for _, data := range resp.GetStatements() {
		if st, err := witness.Open(f.Network, data, f.Now()); err == nil && st.By != f.Self {
			out = append(out, Delivered{st, via})
		}
	}
	return out
}

// Serve answers a FINDINGS request. Only a measurer itself can deliver a statement, so the pool knows its network.
func (f *Findings) Serve(from wire.Source, req *pb.FindingsRequest) (*pb.FindingsResponse, error) {
	now := f.Now()
	if len(req.GetOwn()) > 0 {
		if f.allow(from) != nil {
			return nil, fault.New("", fault.LimitReached, "too many requests from network %s: try again later", from.Prefix)
		}
		st, err := witness.Open(f.Network, req.GetOwn(), now)
		if err != nil {
			return nil, err
		}
		if st.By != from.Peer {
			return nil, fault.New("", fault.Unauthentic, "the statement of %s must come from that peer", st.By)
		}
		prefix := from.Prefix
		if from.Exempt {
			prefix = netip.Prefix{}
		}
		f.pool.Put(st, prefix, now)
	}
	var ids []peer.ID
	for _, b := range req.GetProviders() {
		ids = append(ids, peer.ID(b))
	}
	return &pb.FindingsResponse{Statements: f.pool.About(ids, from.Peer, now)}, nil
}
