package keeper

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// globalCell is the cell of all compute offers.
func globalCell() records.CellKey {
	return records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: geo.Global}
}

// crowded returns a network whose cells take few records, which never compares.
func crowded(t testing.TB, peers, capacity int) *lightCluster {
	return newLimitedCluster(t, peers, protocol.Limits{Sync: -1, Cell: capacity, StoreRate: 1e6, StoreBurst: 1e6})
}

// announce stores records through a node.
func (w *lightCluster) announce(n *lightNode, recs []*records.Record) (outcomes []records.Outcome) {
	for some := range slices.Chunk(recs, 500) {
		outcomes = append(outcomes, n.Store(w.t.Context(), some)...)
	}
	return outcomes
}

// dense returns records at one place, each of one provider. Their places differ by centimetres.
func dense(t testing.TB, n int, lives time.Duration) []*records.Record {
	recs := make([]*records.Record, n)
	for i := range recs {
		o := keepertest.Offer(fmt.Sprint("dense", i), keepertest.Priced(float64(i)))
		o.Metadata.Subtype = ""
		r, err := records.Sign("test", keepertest.NewProvider(t).Key, o, records.Stamp{Sequence: 1, Issued: time.Now(), Expires: time.Now().Add(lives)})
		require.NoError(t, err)
		recs[i] = r
	}
	return recs
}

// fullLevels returns the lengths of the cells that are full at any node.
func (w *lightCluster) fullLevels() (levels []int) {
	for _, n := range w.nodes {
		for _, c := range n.cells.AllFull() {
			if n := c.Cell.Len(); !slices.Contains(levels, n) {
				levels = append(levels, n)
			}
		}
	}
	slices.Sort(levels)
	return levels
}

// questions asks for every order, worldwide and in discs, with filters and texts.
func questions(t testing.TB) map[string]*queries.Plan {
	plans := make(map[string]*queries.Plan)
	add := func(name string, q query.Query, where ...string) {
		for _, text := range where {
			c, err := queries.ParseClause(text)
			require.NoError(t, err)
			q.Where = append(q.Where, c)
		}
		q.Seed, q.ExactTotal = 7, true
		plans[name] = keepertest.Compile(t, q)
	}
	for _, sort := range []query.Sort{
		query.SortScore, query.SortDistance, query.SortPrice, query.SortUptime, query.SortResponseTime, query.SortRandom, query.SortStable,
	} {
		for _, radius := range []float64{0, 3, 50, 2000} {
			for _, limit := range []int{3, 100} {
				q := query.Query{Sort: sort, Limit: limit}
				if radius > 0 || sort == query.SortDistance {
					q.Near = &query.Near{Latitude: 31.22, Longitude: 121.46}
				}
				if radius > 0 {
					q.Near.RadiusKM = &radius
				}
				add(fmt.Sprintf("%d by %s within %g km", limit, sort, radius), q)
			}
		}
		q := query.Query{Sort: sort, Countries: []string{"FJ"}}
		if sort == query.SortDistance {
			q.Near = &query.Near{Latitude: 52.53, Longitude: 13.41}
		}
		add(fmt.Sprintf("of a country by %s", sort), q)
		q.Countries, q.Limit = nil, 10
		add(fmt.Sprintf("with an H100 by %s", sort), q, "compute.gpus.model=H100")
		q.Attributes = map[string]string{"tier": "gold"}
		add(fmt.Sprintf("with an attribute by %s", sort), q)
	}
	add("without a place", query.Query{Where: []query.Clause{{Field: "location.latitude", Op: query.OpStated, Not: true}}})
	return plans
}

// requireExact asks a node everything: each answer is complete, and has exactly the matches and their number.
func (w *lightCluster) requireExact(n *lightNode, plans map[string]*queries.Plan, recs []*records.Record) {
	t := w.t
	for _, name := range slices.Sorted(maps.Keys(plans)) {
		plan := plans[name]
		found, err := n.Query(t.Context(), plan)
		require.NoError(t, err)
		require.True(t, found.Complete, "%s: %s", name, found.Reason)
		require.Equal(t, best(plan, recs), keepertest.NamesOf(found.Records)[:min(plan.Limit(), len(found.Records))], name)
		matches := 0
		for _, r := range recs {
			if !r.Expired(time.Now()) && plan.Match(r) {
				matches++
			}
		}
		if !found.AtLeast {
			require.Equal(t, matches, found.Total, name)
		} else {
			require.LessOrEqual(t, found.Total, matches, name)
			require.True(t, !plan.ExactTotal() || slices.ContainsFunc(w.fullLevels(), func(n int) bool { return n >= geo.MaxLen }), name)
		}
	}
}

