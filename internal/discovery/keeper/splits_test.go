package keeper

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/route"
	"github.com/blackhole/blackhole/internal/discovery/wire"

	ma "github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// bring stores records for one cell at a keeper, from a source, and returns the refusals.
func bring(k *Keeper, from wire.Source, c records.CellKey, recs []*records.Record) (refused []error, splits []*pb.Split) {
	for some := range slices.Chunk(recs, wire.MaxItems) {
		req := &pb.StoreRequest{}
		for _, r := range some {
			req.Items = append(req.Items, item(r, c))
		}
		resp := k.server.respond(from, &pb.Request{Op: &pb.Request_Store{Store: req}}, nil).GetStore()
		for _, r := range resp.GetResults() {
			if err := rpc.Restore("", r.GetRefusal()); err != nil {
				refused = append(refused, err)
			}
		}
		splits = resp.GetSplits()
	}
	return refused, splits
}

// accepting returns a keeper in a large network that holds every cell but those of Berlin of some lengths.
func accepting(t *testing.T, but ...int) (*Keeper, *keepertest.Counts) {
	k, counts := bare(t, route.AcceptWithin, wire.Limits{StoreRate: 1e6, StoreBurst: 1e6})
	foreign := make(map[string]bool)
	for _, n := range but {
		foreign[route.KeyOf(keepertest.CellOfBerlin(n))] = true
	}
	k.Router = &crowd{Router: k.Router, peers: keepertest.PeersOf(600), foreign: foreign}
	return k, counts
}

// crowd is a Router with so many peers that a keeper asks it for the closest ones: near some keys, far from all others.
type crowd struct {
	wire.Router
	peers   []peer.ID
	foreign map[string]bool // keys with close peers
	order   sync.Map        // of the peers by distance from a key: to sort them again for every record is half of a flood's time
}

func (c *crowd) Size() int { return len(c.peers) }

func (c *crowd) Nearby(key string, n int) []peer.ID {
	order, known := c.order.Load(key)
	if !known {
		order, _ = c.order.LoadOrStore(key, route.Nearest(key, c.peers, len(c.peers)))
	}
	all := slices.Clone(order.([]peer.ID))
	if n > route.AcceptWithin || c.foreign[key] {
		return all[:min(n, len(all))]
	}
	return all[len(all)-n:]
}

func from(prefix string) wire.Source {
	return wire.Source{Peer: "publisher", Prefix: netip.MustParsePrefix(prefix)}
}

// A flood from one address prefix, of any number of providers, neither splits a cell nor displaces
// other records, and the cell stays bounded.
func TestFloodOfOnePrefix(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		k, counts := accepting(t)
		c := keepertest.CellOfBerlin(4)
		var honest []*records.Record
		bringHonest := func(n int) {
			for i := range n {
				recs := keepertest.Many(t, 1, 1)
				refused, _ := bring(k, from(fmt.Sprintf("198.%d.%d.0/24", len(honest)>>8, i&255)), c, recs)
				require.Empty(t, refused)
				honest = append(honest, recs...)
			}
		}
		bringHonest(300)
		flood := keepertest.Many(t, 6000, 1)
		for some := range slices.Chunk(flood, 500) {
			bring(k, from("203.0.113.0/24"), c, some)
			require.LessOrEqual(t, k.Index.Len(), cell.Full)
		}
		bringHonest(300)
		found := 0
		for _, r := range honest {
			if _, ok := k.Index.Get(r.Name()); ok {
				found++
			}
		}
		require.Equal(t, len(honest), found)
		require.Zero(t, splitsAt(k))
		require.Positive(t, counts.Refusals("near_full"), "records above the share wait")
		t.Logf("held %d, of %d honest %d; refused %d of %d", k.Index.Len(), len(honest), found, counts.Refusals("near_full"), len(flood))
	})
}

