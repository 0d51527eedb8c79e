package keeper

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
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

// cellOfBerlin returns the cell of length n around the services of these tests.
func cellOfBerlin(n int) records.CellKey {
	return records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: geo.CellOf(geo.Point{Lat: 52.52, Lon: 13.405}, n)}
}

// many returns n services at one place; each provider has each of them.
func many(t testing.TB, n, each int) []*records.Record {
	recs := make([]*records.Record, n)
	var p provider
	for i := range recs {
		if i%each == 0 {
			p = newProvider(t)
		}
		recs[i] = p.sign(t, offer(fmt.Sprintf("s%d", i), func(o *records.Offer) { o.Metadata.Subtype = "" }), 1, time.Now())
	}
	return recs
}

// bring stores records for one cell at a keeper, from a source, and returns the refusals.
func bring(k *Keeper, from source, c records.CellKey, recs []*records.Record) (refused []error, splits []*pb.Split) {
	for some := range slices.Chunk(recs, MaxItems) {
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

// accepting returns a keeper in a large network that accepts every cell.
func accepting(t *testing.T) (*Keeper, *counts) {
	k, counts := bare(t, acceptWithin, Limits{StoreRate: 1e6, StoreBurst: 1e6})
	for n := geo.MinLen; n <= geo.DeepLen; n++ {
		k.authority.own.Add(cellOfBerlin(n), ownership{accepts: true, retains: true, until: time.Now().Add(time.Hour)})
	}
	return k, counts
}

func from(prefix string) source {
	return source{peer: "publisher", prefix: netip.MustParsePrefix(prefix)}
}

// A flood from one address prefix, of any number of providers, neither splits a cell nor displaces
// other records, and the cell stays bounded.
func TestFloodOfOnePrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, counts := accepting(t)
		c := cellOfBerlin(4)
		var honest []*records.Record
		bringHonest := func(n int) {
			for i := range n {
				recs := many(t, 1, 1)
				refused, _ := bring(k, from(fmt.Sprintf("198.%d.%d.0/24", len(honest)>>8, i&255)), c, recs)
				require.Empty(t, refused)
				honest = append(honest, recs...)
			}
		}
		bringHonest(300)
		flood := many(t, 6000, 1)
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
		require.Positive(t, counts.of(counts.refused, "near_full"), "records above the share wait")
		t.Logf("held %d, of %d honest %d; refused %d of %d", k.Index.Len(), len(honest), found, counts.of(counts.refused, "near_full"), len(flood))
	})
}

// TestSummaryFollowsTheIndex: a kept summary ends some time after the next change of the index, and not before.
func TestSummaryFollowsTheIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, _ := accepting(t)
		c := cellOfBerlin(4)
		recs := many(t, 5, 1)
		for n, r := range recs {
			require.Equal(t, n, k.splits.summaryOf(c).Count)
			bring(k, from(fmt.Sprintf("198.18.%d.0/24", n)), c, []*records.Record{r})
			time.Sleep(summaryTTL - 1)
			require.Equal(t, n, k.splits.summaryOf(c).Count)
			time.Sleep(time.Nanosecond)
		}
		full := k.splits.summaryOf(c)
		require.Equal(t, 5, full.Count)
		time.Sleep(summaryTTL)
		require.Equal(t, full, k.splits.summaryOf(c))
		require.True(t, k.Index.Remove(recs[0].Name()))
		require.Equal(t, 4, k.splits.summaryOf(c).Count, "the kept summary was old")
		time.Sleep(30 * 24 * time.Hour)
		k.Index.Expire(time.Now())
		require.Zero(t, k.splits.summaryOf(c).Count)
	})
}

// Hundreds of thousands of records from three prefixes fill a leaf, which cannot split, and honest
// records stay.
func TestFloodOfALeaf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, _ := accepting(t)
		c := cellOfBerlin(geo.DeepLen)
		honest := many(t, 200, 1)
		for i, r := range honest {
			refused, _ := bring(k, from(fmt.Sprintf("198.18.%d.0/24", i)), c, []*records.Record{r})
			require.Empty(t, refused)
		}
		for i := range 3 {
			bring(k, from(fmt.Sprintf("203.0.%d.0/24", i)), c, many(t, 4000, 100))
		}
		require.LessOrEqual(t, k.Index.Len(), cell.LeafFull)
		for _, r := range honest {
			_, ok := k.Index.Get(r.Name())
			require.True(t, ok)
		}
		require.Zero(t, splitsAt(k))
		refused, _ := bring(k, from("203.0.0.0/24"), c, many(t, 1, 1))
		require.Len(t, refused, 1)
		require.ErrorIs(t, refused[0], fault.LimitReached)
	})
}