// requireCounts has one peer count the offers of the whole world by cell, and look for the cheapest of each cell.
func (w *lightCluster) requireCounts(n *lightNode, recs []*records.Record, where ...string) {
	t := w.t
	q := query.Query{Type: "compute", Sort: query.SortPrice, Limit: 1, ExactTotal: true}
	for _, text := range where {
		c, err := queries.ParseClause(text)
		require.NoError(t, err)
		q.Where = append(q.Where, c)
	}
	plan := keepertest.Compile(t, q)
	places := append(geo.Global.Children(), geo.Global) // the last for those without a place
	unplaced := plan.Query()
	unplaced.Where = append(unplaced.Where, query.Clause{Field: "location.latitude", Op: query.OpStated, Not: true})
	found, err := n.Count(t.Context(), plan, places[:32], false)
	require.NoError(t, err)
	nowhere, err := n.Count(t.Context(), keepertest.Compile(t, unplaced), places[32:], true)
	require.NoError(t, err)
	want, least, menus := make([]int, len(places)), make([]float64, len(places)), make([]query.Menu, len(places))
	for _, r := range recs {
		if r.Expired(time.Now()) || !plan.Match(r) {
			continue
		}
		i := len(places) - 1
		if at, placed := r.Facts().Place(); placed {
			i = slices.IndexFunc(places, func(c geo.Cell) bool { return c.Contains(at) })
		}
		if price := plan.Value(r); want[i] == 0 || price < least[i] {
			least[i] = price
		}
		want[i]++
		menus[i].Join(plan.Menu(r))
	}
	for i, f := range append(found, nowhere...) {
		require.True(t, f.Complete, "%s: %s", places[i], f.Reason)
		require.Equal(t, want[i], f.Total, places[i])
		require.Equal(t, menus[i], f.Menu, places[i])
		if want[i] > 0 {
			require.Equal(t, least[i], plan.Value(f.Records[0]))
		}
	}
}

// nowhere returns records without a place.
func nowhere(t testing.TB, n int) []*records.Record {
	recs := make([]*records.Record, n)
	for i := range recs {
		recs[i] = keepertest.NewProvider(t).Sign(t, keepertest.Offer(fmt.Sprint("nowhere", i), keepertest.Nowhere), 1, time.Now())
	}
	return recs
}

// Cells are full at several levels, and every answer is exact: of all orders, filters, texts and counts, at keepers and others.
func TestFullCellsAnswerExactly(t *testing.T) {
	for _, peers := range []int{5, 25} {
		t.Run(fmt.Sprintf("%d peers", peers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := crowded(t, peers, 12)
				defer w.close()
				recs := append(world(t, 600, atCities(t)), nowhere(t, 7)...)
				for _, o := range w.announce(w.nodes[0], recs) {
					require.NoError(t, o.Err)
				}
				if peers > keep.Network {
					require.Subset(t, w.fullLevels(), []int{0, 1, 2})
				} else {
					require.Empty(t, w.fullLevels(), "each peer keeps each cell")
				}
				plans := questions(t)
				plans["the middle page"] = middlePage(t, recs)
				for _, n := range []*lightNode{w.nodes[1], w.nodes[3]} {
					w.requireExact(n, plans, recs)
					w.requireCounts(n, recs)
					w.requireCounts(n, recs, "compute.gpus.model=H100")
				}
			})
		})
	}
}

