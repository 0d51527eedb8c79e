package keeper

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/query/menu"
	"github.com/blackhole/blackhole/pkg/records"
)

// spread draws places.
type spread func(random *rand.Rand) (latitude, longitude float64)

// uniform draws places evenly on the sphere.
func uniform(random *rand.Rand) (latitude, longitude float64) {
	return math.Asin(2*random.Float64()-1) * 180 / math.Pi, 360*random.Float64() - 180
}

// atCities returns a spread around 300 cities of 40 regions. The n-th city has a weight of 1/n^0.6.
func atCities() spread {
	const cities, regions = 300, 40
	random := rand.New(rand.NewPCG(21, 22))
	type place struct{ latitude, longitude float64 }
	var centres [regions]place
	for i := range centres {
		centres[i] = place{-35 + 90*random.Float64(), 360*random.Float64() - 180}
	}
	var at [cities]place
	var below [cities]float64 // sum of the weights up to a city
	sum := 0.0
	for i := range at {
		centre := centres[random.IntN(regions)]
		at[i] = place{centre.latitude + 4*random.NormFloat64(), centre.longitude + 4*random.NormFloat64()}
		sum += math.Pow(float64(i+1), -0.6)
		below[i] = sum
	}
	return func(random *rand.Rand) (latitude, longitude float64) {
		i, _ := slices.BinarySearch(below[:], random.Float64()*sum)
		latitude = max(-90, min(90, at[i].latitude+0.2*random.NormFloat64()))
		return latitude, math.Remainder(at[i].longitude+0.2*random.NormFloat64(), 360)
	}
}

// world returns n records of one type, 20 of each provider. A few of them are in Fiji, have an attribute, or an H100.
func world(t testing.TB, n int, places spread) []*records.Record {
	random := rand.New(rand.NewPCG(11, 12))
	recs := make([]*records.Record, 0, n)
	now := time.Now()
	var p keepertest.Provider
	for i := range n {
		if i%20 == 0 {
			p = keepertest.NewProvider(t)
		}
		o := worldOffer(random, i, places)
		r, err := records.Sign("test", p.Key, o, records.Stamp{Sequence: 1, Issued: now, Expires: now.Add(24 * time.Hour)})
		require.NoError(t, err)
		recs = append(recs, r)
	}
	return recs
}

// worldOffer draws the offer of a number.
func worldOffer(random *rand.Rand, i int, places spread) records.Offer {
	lat, lon := places(random)
	uptime, response := 90+10*random.Float64(), uint64(1+random.IntN(2000))
	o := keepertest.Offer(fmt.Sprintf("s%d", i), keepertest.Priced(0.01+random.Float64()*10))
	o.Metadata.Subtype = ""
	o.Metadata.Endpoints = []string{fmt.Sprintf("https://o%d.net", i)}
	o.Location.Latitude, o.Location.Longitude = &lat, &lon
	o.Health = &records.Health{Status: "HEALTHY", UptimePercent: &uptime, ResponseTimeMs: &response}
	if random.IntN(200) == 0 {
		o.Location.Country = "FJ"
	}
	if random.IntN(500) == 0 {
		o.Metadata.Attributes = map[string]string{"tier": "gold"}
	}
	model := "T4"
	if random.IntN(100) == 0 {
		model = "H100"
	}
	o.Capabilities.Compute.GPUs = []records.GPU{{Model: model, MemoryMB: 16_000}}
	return o
}

// Worldwide queries over more records than one cell holds: every answer has exactly the best records, and says so. Above 100,000 records a
// model answers alone.
func TestWorldwideQueries(t *testing.T) {
	atSize(t)
	for name, places := range map[string]spread{"uniform": uniform, "cities": atCities()} {
		t.Run(name, func(t *testing.T) {
			if n := scaled(t, 0); n > 100_000 {
				requireModel(t, world(t, n, places), nil)
				return
			}
			synctest.Test(t, func(t *testing.T) { testWorld(t, world(t, scaled(t, 2200), places)) })
		})
	}
}

func testWorld(t *testing.T, recs []*records.Record) {
	w := newLightCluster(t, number(t, "BLACKHOLE_KEEPER_PEERS", 40))
	defer w.close()
	for i := range 5 {
		o := keepertest.Offer(fmt.Sprint("nowhere", i), keepertest.Nowhere)
		recs = append(recs, keepertest.NewProvider(t).Sign(t, o, 1, time.Now()))
	}
	for batch := range slices.Chunk(recs, 1000) {
		for _, o := range w.nodes[0].Store(t.Context(), batch) {
			require.NoError(t, o.Err)
		}
	}
	time.Sleep(10 * time.Minute)
	w.requireWorld(recs)
	if os.Getenv("BLACKHOLE_KEEPER_RECORDS") == "" {
		return
	}
	for _, n := range w.nodes {
		n.counts.Forget()
	}
	const quiet = 30 * time.Minute
	time.Sleep(quiet)
	lookups, summaries := 0, 0
	for _, n := range w.nodes {
		lookups += n.counts.Operations("lookup")
		summaries += n.counts.Operations("serve_summary")
	}
	t.Logf("%d records, %s without a change: %d lookups and %d requests for summaries of %d peers", len(recs), quiet, lookups, summaries, len(w.nodes))
}

