package index_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/index"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	benchRecords = 100_000
	benchCities  = 500
	benchPlaces  = 2_000 // used in queries
)

// cities draws populated places in descending order of population.
func cities(rng *rand.Rand) []geo.Point {
	places := make([]geo.Point, benchCities)
	for i := range places {
		lat := math.Max(-55, math.Min(30+18*rng.NormFloat64(), 70)) // most people live in the northern temperate zone
		places[i] = geo.Point{Lat: lat, Lon: rng.Float64()*360 - 180}
	}
	return places
}

// near moves a place by up to 0.2 degrees.
func near(rng *rand.Rand, p geo.Point) (lat, lon float64) {
	return p.Lat + rng.Float64()*0.4 - 0.2, math.Max(-180, math.Min(p.Lon+rng.Float64()*0.4-0.2, 180))
}

// benchOffer returns a typical service, about 700 bytes when signed.
func benchOffer(rng *rand.Rand, i int, city geo.Point) records.Offer {
	kind := [...]string{"compute", "storage", "cdn", "bandwidth"}[i%4]
	lat, lon := near(rng, city)
	o := records.Offer{
		ID: fmt.Sprintf("service-%06d", i),
		Metadata: records.Metadata{
			Type: kind, Name: "A service of the benchmark", Version: "1.4.2",
			Description: "One of many services alike, with a description as people write it: two lines, some praise, the opening hours.",
			Endpoints:   []string{"https://node.example.net:8443/v1", "/dns4/node.example.net/udp/4001/quic-v1"},
			Protocols:   []string{"https", "quic"}, Attributes: map[string]string{"tier": "gold", "rack": "a-17"},
		},
		Location: &records.Location{
			Latitude: &lat, Longitude: &lon, Country: string([]byte{'A' + byte(i%13), 'A' + byte(i%5)}),
			Region: fmt.Sprint("Region ", i%17), City: "Some City", ISP: "Some Carrier",
		},
		Pricing: &records.Pricing{Currency: "USDC", BasePrice: ptr(rng.Float64()), PriceUnit: "per-hour"},
		Health:  &records.Health{Status: "HEALTHY", UptimePercent: ptr(98 + 2*rng.Float64()), ResponseTimeMs: ptr(rng.Uint64N(200)), ErrorRate: ptr(rng.Uint32N(50))},
	}
	o.Capabilities = capabilities(seeded(uint64(i)), kind)
	if kind == "compute" {
		o.Capabilities.Compute.CPUCores = 1 << rng.IntN(7)
	}
	return o
}

// fixture holds many records around cities, and places for queries.
type fixture struct {
	records []*records.Record
	crowded []geo.Point // near cities, weighted by population
	places  []geo.Point // near cities, all equally likely
}

func newFixture(b *testing.B, n int) fixture {
	b.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	centres := cities(rng)
	population := rand.NewZipf(rng, 1.07, 8, benchCities-1)
	w := fixture{records: make([]*records.Record, n)}
	homes := make([]geo.Point, n)
	for i := range homes {
		homes[i] = centres[population.Uint64()]
	}
	for range benchPlaces {
		lat, lon := near(rng, centres[rng.IntN(benchCities)])
		w.places = append(w.places, geo.Point{Lat: lat, Lon: lon})
		lat, lon = near(rng, centres[population.Uint64()])
		w.crowded = append(w.crowded, geo.Point{Lat: lat, Lon: lon})
	}
	keys := make([]crypto.PrivKey, n/50)
	for i := range keys {
		keys[i] = keyOf(b, i)
	}
	var signers sync.WaitGroup
	for worker := range 2 {
		signers.Go(func() {
			rng := rand.New(rand.NewPCG(5, uint64(worker)))
			for i := worker; i < n; i += 2 {
				w.records[i] = sign(b, keys[i%len(keys)], benchOffer(rng, i, homes[i]), stamp(1, 0, 24*time.Hour))
			}
		})
	}
	signers.Wait()
	return w
}

func (w fixture) index(b *testing.B) *index.Index {
	x := index.New(index.Config{})
	for _, r := range w.records {
		_, err := x.Put(r, epoch())
		require.NoError(b, err)
	}
	return x
}

// plansAt returns one query per place.
func plansAt(b *testing.B, places []geo.Point, ask func(*query.Query)) []*queries.Plan {
	plans := make([]*queries.Plan, len(places))
	for i, at := range places {
		q := query.Query{
			Type: "compute", Near: &query.Near{Latitude: at.Lat, Longitude: at.Lon}, Limit: 10,
			Capacity: query.Capacity{MinCPUCores: 8},
			Price:    query.Price{MaxPrice: ptr(0.5)},
			Quality:  query.Quality{MinUptime: ptr(99.0)},
		}
		ask(&q)
		plans[i] = plan(b, q)
	}
	return plans
}