// A large cell splits: its keeper drops unnecessary records, sends hints to publishers, and trusts
// no summary above its own records.
func TestKeeperSplitsCell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, _ := accepting(t)
		k.authority.own.Remove(cellOfBerlin(5))
		c := cellOfBerlin(4)
		recs := many(t, cell.Full+500, 20)
		_, some := k.splits.partial([]records.CellKey{c})
		require.False(t, some)
		refused, splits := bring(k, source{exempt: true}, c, recs)
		require.Empty(t, refused)
		require.Len(t, splits, 1)
		part, some := k.splits.partial([]records.CellKey{cellOfBerlin(3), c})
		require.True(t, some)
		require.Equal(t, c, part)
		require.Equal(t, c.String(), splits[0].Cell)
		require.Len(t, splits[0].Children, 1)
		require.Equal(t, cell.Split, k.splits.phase(c))
		sampled := 0
		for _, r := range recs {
			if cell.Rank(r.Name()) < splits[0].SampleBelow {
				sampled++
			}
		}
		require.Equal(t, cell.SampleSize, sampled)
		sum := k.splits.summaryOf(c)
		require.Equal(t, len(recs), sum.Count)

		plan := compile(t, query.Query{Sort: query.SortPrice, Limit: 5})
		q := &pb.QueryRequest{Query: plan.Query().Proto(), Cells: []string{c.String()}}
		resp := k.server.respond(source{}, &pb.Request{Op: &pb.Request_Query{Query: q}}, nil).GetQuery()
		require.Len(t, resp.Envelopes, 5)
		require.Len(t, resp.Splits, 1)
		worst := 0.5 // all prices are 1
		q.Worst = &worst
		resp = k.server.respond(source{}, &pb.Request{Op: &pb.Request_Query{Query: q}}, nil).GetQuery()
		require.Empty(t, resp.Envelopes)
		require.True(t, resp.Withheld)
		require.InDelta(t, 1, resp.Bound, 0)
	})
}

// A hint applies to its keeper only, and expires.
func TestSplitHints(t *testing.T) {
	h, now := newSplitHints(), time.Now()
	r := many(t, 1, 1)[0]
	c := cellOfBerlin(4)
	var s cell.Summary
	s.Add(r)
	child, _ := cell.ChildOf(c.Cell, r)
	split := &pb.Split{Cell: c.String(), Children: []*pb.Summary{s.Proto(child)}}
	asked := func(o records.CellKey) bool { return o == c }
	require.True(t, h.wants("a", c, r, now))
	require.NoError(t, h.add("a", []*pb.Split{split}, asked, now))
	require.False(t, h.wants("a", c, r, now))
	require.True(t, h.wants("b", c, r, now))
	require.True(t, h.isSplit(c, now))
	require.NoError(t, h.add("a", []*pb.Split{{Cell: c.String()}}, asked, now.Add(hintTTL/2)))
	require.False(t, h.wants("a", c, r, now.Add(hintTTL-1)))
	require.True(t, h.wants("a", c, r, now.Add(hintTTL)), "an addition does not extend the lifetime")
	require.False(t, h.isSplit(c, now.Add(2*hintTTL)))
	require.ErrorIs(t, h.add("a", []*pb.Split{{Cell: cellOfBerlin(5).String()}}, asked, now), fault.Unauthentic)
	require.ErrorIs(t, h.add("a", []*pb.Split{{Cell: "x"}}, asked, now), fault.Unauthentic)
}

