package keeper

import (
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/pkg/query"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// lie changes a node's responses.
func (n *lightNode) lie(change func(*pb.Response)) {
	n.lieTo(func(_ *pb.Request, resp *pb.Response) { change(resp) })
}

// lieTo changes a node's responses to requests.
func (n *lightNode) lieTo(change func(*pb.Request, *pb.Response)) {
	n.host.SetStreamHandler(protocol.Protocol("test"), func(s network.Stream) {
		defer func() { _ = s.Close() }()
		c := requestCodec(s)
		for {
			req := new(pb.Request)
			if err := c.ReadMessage(req); err != nil {
				return
			}
			resp := n.server.respond(n.server.source(s.Conn()), req, nil)
			change(req, resp)
			if err := c.WriteMessage(resp); err != nil {
				return
			}
		}
	})
}

// One keeper of ten lies about a cell that all others hold whole. Every answer is right and complete, costs at most twice the
// requests, and the next question goes to other keepers.
func TestOneLiarAmongKeepers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLightCluster(t, 40)
		defer w.close()
		recs := world(t, 300, uniform)
		for _, o := range w.nodes[0].Store(t.Context(), recs) {
			require.NoError(t, o.Err)
		}
		plan := keepertest.Compile(t, query.Query{Sort: query.SortPrice, Limit: 10, Explain: true, ExactTotal: true})
		global := plan.Cells(1)[0]
		asker := w.nodes[slices.IndexFunc(w.nodes, func(n *lightNode) bool { return !slices.Contains(w.keepersOf(global), n) })]
		order := func() []peer.ID {
			return asker.askingOrder(keep.NewSet(keep.Nearest(keep.KeyOf(global), w.dht.peers, keep.Replicas), nil))
		}
		ask := func(name string) (requests int) {
			asker.counts.Forget()
			found, err := asker.Query(t.Context(), plan)
			require.NoError(t, err)
			require.True(t, found.Complete, "%s: %s", name, found.Reason)
			require.Equal(t, best(plan, recs), keepertest.NamesOf(found.Records)[:10], name)
			require.Equal(t, len(recs), found.Total, name)
			require.False(t, found.AtLeast, name)
			return asker.counts.Operations("ask")
		}
		honest := ask("honest")
		require.Equal(t, 2, honest)
		for name, lie := range map[string]func(*pb.QueryResponse){
			"more matches than there are":  func(r *pb.QueryResponse) { r.Total = math.MaxInt32 },
			"fewer matches than there are": func(r *pb.QueryResponse) { r.Total = 10 },
			"withheld all":                 func(r *pb.QueryResponse) { r.Envelopes, r.Withheld, r.Bound = nil, true, math.Inf(-1) },
			"withheld better ones":         func(r *pb.QueryResponse) { r.Withheld, r.Bound = true, math.Inf(-1) },
			"full":                         func(r *pb.QueryResponse) { r.Full, r.Envelopes, r.Total = []string{global.String()}, nil, 0 },
			"the best are not there":       func(r *pb.QueryResponse) { r.Envelopes, r.Total = r.Envelopes[5:], r.Total-5; r.Withheld = false },
		} {
			liar := w.node(order()[0])
			lies := 0
			liar.lie(func(resp *pb.Response) {
				if q := resp.GetQuery(); q != nil {
					lie(q)
					lies++
				}
			})
			time.Sleep(2 * idleFor) // earlier streams expire
			most := 2 * honest
			if name == "the best are not there" {
				most += 4 // the asker resolves records that the liar should list, because it may be behind
			}
			require.LessOrEqual(t, ask(name), most, name)
			require.Equal(t, 1, lies, name)
			if most == 2*honest {
				require.NotContains(t, order()[:2], liar.Self, name)
				ask(name)
				require.Equal(t, 1, lies, "%s: others are asked", name)
			}
			liar.host.SetStreamHandler(protocol.Protocol("test"), liar.server.rpc.Serve)
			time.Sleep(10 * time.Minute) // nobody is avoided any more
		}
	})
}

// Most keepers of a cell hide the same records from lists, and have them, or not, if they are asked for one. A keeper of the cell that
// has to compare first, and so answers nothing alone, believes none of them: what it knows itself is evidence.
func TestAskerKnowsWhatColludersHide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLightCluster(t, 40)
		defer w.close()
		recs := world(t, 300, uniform)
		for _, o := range w.nodes[0].Store(t.Context(), recs) {
			require.NoError(t, o.Err)
		}
		time.Sleep(5 * time.Minute)
		plan := keepertest.Compile(t, query.Query{Sort: query.SortPrice, Limit: 10, ExactTotal: true})
		keepers := w.keepersOf(plan.Cells(1)[0])
		asker, hidden := keepers[0], best(plan, recs)[:5]
		for name, honest := range map[string]bool{"and have them": true, "and deny them": false} {
			for _, liar := range keepers[1:8] {
				liar.lieTo(func(_ *pb.Request, resp *pb.Response) {
					if q := resp.GetQuery(); q != nil {
						q.Envelopes, q.Total, q.Withheld = q.Envelopes[len(hidden):], q.Total-uint64(len(hidden)), false
					}
					if r := resp.GetResolve(); r != nil && !honest {
						r.Envelope = nil
					}
				})
			}
			complete := 0
			for range 20 {
				asker.authority.FallBehind()
				found, err := asker.Query(t.Context(), plan)
				require.NoError(t, err)
				require.Equal(t, best(plan, recs), keepertest.NamesOf(found.Records)[:10], name)
				if found.Complete {
					require.Equal(t, len(recs), found.Total, name)
					complete++
				}
				time.Sleep(time.Minute)
			}
			require.Positive(t, complete, name)
		}
	})
}