// ask is a query of the benchmark.
type ask struct {
	name  string
	ask   func(*query.Query)
	exact bool // whether the total must be exact
}

func (a ask) options() index.SearchOptions {
	return index.SearchOptions{Now: epoch(), AtLeast: !a.exact}
}

// questions returns the queries of the benchmark.
func questions() []ask {
	return []ask{
		{"near100", func(q *query.Query) { q.Near.RadiusKM = ptr(100.0) }, false},
		{"price300", func(q *query.Query) { q.Near.RadiusKM, q.Sort = ptr(300.0), query.SortPrice }, false},
		{"score300", func(q *query.Query) { q.Near.RadiusKM, q.Sort = ptr(300.0), query.SortScore }, false},
		{"nearest", func(*query.Query) {}, false},
		{"nearest-counted", func(*query.Query) {}, true},
		{"price", func(q *query.Query) { q.Near, q.Sort = nil, query.SortPrice }, false},
		{"score", func(q *query.Query) { q.Near, q.Sort = nil, query.SortScore }, false},
		{"country", func(q *query.Query) { q.Near, q.Sort, q.Countries = nil, query.SortUptime, []string{"CC"} }, false},
	}
}

// BenchmarkSearch runs single-threaded queries on 100,000 records and reports quantiles of their
// times.
func BenchmarkSearch(b *testing.B) {
	w := newFixture(b, benchRecords)
	x := w.index(b)
	for _, q := range questions() {
		b.Run(q.name, func(b *testing.B) { timeSearches(b, x, plansAt(b, w.places, q.ask), q.options()) })
	}
}

func timeSearches(b *testing.B, x *index.Index, plans []*queries.Plan, o index.SearchOptions) {
	took := make([]float64, 0, b.N)
	total := 0
	for _, p := range plans[:min(len(plans), 500)] { // fill the caches
		x.Search(p, o)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		begin := time.Now()
		f := x.Search(plans[i%len(plans)], o)
		took = append(took, float64(time.Since(begin).Nanoseconds()))
		total += f.Total
	}
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2], "p50-ns")
	b.ReportMetric(took[len(took)*99/100], "p99-ns")
	b.ReportMetric(float64(total)/float64(b.N), "matches")
}

// BenchmarkPut puts verified records: new services, and new versions of known services.
func BenchmarkPut(b *testing.B) {
	w := newFixture(b, benchRecords)
	b.Run("insert", func(b *testing.B) { timePuts(b, w, 0) })
	b.Run("update", func(b *testing.B) { timePuts(b, w, len(w.records)) })
}

// timePuts repeats the fixture's records. Each round starts with an empty index, or with the
// first known records.
func timePuts(b *testing.B, w fixture, known int) {
	b.ReportAllocs()
	n := len(w.records)
	fresh := w.records
	if known > 0 {
		n = min(n, 20_000)
		fresh = w.renewed(b, n)
	}
	var x *index.Index
	b.ResetTimer()
	for i := range b.N {
		if i%n == 0 {
			b.StopTimer()
			x = fixture{records: w.records[:known]}.index(b)
			runtime.GC()
			b.StartTimer()
		}
		if _, err := x.Put(fresh[i%n], epoch()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "puts/s")
}

// renewed returns second versions of the first n records, in another order.
func (w fixture) renewed(b *testing.B, n int) []*records.Record {
	rng := rand.New(rand.NewPCG(3, 4))
	fresh := make([]*records.Record, n)
	for i, from := range rng.Perm(len(w.records))[:n] {
		o := benchOffer(rng, from, w.places[i%len(w.places)])
		fresh[i] = sign(b, keyOf(b, from%(len(w.records)/50)), o, stamp(2, 0, 24*time.Hour))
	}
	return fresh
}

// BenchmarkMemory measures the memory of an index, once whatever b.N: per record with its
// envelope, and the index's part of it.
func BenchmarkMemory(b *testing.B) {
	before := heap()
	w := newFixture(b, benchRecords)
	verified := heap()
	x := w.index(b)
	after := heap()
	size := 0
	for _, r := range w.records {
		size += len(r.Envelope())
	}
	b.ReportMetric(float64(after-before)/benchRecords, "B/record")
	b.ReportMetric(float64(after-verified)/benchRecords, "index-B/record")
	b.ReportMetric(float64(size)/benchRecords, "envelope-B/record")
	runtime.KeepAlive(x)
	runtime.KeepAlive(w)
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
