package keeper

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// world returns n records of one type, evenly spread on the sphere, 20 of each provider.
func world(t testing.TB, n int) []*records.Record {
	random := rand.New(rand.NewPCG(11, 12))
	recs := make([]*records.Record, 0, n)
	now := time.Now()
	var p keepertest.Provider
	for i := range n {
		if i%20 == 0 {
			p = keepertest.NewProvider(t)
		}
		lat, lon := math.Asin(2*random.Float64()-1)*180/math.Pi, 360*random.Float64()-180
		uptime, response := 90+10*random.Float64(), uint64(1+random.IntN(2000))
		o := keepertest.Offer(fmt.Sprintf("s%d", i), keepertest.Priced(0.01+random.Float64()*10))
		o.Metadata.Subtype = ""
		o.Location.Latitude, o.Location.Longitude = &lat, &lon
		o.Health = &records.Health{Status: "HEALTHY", UptimePercent: &uptime, ResponseTimeMs: &response}
		r, err := records.Sign("test", p.Key, o, records.Stamp{Sequence: 1, Issued: now, Expires: now.Add(24 * time.Hour)})
		require.NoError(t, err)
		recs = append(recs, r)
	}
	return recs
}

// Worldwide queries over more records than one cell holds: an answer that says complete has exactly the best records, the
// others give a reason, and no query asks more cells than its bound.
func TestWorldwideQueries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLightCluster(t, 40)
		defer w.close()
		recs := world(t, scaled(t, 2200))
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
	})
}

// requireWorld asks one peer for the ten best records of the world in each order.
func (w *lightCluster) requireWorld(recs []*records.Record) {
	t := w.t
	complete := 0
	for _, sort := range []query.Sort{
		query.SortDistance, query.SortPrice, query.SortUptime, query.SortResponseTime, query.SortScore, query.SortRandom, query.SortStable,
	} {
		q := query.Query{Sort: sort, Limit: 10, Explain: true, Seed: 7}
		if sort == query.SortDistance {
			q.Near = &query.Near{Latitude: 52.53, Longitude: 13.41}
		}
		plan := keepertest.Compile(t, q)
		found, err := w.nodes[7].Query(t.Context(), plan)
		require.NoError(t, err)
		if found.Complete {
			complete++
			require.Equal(t, best(plan, recs), keepertest.NamesOf(found.Records)[:min(plan.Limit(), len(found.Records))], sort)
		} else {
			require.NotEmpty(t, found.Reason, sort)
		}
		require.LessOrEqual(t, searchedCells(found), maxSearchedCells, sort)
		t.Logf("%d records by %-10s %3d cells, complete %t %s", len(recs), sort, searchedCells(found), found.Complete, found.Reason)
	}
	require.GreaterOrEqual(t, complete, 4)
}
