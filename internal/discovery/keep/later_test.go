package keep

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/pkg/query"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
	peerv1 "github.com/blackhole/blackhole/proto/blackhole/peer/v1"
)

// The response of a later version to a STORE means what today's part of it means.
func FuzzLaterStoreResponse(f *testing.F) {
	r := keepertest.NewProvider(f).Sign(f, keepertest.Offer("one"), 1, time.Now())
	cells := keepertest.Compile(f, query.Query{}).Cells(1)
	refusal := &peerv1.Refusal{Code: peerv1.Code_CODE_UNSUPPORTED, Field: "query.query.15", Message: "no", Unknown: []string{"query.query.15"}}
	today := &pb.StoreResponse{Results: []*pb.StoreResult{{}, {Refusal: refusal, Sequence: 3}}, Full: protocol.CellNames(cells)}
	keepertest.AddFutures(f, 1)
	p := &Publisher{Life: protocol.NewLife(protocol.Config{Now: time.Now}), skips: newSkips()}
	f.Fuzz(func(t *testing.T, _ byte, choices []byte) {
		later := new(pb.StoreResponse)
		require.NoError(t, proto.Unmarshal((&keepertest.Future{Bytes: choices}).Later(t, today), later))
		item := &pb.StoreItem{Envelope: r.Envelope(), Cells: protocol.CellNames(cells)}
		items := []storeItem{{wire: item}, {wire: item}}
		require.NoError(t, p.readStoreResponse("later", items, later))
		require.NoError(t, items[0].err)
		require.Error(t, items[1].err)
	})
}