// One place has more records than cells of all lengths but the last take. Those that were stored before the cell of six characters was
// full are found, before and after their providers hear of it.
func TestDenseCellsGoDeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := crowded(t, 25, 20)
		defer w.close()
		recs := dense(t, 19, 24*time.Hour)
		for i := range 28 { // around it, in the cells of nine
			o := keepertest.Offer(fmt.Sprint("near", i), keepertest.Priced(float64(100+i)))
			lat, lon := 52.52+float64(i+1)*5e-5, 13.405
			o.Location.Latitude, o.Location.Longitude, o.Metadata.Subtype = &lat, &lon, ""
			recs = append(recs, keepertest.NewProvider(t).Sign(t, o, 1, time.Now()))
		}
		plans := map[string]*queries.Plan{}
		for _, radius := range []float64{0.01, 1, 100} {
			for _, sort := range []query.Sort{query.SortPrice, query.SortDistance, query.SortStable} {
				q := query.Query{Near: &query.Near{Latitude: 52.52, Longitude: 13.405, RadiusKM: &radius}, Sort: sort}
				plans[fmt.Sprint(sort, radius)] = keepertest.Compile(t, q)
			}
		}
		for i, r := range recs { // one after the other, so that cells become full between
			for _, o := range w.nodes[i%25].Store(t.Context(), []*records.Record{r}) {
				require.NoError(t, o.Err)
			}
			if i%14 == 13 {
				w.requireExact(w.nodes[3], plans, recs[:i+1])
			}
		}
		require.Contains(t, w.fullLevels(), geo.MaxLen)
		w.requireExact(w.nodes[3], plans, recs)
		for _, n := range w.nodes {
			n.announceAgain(t, recs)
		}
		w.requireExact(w.nodes[3], plans, recs)
	})
}

// announceAgain stores those records that a node stored first, as providers do.
func (n *lightNode) announceAgain(t *testing.T, recs []*records.Record) {
	for _, o := range n.Store(t.Context(), recs) {
		require.NoError(t, o.Err)
	}
}

// A cell of nine characters has no parts. What it has no room for is refused by name, and its answers say that they are incomplete. One
// address prefix has no more than its share.
func TestLastCellIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := crowded(t, 25, 20)
		defer w.close()
		recs := dense(t, 50, 24*time.Hour)
		refused := 0
		for _, o := range w.announce(w.nodes[0], recs) {
			if o.Err != nil {
				require.ErrorIs(t, o.Err, fault.LimitReached)
				require.Equal(t, "cells", fault.FieldOf(o.Err))
				require.Contains(t, o.Err.Error(), keepertest.CellOfBerlin(geo.DeepLen).String())
				refused++
			}
		}
		require.Positive(t, refused)
		require.LessOrEqual(t, refused, 30)
		found, err := w.nodes[3].Query(t.Context(), keepertest.Compile(t, query.Query{}))
		require.NoError(t, err)
		require.False(t, found.Complete)
		require.Contains(t, found.Reason, keepertest.CellOfBerlin(geo.DeepLen).String())
		far := 1.0
		found, err = w.nodes[3].Query(t.Context(), keepertest.Compile(t, query.Query{Near: &query.Near{Latitude: 40, Longitude: 10, RadiusKM: &far}}))
		require.NoError(t, err)
		require.True(t, found.Complete, found.Reason)
	})
}

// The records without a place have a share of the global cell, and no other cell.
func TestUnplacedAreFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := crowded(t, 25, 20)
		defer w.close()
		recs := world(t, 200, atCities(t))
		for _, o := range w.announce(w.nodes[0], append(slices.Clone(recs), nowhere(t, 20)...)) {
			require.NoError(t, o.Err)
		}
		plan := keepertest.Compile(t, query.Query{Limit: 1000, ExactTotal: true})
		found, err := w.nodes[3].Query(t.Context(), plan)
		require.NoError(t, err)
		require.True(t, found.Complete, found.Reason)
		require.Equal(t, 220, found.Total)
		for _, o := range w.announce(w.nodes[0], nowhere(t, 22)[20:]) {
			require.ErrorIs(t, o.Err, fault.LimitReached)
		}
		found, err = w.nodes[3].Query(t.Context(), plan)
		require.NoError(t, err)
		require.False(t, found.Complete)
		require.Contains(t, found.Reason, "more offers without a place")
	})
}

