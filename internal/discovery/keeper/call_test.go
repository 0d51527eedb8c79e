package keeper

import (
	"bytes"
	"io"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	dpb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
	peerv1 "github.com/blackhole/blackhole/proto/blackhole/peer/v1"
)

// requestCodec reads requests of any content.
func requestCodec(rw io.ReadWriter) *rpc.Codec {
	return rpc.NewCodec(rw, &network.NullScope{}, rpc.Format{MaxSize: protocol.MaxRequest})
}

// responseCodec reads responses as a client does.
func responseCodec(rw io.ReadWriter) *rpc.Codec {
	return rpc.NewCodec(rw, &network.NullScope{}, protocol.ResponseFormat())
}

// inbound returns the streams that a node serves.
func (n *node) inbound() (streams []network.Stream) {
	for _, c := range n.host.Network().Conns() {
		for _, s := range c.GetStreams() {
			if s.Protocol() == protocol.Protocol("test") && s.Stat().Direction == network.DirInbound {
				streams = append(streams, s)
			}
		}
	}
	return streams
}

// cut resets the streams that a node serves.
func (n *node) cut() {
	for _, s := range n.inbound() {
		_ = s.Reset()
	}
}

// corrupt replaces a node's side of the protocol.
func (n *node) corrupt(answer func(*pb.Request) *pb.Response) {
	n.host.SetStreamHandler(protocol.Protocol("test"), func(s network.Stream) {
		defer func() { _ = s.Reset() }()
		c := requestCodec(s)
		for {
			req := new(pb.Request)
			if err := c.ReadMessage(req); err != nil {
				return
			}
			resp := answer(req)
			if resp == nil {
				return
			}
			if err := c.WriteMessage(resp); err != nil {
				return
			}
		}
	})
}

// silent accepts a node's requests and never answers.
func (n *node) silent() {
	n.host.SetStreamHandler(protocol.Protocol("test"), func(s network.Stream) {
		_, _ = s.Read(make([]byte, 1))
	})
}

func queried(resp *pb.QueryResponse) *pb.Response {
	return &pb.Response{Op: &pb.Response_Query{Query: resp}}
}

// The asker trusts no keeper: a response that violates the protocol counts as no answer, its
// keeper is not asked again for a while, and another keeper completes the answer.
func TestCorruptKeepers(t *testing.T) {
	p := keepertest.NewProvider(t)
	for _, tc := range []struct {
		name   string
		answer func(good []*records.Record) *pb.Response
		bad    bool // a violation of the protocol
	}{
		{"forged", func(good []*records.Record) *pb.Response {
			e := bytes.Clone(good[0].Envelope())
			e[len(e)-1] ^= 1
			return queried(&pb.QueryResponse{Envelopes: [][]byte{e}})
		}, true},
		{"not matching", func(good []*records.Record) *pb.Response {
			return queried(&pb.QueryResponse{Envelopes: [][]byte{p.Sign(t, keepertest.Offer("dear", keepertest.Priced(1000)), 1, good[0].Issued()).Envelope()}})
		}, true},
		{"too many", func(good []*records.Record) *pb.Response {
			resp := &pb.QueryResponse{}
			for range 6 {
				resp.Envelopes = append(resp.Envelopes, good[0].Envelope())
			}
			return queried(resp)
		}, true},
		{"a bound that is not a number", func([]*records.Record) *pb.Response {
			return queried(&pb.QueryResponse{Withheld: true, Bound: math.NaN()})
		}, true},
		{"more countries than matches", func([]*records.Record) *pb.Response {
			return queried(&pb.QueryResponse{Total: 1, Menu: &dpb.Menu{Countries: map[string]uint32{"DE": 1, "FR": 1}}})
		}, true},
		{"no country", func([]*records.Record) *pb.Response {
			return queried(&pb.QueryResponse{Total: 1, Menu: &dpb.Menu{Countries: map[string]uint32{"Germany": 1}}})
		}, true},
		{"the answer to something else", func([]*records.Record) *pb.Response {
			return &pb.Response{Op: &pb.Response_Store{Store: &pb.StoreResponse{}}}
		}, true},
		{"a bomb", func([]*records.Record) *pb.Response {
			return queried(&pb.QueryResponse{Envelopes: make([][]byte, queries.MaxLimit+1)})
		}, false},
		{"a refusal", func([]*records.Record) *pb.Response {
			return &pb.Response{Refusal: &peerv1.Refusal{Code: peerv1.Code_CODE_UNAVAILABLE, Message: "busy"}}
		}, false},
		{"an end", func([]*records.Record) *pb.Response { return nil }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newCluster(t, 4)
				recs := keepertest.Batch(t, keepertest.NewProvider(t), 5, time.Now())
				for _, o := range w.nodes[0].Store(t.Context(), recs) {
					require.Equal(t, 4, o.Stored.On)
				}
				a := w.nodes[0]
				hostile := w.node(a.askingOrder(keep.NewSet(w.dht.peers, nil))[1])
				asked := 0
				hostile.corrupt(func(*pb.Request) *pb.Response { asked++; return tc.answer(recs) })
				hostile.cut()
				price := 10.0
				q := keepertest.Around(10)
				q.Limit, q.MaxPrice = 5, &price
				for range 3 {
					found, err := a.Query(t.Context(), keepertest.Compile(t, q))
					require.NoError(t, err)
					require.True(t, found.Complete, found.Reason)
					require.Len(t, found.Records, 5)
				}
				require.Equal(t, 1, asked, "asked once, then last")
				require.Equal(t, tc.bad, a.counts.Distrust()["unauthentic"] == 1)
			})
		})
	}
}

