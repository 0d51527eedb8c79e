package keeper

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/platform/cities"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

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

// spread draws places.
type spread func(random *rand.Rand) (latitude, longitude float64)

// uniform draws places evenly on the sphere.
func uniform(random *rand.Rand) (latitude, longitude float64) {
	return math.Asin(2*random.Float64()-1) * 180 / math.Pi, 360*random.Float64() - 180
}

// atCities returns a spread over the largest cities of the world, as people live in them.
func atCities(t testing.TB) spread {
	all, err := cities.All()
	require.NoError(t, err)
	below := make([]int, len(all)) // people up to a city
	people := 0
	for i, c := range all {
		people += c.Population
		below[i] = people
	}
	return func(random *rand.Rand) (latitude, longitude float64) {
		i, _ := slices.BinarySearch(below, 1+random.IntN(people))
		latitude = max(-90, min(90, all[i].Point.Lat+0.1*random.NormFloat64()))
		return latitude, math.Remainder(all[i].Point.Lon+0.1*random.NormFloat64(), 360)
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

// best computes the expected result of a query with a plain scan.
func best(plan *queries.Plan, recs []*records.Record) []string {
	var hits []queries.Hit
	for _, r := range recs {
		if !r.Expired(time.Now()) && plan.Match(r) {
			hits = append(hits, plan.Hit(r))
		}
	}
	plan.Arrange(hits)
	names := []string{}
	for _, h := range hits[:min(plan.Limit(), len(hits))] {
		names = append(names, h.Record.Name().ID)
	}
	return names
}

// middlePage is the question for the page that begins in the middle of some records.
func middlePage(t testing.TB, recs []*records.Record) *queries.Plan {
	q := query.Query{Sort: query.SortStable, Explain: true}
	first := keepertest.Compile(t, q)
	sorted := slices.SortedFunc(slices.Values(recs), func(a, b *records.Record) int {
		return first.Hit(a).Compare(first.Hit(b))
	})
	q.After = queries.After(sorted[len(sorted)/2])
	return keepertest.Compile(t, q)
}