// One provider at one place, or one address prefix, makes questions dearer. It makes no answer wrong or incomplete.
func TestFloodOfACell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := crowded(t, 25, 40)
		defer w.close()
		honest := world(t, 30, atCities(t))
		for _, o := range w.announce(w.nodes[0], honest) {
			require.NoError(t, o.Err)
		}
		plan := keepertest.Compile(t, query.Query{Limit: 10, Sort: query.SortScore, Explain: true, Countries: []string{"DE", "FJ"}})
		ask := func() (requests int, bytes int) {
			w.nodes[3].counts.Forget()
			found, err := w.nodes[3].Query(t.Context(), plan)
			require.NoError(t, err)
			require.True(t, found.Complete, found.Reason)
			return w.nodes[3].counts.Operations("ask"), len(found.Records)
		}
		before, _ := ask()
		flooder := keepertest.NewProvider(t)
		var flood []*records.Record
		for i := range 400 {
			flood = append(flood, flooder.Sign(t, keepertest.Offer(fmt.Sprint("flood", i), func(o *records.Offer) {
				o.Location.Country, o.Metadata.Subtype = "XX", ""
			}), 1, time.Now()))
		}
		w.announce(w.nodes[9], flood)
		after, _ := ask()
		t.Logf("a worldwide question costs %d requests, with a flood of %d records at one place %d", before, len(flood), after)
		require.LessOrEqual(t, after, 3*(1+32*geo.DeepLen))
		more := world(t, 60, atCities(t))
		for _, o := range w.announce(w.nodes[0], more) {
			require.NoError(t, o.Err)
		}
		w.requireExact(w.nodes[5], map[string]*queries.Plan{"honest": plan}, append(more, honest...))
	})
}

// A minority of keepers lies about what is full: every answer is complete and exact.
func TestLiarsAboutFullCells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := crowded(t, 25, 40)
		defer w.close()
		recs := world(t, 300, atCities(t))
		for _, o := range w.announce(w.nodes[0], recs) {
			require.NoError(t, o.Err)
		}
		plan := keepertest.Compile(t, query.Query{Sort: query.SortPrice, Limit: 20, ExactTotal: true})
		asker := w.nodes[slices.IndexFunc(w.nodes, func(n *lightNode) bool { return !slices.Contains(w.keepersOf(globalCell()), n) })]
		for name, lie := range map[string]func(*pb.QueryResponse, []string){
			"whole": func(r *pb.QueryResponse, _ []string) { r.Full = nil },
			"full": func(r *pb.QueryResponse, cells []string) {
				r.Full, r.Envelopes, r.Total, r.Withheld, r.Beyond = cells, nil, 0, false, nil
			},
		} {
			liar := w.node(asker.askingOrder(keep.NewSet(keep.Nearest(keep.KeyOf(globalCell()), w.dht.peers, keep.Replicas), nil))[0])
			liar.lieTo(func(req *pb.Request, resp *pb.Response) {
				if resp.GetQuery() != nil {
					lie(resp.GetQuery(), req.GetQuery().GetCells())
				}
			})
			time.Sleep(2 * idleFor) // earlier streams expire
			w.requireExact(asker, map[string]*queries.Plan{name: plan}, recs)
			liar.host.SetStreamHandler(protocol.Protocol("test"), liar.server.rpc.Serve)
			time.Sleep(10 * time.Minute)
		}
	})
}

// A provider remembers for hours which keepers are full for which cells, and leaves only these out. TEST_KEEPER_PEERS plays another
// number of peers.
func TestPublisherRemembersFullCells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := crowded(t, number(t, "TEST_KEEPER_PEERS", 60), 26)
		defer w.close()
		w.announce(w.nodes[0], world(t, 400, atCities(t))) // as many cells' fulls as 300,000
		providers := make([]keepertest.Provider, 20)
		for i := range providers {
			providers[i] = keepertest.NewProvider(t)
		}
		publisher := w.nodes[9]
		stores := func(sequence uint64) (mean float64) {
			publisher.counts.Forget()
			random := rand.New(rand.NewPCG(3, 3))
			for i, p := range providers {
				r := p.Sign(t, worldOffer(random, i, atCities(t)), sequence, time.Now())
				o := publisher.Store(t.Context(), []*records.Record{r})[0]
				require.NoError(t, o.Err)
				require.Equal(t, o.Stored.Of, o.Stored.On)
				_, err := w.nodes[5].Resolve(t.Context(), r.Key())
				require.NoError(t, err)
			}
			return float64(publisher.counts.Operations("deliver")) / float64(len(providers))
		}
		first, second := stores(1), stores(2)
		t.Logf("%d peers: the first announcement of an offer has %.1f stores, the second %.1f", len(w.nodes), first, second)
		require.Less(t, second, first)
		time.Sleep(5 * time.Hour)
		require.Greater(t, stores(3), second, "forgotten")
	})
}