// TestSummaryFollowsTheIndex: a kept summary ends some time after the next change of the index, and not before.
func TestSummaryFollowsTheIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, _ := accepting(t)
		c := keepertest.CellOfBerlin(4)
		recs := keepertest.Many(t, 5, 1)
		for n, r := range recs {
			require.Equal(t, n, k.splits.SummaryOf(c).Count)
			bring(k, from(fmt.Sprintf("198.18.%d.0/24", n)), c, []*records.Record{r})
			time.Sleep(summaryTTL - 1)
			require.Equal(t, n, k.splits.SummaryOf(c).Count)
			time.Sleep(time.Nanosecond)
		}
		full := k.splits.SummaryOf(c)
		require.Equal(t, 5, full.Count)
		time.Sleep(summaryTTL)
		require.Equal(t, full, k.splits.SummaryOf(c))
		require.True(t, k.Index.Remove(recs[0].Name()))
		require.Equal(t, 4, k.splits.SummaryOf(c).Count, "the kept summary was old")
		time.Sleep(30 * 24 * time.Hour)
		k.Index.Expire(time.Now())
		require.Zero(t, k.splits.SummaryOf(c).Count)
	})
}

// Hundreds of thousands of records from three prefixes fill a leaf, which cannot split, and honest
// records stay.
func TestFloodOfALeaf(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		k, _ := accepting(t)
		c := keepertest.CellOfBerlin(geo.DeepLen)
		honest := keepertest.Many(t, 200, 1)
		for i, r := range honest {
			refused, _ := bring(k, from(fmt.Sprintf("198.18.%d.0/24", i)), c, []*records.Record{r})
			require.Empty(t, refused)
		}
		for i := range 3 {
			bring(k, from(fmt.Sprintf("203.0.%d.0/24", i)), c, keepertest.Many(t, 4000, 100))
		}
		require.LessOrEqual(t, k.Index.Len(), cell.LeafFull)
		for _, r := range honest {
			_, ok := k.Index.Get(r.Name())
			require.True(t, ok)
		}
		require.Zero(t, splitsAt(k))
		refused, _ := bring(k, from("203.0.0.0/24"), c, keepertest.Many(t, 1, 1))
		require.Len(t, refused, 1)
		require.ErrorIs(t, refused[0], fault.LimitReached)
	})
}

// A large cell splits: its keeper drops unnecessary records, sends hints to publishers, and trusts
// no summary above its own records.
func TestKeeperSplitsCell(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		k, _ := accepting(t, 5)
		c := keepertest.CellOfBerlin(4)
		recs := keepertest.Many(t, cell.Full+500, 20)
		_, some := k.splits.Partial([]records.CellKey{c})
		require.False(t, some)
		refused, splits := bring(k, wire.Source{Exempt: true}, c, recs)
		require.Empty(t, refused)
		require.Len(t, splits, 1)
		part, some := k.splits.Partial([]records.CellKey{keepertest.CellOfBerlin(3), c})
		require.True(t, some)
		require.Equal(t, c, part)
		require.Equal(t, c.String(), splits[0].Cell)
		require.Len(t, splits[0].Children, 1)
		require.Equal(t, cell.Split, k.splits.Phase(c))
		sampled := 0
		for _, r := range recs {
			if cell.Rank(r.Name()) < splits[0].SampleBelow {
				sampled++
			}
		}
		require.Equal(t, cell.SampleSize, sampled)
		sum := k.splits.SummaryOf(c)
		require.Equal(t, len(recs), sum.Count)

		plan := keepertest.Compile(t, query.Query{Sort: query.SortPrice, Limit: 5})
		q := &pb.QueryRequest{Query: plan.Query().Proto(), Cells: []string{c.String()}}
		resp := k.server.respond(wire.Source{}, &pb.Request{Op: &pb.Request_Query{Query: q}}, nil).GetQuery()
		require.Len(t, resp.Envelopes, 5)
		require.Len(t, resp.Splits, 1)
		worst := 0.5 // all prices are 1
		q.Worst = &worst
		resp = k.server.respond(wire.Source{}, &pb.Request{Op: &pb.Request_Query{Query: q}}, nil).GetQuery()
		require.Empty(t, resp.Envelopes)
		require.True(t, resp.Withheld)
		require.InDelta(t, 1, resp.Bound, 0)
	})
}