// worldQueries are questions about the whole world.
func worldQueries(t testing.TB) map[string]*query.Plan {
	plans := make(map[string]*query.Plan)
	add := func(name string, q query.Query, where ...string) {
		for _, text := range where {
			c, err := query.ParseClause(text)
			require.NoError(t, err)
			q.Where = append(q.Where, c)
		}
		q.Explain, q.Seed = true, 7
		plans[name] = keepertest.Compile(t, q)
	}
	for _, sort := range []query.Sort{
		query.SortDistance, query.SortPrice, query.SortUptime, query.SortResponseTime, query.SortScore, query.SortRandom, query.SortStable,
	} {
		q := query.Query{Sort: sort, Limit: 10}
		if sort == query.SortDistance {
			q.Near = &query.Near{Latitude: 52.53, Longitude: 13.41}
		}
		add(fmt.Sprintf("10 by %s", sort), q)
	}
	add("100 by score", query.Query{})
	add("100 by price", query.Query{Sort: query.SortPrice})
	add("100 stable", query.Query{Sort: query.SortStable})
	add("country, 100 by score", query.Query{Countries: []string{"FJ"}})
	add("country, 3 by price", query.Query{Countries: []string{"FJ"}, Sort: query.SortPrice, Limit: 3})
	add("attribute, 100 by score", query.Query{Attributes: map[string]string{"tier": "gold"}})
	add("H100, 100 by score", query.Query{}, "compute.gpus.model=H100")
	add("H100, 10 by price", query.Query{Sort: query.SortPrice, Limit: 10}, "compute.gpus.model=H100")
	add("H100, 10 at random", query.Query{Sort: query.SortRandom, Limit: 10}, "compute.gpus.model=H100")
	return plans
}

// middlePage is the question for the page that begins in the middle of some records.
func middlePage(t testing.TB, recs []*records.Record) *query.Plan {
	q := query.Query{Sort: query.SortStable, Explain: true}
	first := keepertest.Compile(t, q)
	sorted := slices.SortedFunc(slices.Values(recs), func(a, b *records.Record) int {
		return query.Hit{Record: a, Value: first.Value(a)}.Compare(query.Hit{Record: b, Value: first.Value(b)})
	})
	q.After = query.After(sorted[len(sorted)/2])
	return keepertest.Compile(t, q)
}

// requireWorld asks one peer about the whole world.
func (w *lightCluster) requireWorld(recs []*records.Record) {
	t := w.t
	plans := worldQueries(t)
	plans[middle] = middlePage(t, recs)
	played := make(map[string]int)
	for _, name := range slices.Sorted(maps.Keys(plans)) {
		plan := plans[name]
		w.nodes[7].counts.Forget()
		found, err := w.nodes[7].Query(t.Context(), plan)
		require.NoError(t, err)
		cells, asked := searchedCells(found), w.nodes[7].counts.Operations("ask")
		played[name] = cells
		right := slices.Equal(best(plan, recs), keepertest.NamesOf(found.Records)[:min(plan.Limit(), len(found.Records))])
		t.Logf("%d records, %-27s %3d cells, %3d requests, exact %t, complete %t %s", len(recs), name, cells, asked, right, found.Complete, found.Reason)
		if os.Getenv("BLACKHOLE_KEEPER_RECORDS") != "" { // for figures, beyond what a search can ask
			require.True(t, right || !found.Complete, name)
			continue
		}
		require.True(t, right, name)
		require.True(t, found.Complete, "%s: %s", name, found.Reason)
	}
	requireModel(t, recs, played)
	for _, where := range []string{"", "compute.gpus.model=H100"} {
		w.requireCounts(recs, where)
	}
}

// requireCounts has one peer count the offers of the whole world by cell, and look for the cheapest of each cell.
func (w *lightCluster) requireCounts(recs []*records.Record, where string) {
	t := w.t
	q := query.Query{Type: "compute", Sort: query.SortPrice, Limit: 1, ExactTotal: true}
	if where != "" {
		c, err := query.ParseClause(where)
		require.NoError(t, err)
		q.Where = append(q.Where, c)
	}
	plan := keepertest.Compile(t, q)
	places := append(geo.Global.Children(), geo.Global) // the last for those without a place
	unplaced := plan.Query()
	unplaced.Where = append(unplaced.Where, query.Clause{Field: "location.latitude", Op: query.OpStated, Not: true})
	w.nodes[7].counts.Forget()
	found, err := w.nodes[7].Count(t.Context(), plan, places[:32], false)
	require.NoError(t, err)
	asked := w.nodes[7].counts.Operations("ask")
	nowhere, err := w.nodes[7].Count(t.Context(), keepertest.Compile(t, unplaced), places[32:], true)
	require.NoError(t, err)
	want, least, menus := make([]int, len(places)), make([]float64, len(places)), make([]menu.Menu, len(places))
	for _, r := range recs {
		if !plan.Match(r) {
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
	t.Logf("%d records, counts by cell %q: %d requests", len(recs), where, asked)
	for i, f := range append(found, nowhere...) {
		if !f.Complete && os.Getenv("BLACKHOLE_KEEPER_RECORDS") != "" { // more than a count can ask
			require.LessOrEqual(t, f.Total, want[i])
			continue
		}
		require.True(t, f.Complete, "%s: %s", places[i], f.Reason)
		require.Equal(t, want[i], f.Total, places[i])
		require.Equal(t, menus[i], f.Menu, places[i])
		if want[i] > 0 {
			require.Equal(t, least[i], plan.Value(f.Records[0]))
		}
	}
}