// living is a network that compares, all of whose peers know each other for long.
func living(t testing.TB, peers, capacity int, sync time.Duration) *lightCluster {
	w := newLimitedCluster(t, peers, protocol.Limits{Cell: capacity, StoreRate: 1e6, StoreBurst: 1e6, Sync: sync})
	for _, n := range w.nodes {
		n.sync.Table()
		n.sync.Know.SetInformed(true, time.Now())
	}
	time.Sleep(25 * time.Minute)
	return w
}

// A new keeper of full cells takes over that they are full, from most of its partners, and pulls nothing for them. No answer is wrong on
// the way.
func TestJoinerOfFullCells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := living(t, 25, 40, 0)
		defer w.close()
		recs := append(world(t, 300, atCities(t)), nowhere(t, 5)...)
		for _, o := range w.announce(w.nodes[0], recs) {
			require.NoError(t, o.Err)
		}
		time.Sleep(time.Minute)
		id := w.nodes[0].Self
		for i := 0; !slices.Contains(keep.Nearest(keep.KeyOf(globalCell()), append(slices.Clone(w.dht.peers), id), keep.Replicas), id) || i == 0; i++ {
			id = peer.ID(fmt.Sprintf("joiner %d", i))
		}
		joined := w.join(id, protocol.Limits{Cell: 40})
		plan := keepertest.Compile(t, query.Query{Sort: query.SortPrice, Limit: 400, ExactTotal: true})
		cells := protocol.CellNames(plan.Cells(1))
		for range 120 {
			time.Sleep(time.Second)
			resp, err := joined.ServeQuery(t.Context(), &pb.QueryRequest{Query: queries.Proto(plan.Query()), Cells: cells})
			require.NoError(t, err)
			require.True(t, len(resp.NotKept) > 0 || len(resp.Full) > 0, "it never takes its few records for all")
			found, err := joined.Query(t.Context(), plan)
			require.NoError(t, err)
			if found.Complete {
				require.Equal(t, len(recs), found.Total)
			}
		}
		require.True(t, joined.cells.Full(globalCell()))
		resp, err := joined.ServeQuery(t.Context(), &pb.QueryRequest{Query: queries.Proto(plan.Query()), Cells: cells})
		require.NoError(t, err)
		require.Empty(t, resp.NotKept)
		require.Len(t, resp.Envelopes, 5, "those without a place")
		w.requireExact(joined, map[string]*queries.Plan{"all": plan}, recs)
	})
}