// lie changes a node's responses.
func (n *lightNode) lie(change func(*pb.Response)) {
	n.host.SetStreamHandler(Protocol("test"), func(s network.Stream) {
		defer func() { _ = s.Close() }()
		c := requestCodec(s)
		for {
			req := new(pb.Request)
			if err := c.ReadMessage(req); err != nil {
				return
			}
			resp := n.server.respond(n.Limits.sourceOf(s.Conn()), req, nil)
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
	synctest.Test(t, func(t *testing.T) {
		w := newLightCluster(t, 24)
		defer w.close()
		recs := city(t, 3000, 24*time.Hour)
		for batch := range slices.Chunk(recs, 500) {
			w.nodes[0].Store(t.Context(), batch)
		}
		time.Sleep(3 * time.Minute)
		plans := []*query.Plan{
			compile(t, query.Query{Sort: query.SortPrice, Limit: 5, Explain: true}),
			compile(t, query.Query{Sort: query.SortScore, Limit: 5, Explain: true}),
		}
		ask := func(n *lightNode) (work int) {
			for _, plan := range plans {
				found, err := n.Query(t.Context(), plan)
				require.NoError(t, err)
				require.Equal(t, best(plan, recs), namesOf(found.Records)[:5])
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
				*s.MaxUptime = 100
			},
			"too bad": func(s *pb.Summary) {
				for _, p := range s.Prices {
					p.Price = math.MaxFloat64
				}
				s.MaxUptime, s.MinErrorRate, s.MinResponseMs = nil, nil, nil
			},
		} {
			asker := w.nodes[5]
			liar := w.node(asker.asker.askingOrder(newKeeperSet(nearest(routingKey(global), w.dht.peers, Replicas), nil))[1])
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
			liar.host.SetStreamHandler(Protocol("test"), liar.server.rpc.Serve)
		}
	})
}

// A new keeper of a split cell does not take the sample for all records.
func TestNewKeeperOfSplitCell(t *testing.T) {
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
		for i := 0; !slices.Contains(nearest(routingKey(global), append(slices.Clone(w.dht.peers), id), Replicas), id) || i == 0; i++ {
			id = peer.ID(fmt.Sprintf("joiner %d", i))
		}
		joined := w.join(id, Limits{Sync: -1})
		other := w.keepersOf(global)[0]
		if other == joined {
			other = w.keepersOf(global)[1]
		}
		in := joined.store.newHandler(source{exempt: true}, true) // like SYNC
		var sampled uint64
		other.splits.with(global, func(x *cell.Cell) { sampled = x.Below() })
		for _, r := range recs {
			if cell.Rank(r.Name()) < sampled {
				_, err := in.take(r, []records.CellKey{global})
				require.NoError(t, err)
			}
		}
		in.finish()
		require.Equal(t, cell.SampleSize, joined.Index.Len())
		require.Equal(t, cell.Whole, joined.splits.phase(global))
		time.Sleep(2 * maintainEvery)
		require.Equal(t, cell.Split, joined.splits.phase(global))
		require.Contains(t, joined.asker.lacks([]records.CellKey{global}), "the cell "+global.String()+" has so many offers that it has split")
		plan := compile(t, query.Query{Sort: query.SortPrice, Limit: 20})
		for _, n := range []*lightNode{joined, w.nodes[3]} {
			found, err := n.Query(t.Context(), plan)
			require.NoError(t, err)
			require.True(t, found.Complete, found.Reason)
			require.Equal(t, best(plan, recs), namesOf(found.Records)[:20])
		}
	})
}

// A record handed over by a keeper of the surrounding cell does not count for the address of that
// keeper; the same record from any other peer does.
func TestHandedOverFromAnotherKeeper(t *testing.T) {
	k, _ := accepting(t)
	c, around := cellOfBerlin(geo.MaxLen+1), cellOfBerlin(geo.MaxLen)
	stranger, keeper := peer.ID("stranger"), k.Router.Nearby(routingKey(around), 1)[0]
	for id, want := range map[peer.ID]bool{stranger: true, keeper: false} {
		r := many(t, 1, 1)[0]
		o := from("203.0.113.0/24")
		o.peer = id
		refused, _ := bring(k, o, c, []*records.Record{r})
		require.Empty(t, refused)
		_, known := k.splits.prefixes.Get(r.Name())
		require.Equal(t, want, known)
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
	require.Equal(t, want, w.nodes[5].client.rank(slices.Clone(ids)))
	self := append([]peer.ID{w.nodes[5].Self}, ids[:2]...)
	require.Equal(t, self, w.nodes[5].client.rank(slices.Clone(self)))
}

// A keeper whose clock differs is not a liar, however much: its untimely records are left out and counted.
func TestUntimelyRecordsInAnswers(t *testing.T) {
	p, now := newProvider(t), time.Now()
	plan := compile(t, query.Query{})
	q := cellQuery{plan: plan, cells: plan.Cells(1), worst: math.Inf(1)}
	for _, issued := range []time.Duration{-2*time.Hour - time.Second, -100 * time.Hour, 3 * time.Minute, 25 * time.Hour} {
		stamp := records.Stamp{Sequence: 1, Issued: now.Add(issued), Expires: now.Add(issued + 2*time.Hour)}
		untimely, err := records.Sign("test", p.key, offer("one"), stamp)
		require.NoError(t, err)
		valid := p.sign(t, offer("two"), 1, now)
		resp := &pb.QueryResponse{Total: 2, Envelopes: [][]byte{untimely.Envelope(), valid.Envelope()}}
		a, err := verifyAnswer(q, resp, newVerifier(t), now)
		require.NoError(t, err)
		require.Equal(t, []*records.Record{valid}, a.records)
		require.Len(t, a.left, 1)
		require.Zero(t, a.unread())
		require.Equal(t, 1, a.total, "the total does not count a record that the answer leaves out")
	}
}

// Splits of other cells, and malformed splits, are violations of the protocol.
func TestMalformedSplits(t *testing.T) {
	plan := compile(t, query.Query{})
	q := cellQuery{plan: plan, cells: plan.Cells(1), worst: math.Inf(1)}
	global := q.cells[0].String()
	for name, splits := range map[string][]*pb.Split{
		"another cell": {{Cell: cellOfBerlin(4).String()}},
		"no cell":      {{Cell: "x"}},
		"twice":        {{Cell: global}, {Cell: global}},
		"no child":     {{Cell: global, Children: []*pb.Summary{{Cell: "u33", Count: 1}}}},
	} {
		_, err := verifyAnswer(q, &pb.QueryResponse{Splits: splits}, newVerifier(t), time.Now())
		require.ErrorIs(t, err, fault.Unauthentic, name)
	}
	a, err := verifyAnswer(q, &pb.QueryResponse{Splits: []*pb.Split{{Cell: global}}}, newVerifier(t), time.Now())
	require.NoError(t, err)
	require.Len(t, a.splits, 1)
}
