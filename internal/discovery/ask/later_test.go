package ask

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
	peerv1 "github.com/blackhole/blackhole/proto/blackhole/peer/v1"
)

// bare returns an Asker without a network.
func bare(t testing.TB) (*Asker, *keepertest.Counts) {
	return bareAt(t, keepertest.Addressed{})
}

// bareAt returns an Asker without a network that knows the addresses of peers. Its cells take 10 records.
func bareAt(t testing.TB, h host.Host) (*Asker, *keepertest.Counts) {
	counts := keepertest.NewCounts(t)
	c := protocol.Config{Host: h, Now: time.Now, Logger: slog.New(slog.DiscardHandler), Signals: protocol.Signals{Metrics: counts.Discovery}}
	x, life := index.New(index.Config{}), protocol.NewLife(c)
	closest := keep.NewClosest(life, keep.ClosestConfig{})
	authority := keep.NewAuthority(closest, keep.AuthorityConfig{
		ClockFault: func() string { return "" }, Crowded: x.Crowded, Compares: true,
	})
	cells := keep.NewCells(x, time.Now, 10, func() bool { return false }, func() {})
	in := keep.NewIntake(x, time.Now, life.Refused, c.Logger)
	config := AskerConfig{Index: x, Verifier: keepertest.NewVerifier(t)}
	return NewAsker(closest, authority, protocol.NewClient(life, c, closest.Suspect), cells, in, config), counts
}

// Any response of a later version means what today's part of it means, or counts as a refusal. It is never a
// violation of the protocol.
func FuzzLaterResponse(f *testing.F) {
	p, now := keepertest.NewProvider(f), time.Now()
	r := p.Sign(f, keepertest.Offer("one"), 1, now)
	plan := keepertest.Compile(f, query.Query{Limit: 3})
	q := cellQuery{plan: plan, cells: plan.Cells(coverCells)}
	refusal := &peerv1.Refusal{Code: peerv1.Code_CODE_UNSUPPORTED, Field: "query.query.15", Message: "no", Unknown: []string{"query.query.15"}}
	responses := []*pb.Response{
		{Op: &pb.Response_Query{Query: &pb.QueryResponse{Envelopes: [][]byte{r.Envelope()}, Total: 1, Full: protocol.CellNames(q.cells)}}},
		{Op: &pb.Response_Resolve{Resolve: &pb.ResolveResponse{Envelope: r.Envelope()}}},
		{Refusal: refusal},
	}
	keepertest.AddFutures(f, len(responses))
	asker, counts := bare(f)
	f.Fuzz(func(t *testing.T, kind byte, choices []byte) {
		today := responses[int(kind)%len(responses)]
		b := (&keepertest.Future{Bytes: choices}).Later(t, today)
		resp := new(pb.Response)
		require.NoError(t, rpc.NewCodec(bytes.NewBuffer(keepertest.Delimited(b)), &network.NullScope{}, protocol.ResponseFormat()).ReadMessage(resp))
		if err := rpc.Restore("", resp.Refusal); err != nil {
			require.NotNil(t, today.Refusal)
			require.Contains(t, []fault.Kind{fault.Unsupported, fault.Unavailable}, fault.KindOf(err))
			require.Error(t, asker.client.Refusal("later", resp))
		}
		if resp.Op == nil {
			return // a form of a later version: see asker.call
		}
		var err error
		switch op := resp.Op.(type) {
		case *pb.Response_Query:
			var a answer
			a, err = verifyAnswer(q, op.Query, asker.Verifier, now)
			require.Len(t, a.records, 1)
			require.Equal(t, q.cells, a.crowded)
		case *pb.Response_Resolve:
			var v versionReply
			v, err = asker.readVersion(op.Resolve, r.Key())
			require.Equal(t, r.Digest(), v.newest.Digest())
		}
		require.NoError(t, err)
		require.Empty(t, counts.Distrust())
	})
}