// When most records are gone, the marks end, the keepers compare, and the cells are whole again. Every complete answer on the way is exact.
func TestFullCellsBecomeWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := living(t, 22, 40, 20*time.Minute)
		defer w.close()
		recs := world(t, 120, atCities(t))
		w.announce(w.nodes[0], recs)
		require.True(t, slices.ContainsFunc(w.nodes, func(n *lightNode) bool { return n.cells.Full(globalCell()) }))
		plan := keepertest.Compile(t, query.Query{Sort: query.SortPrice, Limit: 400, ExactTotal: true})
		keeper := keepertest.NewProvider(t)
		random := rand.New(rand.NewPCG(1, 2))
		var few []*records.Record
		complete := 0
		for hour := range 80 { // the last refusal is at hour 12
			if hour%12 == 0 { // 10 providers stay
				few = nil
				for i := range 10 {
					o := worldOffer(random, i, atCities(t))
					o.ID = fmt.Sprint("stays", i)
					few = append(few, keeper.Sign(t, o, uint64(1+hour), time.Now()))
				}
				w.announce(w.nodes[1], few)
			}
			found, err := w.nodes[7].Query(t.Context(), plan)
			require.NoError(t, err)
			if found.Complete {
				complete++
				live := len(few)
				for _, r := range recs {
					if !r.Expired(time.Now()) {
						live++
					}
				}
				require.Equal(t, live, found.Total, "hour %d", hour)
			}
			time.Sleep(time.Hour)
			for _, n := range w.nodes {
				n.Index.Expire(time.Now())
			}
		}
		require.Greater(t, complete, 70)
		for _, n := range w.nodes {
			require.Empty(t, n.cells.AllFull())
			require.Empty(t, n.cells.Lacks(globalCell()))
		}
		w.nodes[7].counts.Forget()
		w.requireExact(w.nodes[7], map[string]*queries.Plan{"all": plan}, few)
		require.LessOrEqual(t, w.nodes[7].counts.Operations("ask"), 3)
	})
}

// The whole world, played: 300,000 records as people live, at 12 peers that keep nearly all cells, in a network that is not small.
// TEST_KEEPER_RECORDS and TEST_KEEPER_CELL play other numbers.
func TestWorldPlayed(t *testing.T) {
	n, capacity := number(t, "TEST_KEEPER_RECORDS", 3000), number(t, "TEST_KEEPER_CELL", 200)
	synctest.Test(t, func(t *testing.T) {
		w := newLimitedCluster(t, 0, protocol.Limits{})
		w.dht.unseen = keep.AcceptWithin
		for i := range 12 {
			w.join(peer.ID(fmt.Sprintf("light %d", i)), protocol.Limits{Sync: -1, Cell: capacity, StoreRate: 1e6, StoreBurst: 1e6, Query: time.Minute})
		}
		defer w.close()
		recs := world(t, n, atCities(t))
		for _, o := range w.announce(w.nodes[0], recs) {
			require.NoError(t, o.Err)
		}
		t.Logf("%d records, cells of %d, full at lengths %v", n, capacity, w.fullLevels())
		asker := w.nodes[7]
		radius := 500.0
		country := 1000.0
		for name, q := range map[string]query.Query{
			"the world, 10 by price": {Sort: query.SortPrice, Limit: 10}, "the world, 100 by score": {Sort: query.SortScore},
			"the world, 10 at random": {Sort: query.SortRandom, Limit: 10, Seed: 7}, "the world, 10 nearest": {Sort: query.SortDistance, Limit: 10},
			"a country's name": {Countries: []string{"FJ"}, Sort: query.SortPrice}, "a text": {Attributes: map[string]string{"tier": "gold"}},
			"500 km":              {Near: &query.Near{RadiusKM: &radius}, Sort: query.SortPrice},
			"1,000 km, a country": {Near: &query.Near{RadiusKM: &country}, Sort: query.SortPrice},
		} {
			if q.Near != nil || q.Sort == query.SortDistance {
				if q.Near == nil {
					q.Near = new(query.Near)
				}
				q.Near.Latitude, q.Near.Longitude = 48.85, 2.35
			}
			q.Explain = true
			plan := keepertest.Compile(t, q)
			asker.counts.Forget()
			found, err := asker.Query(t.Context(), plan)
			require.NoError(t, err)
			require.True(t, found.Complete, "%s: %s", name, found.Reason)
			require.Equal(t, best(plan, recs), keepertest.NamesOf(found.Records)[:min(plan.Limit(), len(found.Records))], name)
			t.Logf("%-26s %4d cells, %4d requests", name, askedCells(found), asker.counts.Operations("ask"))
		}
		if n <= 3000 {
			w.requireExact(asker, questions(t), recs)
		}
		w.requireCounts(asker, recs)
	})
}

// askedCells counts the cells that a question asked about, from its notes.
func askedCells(found queries.Found) int {
	for _, note := range found.Notes {
		var n int
		if _, err := fmt.Sscanf(note, "asked about %d cells", &n); err == nil && strings.HasPrefix(note, "asked about ") {
			return n
		}
	}
	return 0
}
