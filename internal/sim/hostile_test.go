package sim

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/pkg/gossip"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// malice is what a hostile peer does besides taking part in the DHT.
type malice int

const (
	hides  malice = iota // takes records, answers that there are none
	forges               // answers with records it has changed, and with the oldest version it has of others
	floods               // stores as many records of its own as it can, and answers that it is no keeper
	malices
)

// hostilePeer is a member of the DHT that speaks the keepers' protocol its own way.
type hostilePeer struct {
	*simPeer
	malice malice

	mu    sync.Mutex // guards taken
	taken map[records.Name][]byte
}

// grind makes the key whose peer is closest to a cell out of many: what whoever wants to
// keep that cell does.
func grind(seed uint64, first, tries int, cell records.CellKey) (place, int) {
	target := sha256.Sum256(cell.CID().Hash())
	var best place
	var least []byte
	for n := first; n < first+tries; n++ {
		p := newPlace(netip.Addr{}, keyOf(seed, uint64(n)))
		d := sha256.Sum256([]byte(p.id))
		for i := range d {
			d[i] ^= target[i]
		}
		if least == nil || bytes.Compare(d[:], least) < 0 {
			best, least = p, slices.Clone(d[:])
		}
	}
	return best, first + tries
}

// invade adds hostile peers, in three /24s, at the cells that a query looks into.
func (w *cluster) invade(n int, q query.Query) []*hostilePeer {
	const keys = 1 << 32                 // beyond those of honest peers
	tries := max(500, 10*w.params.Peers) // closer than any honest peer, most likely
	cells := compiled(q).Cells(9)
	var out []*hostilePeer
	next := keys
	for i := range n {
		var at place
		at, next = grind(w.params.Seed, next, tries, cells[i%len(cells)])
		at.addr = netip.AddrFrom4([4]byte{150, byte(i % 3), 1, byte(1 + i/3)})
		w.oracle.distrust(at.id)
		h := &hostilePeer{
			simPeer: &simPeer{place: at, connections: w.params.Connections, counts: newCounts()},
			malice:  malice(i) % malices, taken: make(map[records.Name][]byte),
		}
		if err := h.infiltrate(w); err != nil {
			w.t.Fatalf("hostile peer: %v", err)
		}
		out = append(out, h)
		w.hostile = append(w.hostile, h.simPeer)
		time.Sleep(joinPause)
	}
	time.Sleep(settling)
	return out
}

func (h *hostilePeer) infiltrate(w *cluster) error {
	verifier, err := records.NewVerifier(networkName, verified)
	if err != nil {
		return err
	}
	h.index = index.New(index.Config{})
	live := gossip.Config{Network: networkName, Verifier: verifier, Sink: func(*records.Record) {}}
	if err := h.enter(w.wire, w.doors(), live); err != nil {
		return err
	}
	h.node.Host().SetStreamHandler(protocol.Protocol(networkName), h.serve)
	return nil
}

// serve answers requests until the stream ends.
func (h *hostilePeer) serve(s network.Stream) {
	defer func() { _ = s.Reset() }()
	r := bufio.NewReader(s)
	for {
		var req pb.Request
		if err := (protodelim.UnmarshalOptions{MaxSize: -1}).UnmarshalFrom(r, &req); err != nil {
			return
		}
		if _, err := protodelim.MarshalTo(s, h.answer(&req)); err != nil {
			return
		}
	}
}

func (h *hostilePeer) answer(req *pb.Request) *pb.Response {
	switch op := req.GetOp().(type) {
	case *pb.Request_Store:
		out := &pb.StoreResponse{}
		for _, item := range op.Store.GetItems() {
			h.take(item.GetEnvelope())
			out.Results = append(out.Results, &pb.StoreResult{})
		}
		return &pb.Response{Op: &pb.Response_Store{Store: out}}
	case *pb.Request_Query:
		out := &pb.QueryResponse{}
		switch h.malice {
		case forges:
			out.Envelopes = h.forgeries()
		case floods:
			out.NotKept = op.Query.GetCells()
		}
		return &pb.Response{Op: &pb.Response_Query{Query: out}}
	default:
		return &pb.Response{}
	}
}

// take remembers the first version of what it is given.
func (h *hostilePeer) take(envelope []byte) {
	r, err := records.Open(networkName, envelope, time.Now())
	if err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, known := h.taken[r.Name()]; !known && !r.Withdrawn() {
		h.taken[r.Name()] = envelope
	}
}

// forgeries are old versions, one of them with a byte changed every other time.
func (h *hostilePeer) forgeries() [][]byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out [][]byte
	for _, e := range h.taken {
		out = append(out, bytes.Clone(e))
		if len(out) == 10 {
			break
		}
	}
	if len(out) > 0 && rand.IntN(2) == 0 {
		out[0][len(out[0])/2] ^= 1
	}
	return out
}

// flood stores records of its own with every peer it is given.
func (h *hostilePeer) flood(ctx context.Context, victims []*simPeer, offers []records.Offer) {
	var items []*pb.StoreItem
	for i, o := range offers {
		o.ID = fmt.Sprintf("flood-%d", i)
		now := time.Now()
		r, err := records.Sign(networkName, h.key, o, records.Stamp{Sequence: 1, Created: now, Issued: now, Expires: now.Add(time.Hour)})
		if err != nil {
			continue
		}
		item := &pb.StoreItem{Envelope: r.Envelope()}
		for _, c := range r.Cells() {
			item.Cells = append(item.Cells, c.String())
		}
		items = append(items, item)
	}
	for _, v := range victims {
		h.store(ctx, v.id, items)
	}
}

func (h *hostilePeer) store(ctx context.Context, to peer.ID, items []*pb.StoreItem) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := h.node.Host().NewStream(ctx, to, protocol.Protocol(networkName))
	if err != nil {
		return
	}
	defer func() { _ = s.Reset() }()
	_ = s.SetDeadline(time.Now().Add(patience))
	r := bufio.NewReader(s)
	for batch := range slices.Chunk(items, 500) {
		req := &pb.Request{Op: &pb.Request_Store{Store: &pb.StoreRequest{Items: batch}}}
		var resp pb.Response
		if _, err := protodelim.MarshalTo(s, proto.Message(req)); err != nil {
			return
		}
		if err := (protodelim.UnmarshalOptions{MaxSize: -1}).UnmarshalFrom(r, &resp); err != nil {
			return
		}
	}
}
