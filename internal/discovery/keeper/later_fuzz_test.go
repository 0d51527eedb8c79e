package keeper

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/discovery/recordstest"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/internal/platform/strictproto"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	dpb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// Any request of a later version is refused with what this version does not know, or answered like today's
// request.
func FuzzLaterRequest(f *testing.F) {
	p := keepertest.NewProvider(f)
	r := p.Sign(f, keepertest.Offer("one"), 1, time.Now())
	cell := r.Cells()[0].String()
	near := &dpb.Query{Type: "compute", Limit: 3, Near: &dpb.Near{Latitude: 52}, Sort: dpb.Sort_SORT_PRICE, Health: dpb.Health_HEALTH_ANY, Attributes: map[string]string{"a": "b"}}
	requests := []*pb.Request{
		storeOf(item(r), item(r)),
		{TimeoutMs: 9_000, Op: &pb.Request_Query{Query: &pb.QueryRequest{Query: near, Cells: []string{cell}}}},
		{Op: &pb.Request_Sync{Sync: &pb.SyncRequest{Whole: true, Sums: make([]byte, 16), Cells: []*pb.SyncCell{{Cell: cell}}}}},
		{Op: &pb.Request_Pull{Pull: &pb.PullRequest{Ids: make([]byte, 16)}}},
		{Op: &pb.Request_Resolve{Resolve: &pb.ResolveRequest{Key: r.Key().String()}}},
		{Op: &pb.Request_Findings{Findings: &pb.FindingsRequest{Of: []byte(p.Id), Records: []string{""}}}},
		{Op: &pb.Request_Forward{Forward: &pb.ForwardRequest{To: []byte(p.Id), Items: []*pb.StoreItem{item(r)}}}},
	}
	keepertest.AddFutures(f, len(requests))
	k, counts := bare(f, 30, protocol.Limits{})
	f.Fuzz(func(t *testing.T, kind byte, choices []byte) {
		today := requests[int(kind)%len(requests)]
		version := &keepertest.Future{Bytes: choices}
		b := version.Later(t, today)
		strict := protocol.RequestFormat()
		strict.Strict = true
		codec := rpc.NewCodec(bytes.NewBuffer(keepertest.Delimited(b)), &network.NullScope{}, strict)
		req := new(pb.Request)
		err := codec.ReadMessage(req)
		if version.Must {
			require.ErrorIs(t, err, fault.Unsupported)
			require.NotEmpty(t, strictproto.PathsOf(err))
			resp := k.server.respond(protocol.Source{}, new(pb.Request), err)
			require.Equal(t, strictproto.PathsOf(err), resp.Refusal.GetUnknown())
			require.Equal(t, strictproto.PathsOf(err), strictproto.PathsOf(rpc.Restore("", resp.Refusal)))
		} else {
			require.NoError(t, err)
			require.Equal(t, protocol.OperationOf(today), protocol.OperationOf(req))
			resp := k.server.respond(protocol.Source{}, req, nil)
			require.Equal(t, k.server.respond(protocol.Source{}, today, nil).Refusal.GetCode(), resp.Refusal.GetCode(), resp.Refusal.GetMessage())
		}
		require.Empty(t, counts.Distrust())
	})
}

// partnerOf answers every call with a function.
type partnerOf struct {
	protocol.Streams
	answer func(*pb.Request) []byte
}

func (p partnerOf) Call(_ context.Context, _ peer.ID, req, resp proto.Message) error {
	b := p.answer(req.(*pb.Request))
	if err := protocol.ResponseFormat().Check(b); err != nil {
		return err
	}
	return proto.Unmarshal(b, resp)
}

// A comparison with a keeper of a later version brings its records, byte for byte, or ends as unsupported. The keeper is
// never blamed.
func FuzzLaterComparison(f *testing.F) {
	random := rand.New(rand.NewPCG(13, 4))
	f.Add([]byte{})
	for range 40 {
		choices := make([]byte, 40)
		for j := range choices {
			choices[j] = byte(random.Uint32())
		}
		f.Add(choices)
	}
	p := keepertest.NewProvider(f)
	held := []*records.Record{p.Sign(f, keepertest.Offer("plain"), 1, time.Now()), p.Later(f, "later", 1), p.Later(f, "critical", 1, recordstest.Needs(keepertest.Feature))}
	f.Fuzz(func(t *testing.T, choices []byte) {
		a, counts := bare(t, 1, protocol.Limits{})
		b, _ := bare(t, 1, protocol.Limits{})
		for _, r := range held {
			_, err := b.Index.Put(r, time.Now())
			require.NoError(t, err)
		}
		version := &keepertest.Future{Bytes: choices}
		a.client.Pool = partnerOf{answer: func(req *pb.Request) []byte {
			return version.Later(t, b.server.respond(protocol.Source{Peer: "peer-0"}, req, nil))
		}}
		_, err := a.sync.Compare(t.Context(), "peer-0", a.sync.Table())
		if version.Replaced {
			require.ErrorIs(t, err, fault.Unsupported)
		} else {
			require.NoError(t, err)
			for _, r := range held {
				got, ok := a.Index.Get(r.Name())
				require.True(t, ok)
				require.Equal(t, r.Envelope(), got.Envelope())
			}
		}
		require.Empty(t, counts.Distrust())
	})
}