// A keeper that hides what others have had for long is asked last for a while: each question with it takes as long as two.
func TestHiderIsAskedLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLightCluster(t, 12)
		defer w.close()
		recs := world(t, 100, uniform)
		for _, o := range w.nodes[0].Store(t.Context(), recs) {
			require.NoError(t, o.Err)
		}
		time.Sleep(5 * time.Minute)
		var asked atomic.Int64
		asker := w.nodes[1]
		hider := w.node(asker.askingOrder(keep.NewSet(w.dht.peers, nil))[1])
		hider.lieTo(func(_ *pb.Request, resp *pb.Response) {
			if q := resp.GetQuery(); q != nil {
				asked.Add(1)
				q.Envelopes, q.Total, q.Withheld = q.Envelopes[1:], q.Total-1, false
			}
		})
		plan := keepertest.Compile(t, query.Query{Sort: query.SortPrice, Limit: 10})
		for range 200 { // within one moment
			found, err := asker.Asker.Find(t.Context(), plan, plan.Cells(coverCells))
			require.NoError(t, err)
			require.True(t, found.Complete, found.Reason)
			require.Equal(t, best(plan, recs), keepertest.NamesOf(found.Records)[:10])
		}
		require.Equal(t, int64(1), asked.Load())
		for range 720 { // within an hour
			time.Sleep(5 * time.Second)
			_, err := asker.Asker.Find(t.Context(), plan, plan.Cells(coverCells))
			require.NoError(t, err)
		}
		require.LessOrEqual(t, asked.Load(), int64(16), "it is asked last for longer each time")
		w.requireTrust()
	})
}

// A keeper hides a record, and tells nothing about it for a minute. The question does not wait for it, and counts its answer for nothing.
func TestKeeperThatTellsNoVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLightCluster(t, 12)
		defer w.close()
		defer time.Sleep(2 * time.Minute) // so long keepers tell nothing
		recs := world(t, 100, uniform)
		for _, o := range w.nodes[0].Store(t.Context(), recs) {
			require.NoError(t, o.Err)
		}
		time.Sleep(5 * time.Minute)
		plan := keepertest.Compile(t, query.Query{Sort: query.SortPrice, Limit: 10})
		asker := w.nodes[1]
		hide := func(_ *pb.Request, resp *pb.Response) {
			if q := resp.GetQuery(); q != nil {
				q.Envelopes, q.Total, q.Withheld = q.Envelopes[1:], q.Total-1, false
			} else if resp.GetResolve() != nil {
				time.Sleep(time.Minute)
			}
		}
		for i, silent := range [][]*lightNode{{w.node(asker.askingOrder(keep.NewSet(w.dht.peers, nil))[1])}, w.nodes[2:]} {
			for _, n := range silent {
				n.lieTo(hide)
			}
			start := time.Now()
			found, err := asker.Asker.Find(t.Context(), plan, plan.Cells(coverCells))
			require.NoError(t, err)
			require.True(t, found.Complete, found.Reason)
			require.Equal(t, best(plan, recs), keepertest.NamesOf(found.Records)[:10])
			require.Less(t, time.Since(start), []time.Duration{time.Second, 3 * time.Second}[i])
			time.Sleep(2 * time.Minute)
		}
	})
}

// Keepers of one address group are not asked in sequence while other groups remain.
func TestAskingOrderSpreadsNetworks(t *testing.T) {
	w := newLightCluster(t, 6)
	defer w.close()
	ids := make([]peer.ID, 5)
	for i, address := range []string{"203.0.113.1", "203.0.113.2", "198.51.100.1", "203.0.113.3", "192.0.2.1"} {
		ids[i] = w.nodes[i].Self
		w.hosts.of(ids[i]).addr = ma.StringCast("/ip4/" + address + "/udp/1/quic-v1")
	}
	want := []peer.ID{ids[0], ids[2], ids[4], ids[1], ids[3]}
	require.Equal(t, want, w.nodes[5].client.Rank(slices.Clone(ids)))
	self := append([]peer.ID{w.nodes[5].Self}, ids[:2]...)
	require.Equal(t, self, w.nodes[5].client.Rank(slices.Clone(self)))
}