// A keeper that does not answer costs its hedge delay, not its deadline.
func TestHedging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 4)
		a := w.nodes[0]
		recs := keepertest.Batch(t, keepertest.NewProvider(t), 5, time.Now())
		a.Store(t.Context(), recs)
		slow := w.node(a.askingOrder(keep.NewSet(w.dht.peers, nil))[1])
		slow.silent()
		slow.cut()
		start := time.Now()
		found, err := a.Query(t.Context(), keepertest.Compile(t, keepertest.Around(10)))
		require.NoError(t, err)
		require.True(t, found.Complete, found.Reason)
		require.Less(t, time.Since(start), 2*hedgeAfter)

		start = time.Now()
		_, err = a.Query(t.Context(), keepertest.Compile(t, keepertest.Around(10)))
		require.NoError(t, err)
		require.Less(t, time.Since(start), hedgeAfter, "asked last for a while")
	})
}

// With many silent keepers, each hedge asks more keepers than the one before.
func TestHedgingWithManyDeadKeepers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 9)
		a := w.nodes[0]
		a.Store(t.Context(), keepertest.Batch(t, keepertest.NewProvider(t), 5, time.Now()))
		for _, id := range a.askingOrder(keep.NewSet(w.dht.peers, nil))[1:6] {
			n := w.node(id)
			n.silent()
			n.cut()
		}
		start := time.Now()
		found, err := a.Query(t.Context(), keepertest.Compile(t, keepertest.Around(10)))
		require.NoError(t, err)
		require.True(t, found.Complete, found.Reason)
		require.Less(t, time.Since(start), 5*hedgeAfter, "the third hedge, after 4.75 hedge delays, reaches a live keeper")
	})
}

// Without any other answer the result is this peer's own and names the reason.
func TestAllOthersSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 3)
		a := w.nodes[0]
		a.Store(t.Context(), keepertest.Batch(t, keepertest.NewProvider(t), 5, time.Now()))
		for _, n := range w.nodes[1:] {
			n.silent()
			n.cut()
		}
		start := time.Now()
		found, err := a.Query(t.Context(), keepertest.Compile(t, keepertest.Around(10)))
		require.NoError(t, err)
		require.False(t, found.Complete)
		require.Contains(t, found.Reason, "1 of 2 keepers answered")
		require.Len(t, found.Records, 5)
		require.LessOrEqual(t, time.Since(start), a.config.Limits.Query)

		start = time.Now()
		o := a.Store(t.Context(), keepertest.Batch(t, keepertest.NewProvider(t), 1, time.Now()))[0]
		require.NoError(t, o.Err)
		require.Equal(t, records.Stored{On: 1, Of: 3, ThisPeerOnly: true}, o.Stored)
		require.Equal(t, a.config.Limits.Deliver/avoidedShare, time.Since(start), "a keeper silent to a query gets less time")
	})
}

// A STORE response has one result for each item; other responses are violations.
func TestShortStoreAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 2, never)
		var n int // changes between two answers, because an idle stream leads to the same handler
		w.nodes[1].corrupt(func(*pb.Request) *pb.Response {
			results := make([]*pb.StoreResult, n)
			for i := range results {
				results[i] = new(pb.StoreResult)
			}
			return &pb.Response{Op: &pb.Response_Store{Store: &pb.StoreResponse{Results: results}}}
		})
		for _, n = range []int{0, 1, 3, 1000} {
			for _, o := range w.nodes[0].Store(t.Context(), keepertest.Batch(t, keepertest.NewProvider(t), 2, time.Now())) {
				require.Equal(t, records.Stored{On: 1, Of: 2, ThisPeerOnly: true}, o.Stored)
			}
		}
	})
}

// A reader that keeps none of the cells needs two keepers, and fails without any.
func TestReaderWithoutKeepers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 24)
		plan := keepertest.Compile(t, query.Query{})
		keepers := w.keepersOf(plan.Cells(coverCells)[0])
		var reader *node
		for _, n := range w.nodes {
			if !contains(keepers, n) {
				reader = n
			}
		}
		for _, n := range keepers {
			n.leave(t)
		}
		_, err := reader.Query(t.Context(), plan)
		require.Error(t, err)
		require.Contains(t, []fault.Kind{fault.Unavailable, fault.Timeout}, fault.KindOf(err))
	})
}

func contains(nodes []*node, n *node) bool {
	for _, other := range nodes {
		if other == n {
			return true
		}
	}
	return false
}