// lie changes a node's responses.
func (n *lightNode) lie(change func(*pb.Response)) {
	n.host.SetStreamHandler(wire.Protocol("test"), func(s network.Stream) {
		defer func() { _ = s.Close() }()
		c := requestCodec(s)
		for {
			req := new(pb.Request)
			if err := c.ReadMessage(req); err != nil {
				return
			}
			resp := n.server.respond(n.Limits.SourceOf(s.Conn()), req, nil)
			change(resp)
			if err := c.WriteMessage(resp); err != nil {
				return
			}
		}
	})
}

// Bounds that are too good cost requests, and bounds that are too bad are outvoted: the result is
// correct in both cases.
func TestFalseBounds(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		w := newLightCluster(t, 24)
		defer w.close()
		recs := city(t, 3000, 24*time.Hour)
		for batch := range slices.Chunk(recs, 500) {
			w.nodes[0].Store(t.Context(), batch)
		}
		time.Sleep(3 * time.Minute)
		plans := []*query.Plan{
			keepertest.Compile(t, query.Query{Sort: query.SortPrice, Limit: 5, Explain: true}),
			keepertest.Compile(t, query.Query{Sort: query.SortScore, Limit: 5, Explain: true}),
			keepertest.Compile(t, query.Query{Sort: query.SortRandom, Seed: 1, Limit: 5, Explain: true}),
		}
		ask := func(n *lightNode) (work int) {
			for _, plan := range plans {
				found, err := n.Query(t.Context(), plan)
				require.NoError(t, err)
				require.Equal(t, best(plan, recs), keepertest.NamesOf(found.Records)[:5])
				require.True(t, found.Complete, found.Reason)
				work += searchedCells(found)
			}
			return work
		}
		honest := ask(w.nodes[5])
		global := records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: geo.Global}
		for name, change := range map[string]func(*pb.Summary){
			"too good": func(s *pb.Summary) {
				s.Prices, s.MorePrices, s.MaxUptime, s.MinResponseMs = nil, true, new(float64), new(uint64)
				*s.MaxUptime, s.Lots = 100, nil
			},
			"too bad": func(s *pb.Summary) {
				for _, p := range s.Prices {
					p.Price = math.MaxFloat64
				}
				s.MaxUptime, s.MinErrorRate, s.MinResponseMs, s.Lots = nil, nil, nil, []byte{0, 0} // lot 0 is drawn late
			},
		} {
			asker := w.nodes[5]
			liar := w.node(asker.askingOrder(route.NewSet(route.Nearest(route.KeyOf(global), w.dht.peers, route.Replicas), nil))[1])
			liar.lie(func(resp *pb.Response) {
				for _, s := range resp.GetQuery().GetSplits() {
					for _, child := range s.Children {
						change(child)
					}
				}
			})
			time.Sleep(2 * idleFor) // earlier streams expire
			work := ask(asker)
			t.Logf("%s: %d descents, honest %d", name, work, honest)
			require.LessOrEqual(t, work, maxSearchedCells*len(plans))
			if name == "too good" {
				require.Greater(t, work, honest)
			}
			liar.host.SetStreamHandler(wire.Protocol("test"), liar.server.rpc.Serve)
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
			return asker.askingOrder(route.NewSet(route.Nearest(route.KeyOf(global), w.dht.peers, route.Replicas), nil))
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
		children := func() (all []*pb.Summary) {
			for _, c := range geo.Global.Children() {
				all = append(all, &pb.Summary{Cell: string(c), Count: 1000, Beyond: true})
			}
			return all
		}
		for name, lie := range map[string]func(*pb.QueryResponse){
			"more matches than there are":  func(r *pb.QueryResponse) { r.Total = math.MaxInt32 },
			"fewer matches than there are": func(r *pb.QueryResponse) { r.Total = 10 },
			"withheld all":                 func(r *pb.QueryResponse) { r.Envelopes, r.Withheld, r.Bound = nil, true, math.Inf(-1) },
			"withheld better ones":         func(r *pb.QueryResponse) { r.Withheld, r.Bound = true, math.Inf(-1) },
			"split":                        func(r *pb.QueryResponse) { r.Splits = []*pb.Split{{Cell: global.String(), Children: children()}} },
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
			liar.host.SetStreamHandler(wire.Protocol("test"), liar.server.rpc.Serve)
			time.Sleep(10 * time.Minute) // nobody is avoided any more
		}
	})
}

