package keeper

import (
	"bytes"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	queries "github.com/blackhole/blackhole/internal/query"
	dpb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// Every input gets a response of its kind: a result for each item, an answer within the limit of
// the query, or a refusal.
func FuzzRequest(f *testing.F) {
	r := keepertest.NewProvider(f).Sign(f, keepertest.Offer("one"), 1, time.Now())
	seeds := []*pb.Request{
		storeOf(item(r), item(r)),
		storeOf(),
		{TimeoutMs: 9, Op: &pb.Request_Query{Query: &pb.QueryRequest{
			Query: &dpb.Query{Type: "compute", Limit: 3, Near: &dpb.Near{Latitude: 52}}, Cells: []string{r.Cells()[0].String()},
		}}},
	}
	for _, s := range seeds {
		b, err := proto.Marshal(s)
		require.NoError(f, err)
		f.Add(keepertest.Delimited(b))
	}
	f.Add([]byte{0xff, 0xff, 0xff, 0x7f})
	k, _ := bare(f, 30, protocol.Limits{})
	f.Fuzz(func(t *testing.T, b []byte) {
		codec := rpc.NewCodec(bytes.NewBuffer(b), &network.NullScope{}, protocol.RequestFormat())
		req := new(pb.Request)
		err := codec.ReadMessage(req)
		if err != nil && !rpc.IsFault(err) {
			return // the input ended
		}
		resp := k.server.respond(protocol.Source{}, req, err)
		switch {
		case resp.Refusal != nil:
			require.Error(t, rpc.Restore("", resp.Refusal))
		case req.GetStore() != nil:
			require.Len(t, resp.GetStore().Results, len(req.GetStore().Items))
		case req.GetQuery() != nil:
			require.LessOrEqual(t, len(resp.GetQuery().Envelopes), queries.MaxLimit)
		}
		require.NoError(t, requestCodec(new(bytes.Buffer)).WriteMessage(resp), "strings of other peers may be invalid UTF-8, but responses must be valid")
	})
}
