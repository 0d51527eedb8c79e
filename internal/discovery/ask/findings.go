package ask

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

const (
	findingsTimeout = 3 * time.Second  // of an exchange with all keepers
	tellTimeout     = 10 * time.Second // of Tell
	tellWidth       = 32               // peers told at once
)

// Delivered is a statement with the network of its measurer, which counts if the measurer itself delivered it. From is zero if another
// peer did, or if the measurer runs on this machine or its address is unknown.
type Delivered struct {
	Statement protocol.Statement
	From      netip.Prefix
}

// Findings exchanges measurements with other peers. It is safe for concurrent use.
type Findings struct {
	*protocol.Life
	FindingsConfig
	closest *keep.Closest
	client  *protocol.Client
	allow   func(protocol.Source) error // takes a request from the quota of its sender
	pool    *Pool                       // measurements of other peers
}

// FindingsConfig is what a Findings uses beside other rooms. See protocol.Config for Heard and Asked.
type FindingsConfig struct {
	Network network.Name
	Router  protocol.Router
	Heard   func(st protocol.Statement, from netip.Prefix)
	Asked   func(records.Name, peer.ID)
}

// NewFindings returns an exchange. Allow takes a request from the quota of its sender.
func NewFindings(closest *keep.Closest, c *protocol.Client, allow func(protocol.Source) error, config FindingsConfig) *Findings {
	return &Findings{Life: c.Life, FindingsConfig: config, closest: closest, client: c, allow: allow, pool: NewPool(c.Self)}
}

// Witnesses is the number of peers that check a provider.
const Witnesses = 5

// Witness exchanges findings about a provider's peer, which has the empty id, and about the endpoints of its offers
// with its witnesses: the peers nearest to its cell. It gives them own and returns the statements of others. own and
// ids may be empty.
func (f *Findings) Witness(ctx context.Context, provider peer.ID, ids []string, own []byte) []Delivered {
	ctx, end, err := f.Begin(ctx, "findings", findingsTimeout)
	if err != nil {
		return nil
	}
	defer func() { end(err) }()
	cell := records.ProviderCell(provider)
	set, err := f.closest.Keepers(ctx, cell)
	if err != nil {
		return nil
	}
	req := &pb.Request{Op: &pb.Request_Findings{Findings: &pb.FindingsRequest{Own: own, Records: ids[:min(len(ids), protocol.MaxFindings)], Of: []byte(provider)}}}
	others := slices.DeleteFunc(slices.Clone(set.Peers), func(id peer.ID) bool { return id == provider })
	return f.exchangeAll(ctx, keep.Nearest(keep.KeyOf(cell), others, Witnesses), req)
}

// Tell gives own to some peers, of which one may be this peer itself.
func (f *Findings) Tell(ctx context.Context, ids []peer.ID, own []byte) {
	ctx, end, err := f.Begin(ctx, "findings", tellTimeout)
	if err != nil {
		return
	}
	defer func() { end(err) }()
	req := &pb.Request{Op: &pb.Request_Findings{Findings: &pb.FindingsRequest{Own: own}}}
	protocol.Bounded(tellWidth, len(ids), func(i int) { f.exchange(ctx, ids[i], req) })
}

// Hand has another peer, which shows an offer, check it and tell the witnesses.
func (f *Findings) Hand(ctx context.Context, to peer.ID, n records.Name) {
	ctx, end, err := f.Begin(ctx, "findings", findingsTimeout)
	if err != nil {
		return
	}
	defer func() { end(err) }()
	f.exchange(ctx, to, &pb.Request{Op: &pb.Request_Findings{Findings: &pb.FindingsRequest{Records: []string{n.ID}, Of: []byte(n.Provider)}}})
}

// OwnWitnesses returns the witnesses of a provider if this peer is one of them, else nothing. It sends no request.
func (f *Findings) OwnWitnesses(provider peer.ID) []peer.ID {
	if !f.Router.Serving() || provider == f.Self {
		return nil
	}
	key := keep.KeyOf(records.ProviderCell(provider))
	near := slices.DeleteFunc(append(f.Router.Nearby(key, Witnesses+1), f.Self), func(id peer.ID) bool { return id == provider })
	if near = keep.Nearest(key, near, Witnesses); slices.Contains(near, f.Self) {
		return near
	}
	return nil
}

// Knowers counts the peers that can know a provider, this one included and the provider not, at most Witnesses. It sends no request.
func (f *Findings) Knowers(provider peer.ID) int {
	near := append(f.Router.Nearby(keep.KeyOf(records.ProviderCell(provider)), Witnesses+1), f.Self)
	slices.Sort(near)
	near = slices.DeleteFunc(slices.Compact(near), func(id peer.ID) bool { return id == provider })
	return min(len(near), Witnesses)
}

func (f *Findings) exchangeAll(ctx context.Context, ids []peer.ID, req *pb.Request) []Delivered {
	all := make([][]Delivered, len(ids))
	protocol.Bounded(len(ids), len(ids), func(i int) { all[i] = f.exchange(ctx, ids[i], req) })
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
		resp, _ = f.Serve(protocol.Source{Peer: f.Self, Exempt: true}, req.GetFindings())
	} else if answer, _, err := f.client.Call(ctx, id, req); err == nil {
		resp = answer.GetFindings()
	}
	var out []Delivered
	for _, data := range resp.GetStatements() {
		if st, err := protocol.OpenFindings(f.Network, data, f.Now()); err == nil && st.By != f.Self {
			d := Delivered{Statement: st}
			if prefix, ok := f.client.PrefixOf(id); ok && st.By == id {
				d.From = prefix
			}
			out = append(out, d)
		}
	}
	return out
}

// Serve answers a FINDINGS request. Only a measurer itself can deliver a statement, so the pool knows its network.
func (f *Findings) Serve(from protocol.Source, req *pb.FindingsRequest) (*pb.FindingsResponse, error) {
	now := f.Now()
	if len(req.GetOwn()) > 0 {
		if f.allow(from) != nil {
			return nil, fault.New("", fault.LimitReached, "too many requests from network %s: try again later", from.Prefix)
		}
		st, err := protocol.OpenFindings(f.Network, req.GetOwn(), now)
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
		if f.Heard != nil && from.Peer != f.Self {
			f.Heard(st, prefix)
		}
	}
	var about []records.Name
	for _, id := range req.GetRecords() {
		n := records.Name{Provider: peer.ID(req.GetOf()), ID: id}
		about = append(about, n)
		if f.Asked != nil && from.Peer != f.Self {
			f.Asked(n, from.Peer)
		}
	}
	return &pb.FindingsResponse{Statements: f.pool.About(about, from.Peer, now)}, nil
}
