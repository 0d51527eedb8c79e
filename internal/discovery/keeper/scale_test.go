package keeper

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// scaled is a number of records, which BLACKHOLE_KEEPER_RECORDS replaces.
func scaled(t testing.TB, usual int) int { return number(t, "BLACKHOLE_KEEPER_RECORDS", usual) }

// number is the number in a variable of the environment, or the usual one.
func number(t testing.TB, name string, usual int) int {
	text := os.Getenv(name)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// Very many records in one city, with most queries about the same few places: every answer is
// exact and complete, the load of keepers is balanced, and the records of one keeper are bounded.
func TestLoadOfHotCity(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		peers := 50
		if scaled(t, 0) > 0 { // for figures
			peers = 100
		}
		questions := min(1000, scaled(t, 2400)/15)
		w := newLightCluster(t, peers)
		defer w.close()
		recs := city(t, scaled(t, 2400), 24*time.Hour)
		for batch := range slices.Chunk(recs, 1000) {
			for _, o := range w.nodes[0].Store(t.Context(), batch) {
				require.NoError(t, o.Err)
			}
		}
		time.Sleep(5 * time.Minute)
		if len(recs) >= 20_000 { // smaller numbers are near the bounds, where cells may already merge
			requireBounded(t, w)
		}
		for _, n := range w.nodes {
			n.counts.Forget()
		}

		random := rand.New(rand.NewPCG(8, 9))
		skew := rand.NewZipf(random, 1.1, 1, 499)
		exact := 0
		for range questions {
			plan := keepertest.Compile(t, asked(random, skew))
			found, err := w.nodes[random.IntN(peers)].Query(t.Context(), plan)
			require.NoError(t, err)
			require.True(t, found.Complete, found.Reason)
			if slices.Equal(best(plan, recs), keepertest.NamesOf(found.Records)[:min(plan.Limit(), len(found.Records))]) {
				exact++
			}
		}
		require.Equal(t, questions, exact)
		hottest, median, held := w.load()
		t.Logf("%d records, %d peers, %d questions: the hottest keeper served %d, the median %d (%.1f times); most in an index: %d",
			len(recs), peers, questions, hottest, median, float64(hottest)/float64(median), held)
	})
}

// asked returns a query about one of a few hundred places, the first ones most often.
func asked(random *rand.Rand, skew *rand.Zipf) query.Query {
	place := rand.New(rand.NewPCG(skew.Uint64(), 1))
	radius := []float64{0.5, 2, 10}[random.IntN(3)]
	q := query.Query{Limit: 10, Sort: []query.Sort{query.SortDistance, query.SortPrice}[random.IntN(2)]}
	q.Near = &query.Near{
		Latitude: 52.52 + 0.2*(place.Float64()-0.5), Longitude: 13.405 + 0.3*(place.Float64()-0.5), RadiusKM: &radius,
	}
	return q
}

// load returns the queries served by the busiest and by the median keeper, of those that served
// any, and the maximum number of records of one keeper.
func (w *lightCluster) load() (hottest, median, held int) {
	var served []int
	for _, n := range w.nodes {
		if s := n.counts.Operations("serve_query"); s > 0 {
			served = append(served, s)
		}
		held = max(held, n.Index.Len())
	}
	slices.Sort(served)
	return served[len(served)-1], served[len(served)/2], held
}

// Very many valid records of as many providers as necessary, from three /24 networks, against all
// keepers of one city's cells: honest records from other networks are still found.
func TestFloodOfThreePrefixes(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		k, counts := accepting(t)
		c := keepertest.CellOfBerlin(4)
		hostile := keepertest.Many(t, scaled(t, 9000), records100)
		var honest []*records.Record
		share := len(hostile) / 10
		for round := range 10 { // honest records arrive before, during and after the flood
			for i := range 40 {
				recs := keepertest.Many(t, 1, 1)
				// a waiting record returns later, as publishers do
				for try := 0; try < 20; try++ {
					if refused, _ := bring(k, from(fmt.Sprintf("198.%d.%d.0/24", 18+round, i)), c, recs); len(refused) == 0 {
						break
					}
				}
				honest = append(honest, recs...)
			}
			for i, some := range slices.Collect(slices.Chunk(hostile[round*share:(round+1)*share], 500)) {
				bring(k, from(fmt.Sprintf("203.0.%d.0/24", i%3)), c, some)
			}
			require.LessOrEqual(t, k.Index.Len(), cell.Full)
		}
		found := 0
		for _, r := range honest {
			if _, ok := k.Index.Get(r.Name()); ok {
				found++
			}
		}
		t.Logf("%d hostile records of %d providers from three /24s: %d of %d honest ones found (%.2f %%); the keeper holds %d; refused %d",
			len(hostile), len(hostile)/records100, found, len(honest), 100*float64(found)/float64(len(honest)), k.Index.Len(),
			counts.Refusals("near_full"))
		require.GreaterOrEqual(t, found, int(math.Ceil(0.99*float64(len(honest)))))
		require.Zero(t, splitsAt(k))
	})
}

// records100 is the maximum number of records of one provider.
const records100 = 100