// A new keeper of a split cell does not take the sample for all records.
func TestNewKeeperOfSplitCell(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		w := newLightCluster(t, 24)
		defer w.close()
		recs := city(t, 3000, 24*time.Hour)
		for batch := range slices.Chunk(recs, 500) {
			w.nodes[0].Store(t.Context(), batch)
		}
		time.Sleep(3 * time.Minute)
		global := records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: geo.Global}
		id := w.nodes[0].Self
		for i := 0; !slices.Contains(route.Nearest(route.KeyOf(global), append(slices.Clone(w.dht.peers), id), route.Replicas), id) || i == 0; i++ {
			id = peer.ID(fmt.Sprintf("joiner %d", i))
		}
		joined := w.join(id, wire.Limits{Sync: -1})
		other := w.keepersOf(global)[0]
		if other == joined {
			other = w.keepersOf(global)[1]
		}
		in := joined.store.NewBatch(wire.Source{Exempt: true}, true) // like SYNC
		var sampled uint64
		other.splits.With(global, func(x *cell.Cell) { sampled = x.Below() })
		for _, r := range recs {
			if cell.Rank(r.Name()) < sampled {
				_, err := in.Take(r, []records.CellKey{global})
				require.NoError(t, err)
			}
		}
		in.Finish()
		require.Equal(t, cell.SampleSize, joined.Index.Len())
		require.Equal(t, cell.Whole, joined.splits.Phase(global))
		time.Sleep(2 * maintainEvery)
		require.Equal(t, cell.Split, joined.splits.Phase(global))
		found, _ := joined.Local(keepertest.Compile(t, query.Query{}))
		require.Contains(t, found.Reason, "the cell "+global.String()+" has so many offers that it has split")
		plan := keepertest.Compile(t, query.Query{Sort: query.SortPrice, Limit: 20})
		for _, n := range []*lightNode{joined, w.nodes[3]} {
			found, err := n.Query(t.Context(), plan)
			require.NoError(t, err)
			require.True(t, found.Complete, found.Reason)
			require.Equal(t, best(plan, recs), keepertest.NamesOf(found.Records)[:20])
		}
	})
}

// A record handed over by a keeper of the surrounding cell does not count for the address of that
// keeper; the same record from any other peer does.
func TestHandedOverFromAnotherKeeper(t *testing.T) {
	k, _ := accepting(t)
	c, around := keepertest.CellOfBerlin(geo.MaxLen+1), keepertest.CellOfBerlin(geo.MaxLen)
	stranger, keeper := peer.ID("stranger"), k.Router.Nearby(route.KeyOf(around), 1)[0]
	for id, want := range map[peer.ID]bool{stranger: true, keeper: false} {
		r := keepertest.Many(t, 1, 1)[0]
		o := from("203.0.113.0/24")
		o.Peer = id
		refused, _ := bring(k, o, c, []*records.Record{r})
		require.Empty(t, refused)
		require.Equal(t, want, k.splits.Member(r).Prefix.IsValid())
	}
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
