package query

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

func TestMatchAgreesWithTheNaiveOne(t *testing.T) {
	var matched, missed int
	check := func(t require.TestingT, q query.Query, world []sample) {
		p := compile(t, q)
		for _, s := range world {
			want := naiveMatch(q, s.service)
			require.Equal(t, want, p.Match(s.record))
			require.Equal(t, want, p.Reject(s.record) == "", "Reject: %q", p.Reject(s.record))
			if want {
				matched++
			} else {
				missed++
			}
		}
	}
	queries, worlds := queryGen(t), recordsGen(t, 8)
	rapid.Check(t, func(rt *rapid.T) { check(rt, queries.Draw(rt, "query"), worlds.Draw(rt, "world")) })
	for seed := range 100 { // one random case of 18 has a match: perhaps none had
		check(t, queries.Example(seed), worlds.Example(seed))
	}
	require.NotZero(t, matched)
	require.NotZero(t, missed)
}

func TestValueAgreesWithTheNaiveOne(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		q := queryGen(t).Draw(rt, "query")
		p := compile(t, q)
		for _, s := range recordsGen(t, 4).Draw(rt, "world") {
			got := p.Value(s.record)
			require.False(rt, math.IsNaN(got))
			if want, ok := naiveValue(q, s.service); ok {
				require.Equal(rt, want+0, got+0)
			}
			switch p.Query().Sort {
			case query.SortRandom:
				require.True(rt, got >= 0 && got < 1)
			case query.SortScore:
				require.True(rt, p.byName() || got == -p.Score(s.record)+0)
				require.True(rt, p.query.Claims == query.ClaimsTrust || got >= -(pricePoints+locationPoints), "no claim")
				require.Len(rt, p.ExplainScore(s.record, &Evidence{}), 4)
			}
		}
	})
}

// Hits rank by value, then by provider and id, bytewise.
func TestHitsRankByValueAndName(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := compile(t, queryGen(t).Draw(rt, "query"))
		var hits []Hit
		for _, s := range recordsGen(t, 12).Draw(rt, "world") {
			hits = append(hits, Hit{Record: s.record, Value: p.Value(s.record)})
		}
		want := slices.Clone(hits)
		slices.SortFunc(want, func(a, b Hit) int {
			if a.Value != b.Value {
				if a.Value < b.Value {
					return -1
				}
				return 1
			}
			return strings.Compare(string(a.Record.Name().Provider)+"\x00"+a.Record.Name().ID,
				string(b.Record.Name().Provider)+"\x00"+b.Record.Name().ID)
		})
		slices.SortFunc(hits, Hit.Compare)
		require.Equal(rt, want, hits)
	})
}

// The cells contain every point of the disc, so that no match is missed.
func TestCellsHoldEveryMatch(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := compile(t, queryGen(t).Draw(rt, "query"))
		cells := p.Cells(rapid.IntRange(0, 40).Draw(rt, "most"))
		for _, s := range recordsGen(t, 8).Draw(rt, "world") {
			if p.Match(s.record) {
				in := slices.ContainsFunc(cells, func(c records.CellKey) bool { return s.record.In(c) })
				require.True(rt, in)
			}
		}
	})
	p := compile(t, query.Query{Type: "storage"})
	require.Equal(t, []records.CellKey{{Type: "storage", Subtype: records.AnySubtype, Cell: geo.Global}}, p.Cells(10))
	p = compile(t, query.Query{Type: "storage", Subtype: "ssd", Near: &query.Near{Latitude: 52.52, Longitude: 13.4, RadiusKM: ptr(5.0)}})
	require.Contains(t, p.Cells(64), records.CellKey{Type: "storage", Subtype: "ssd", Cell: geo.CellOf(geo.Point{Lat: 52.52, Lon: 13.4}, p.Cells(64)[0].Cell.Len())})
}

// rich returns a record with every field set.
func rich() *pb.ServiceRecord {
	return &pb.ServiceRecord{
		Id:       "gpu-1",
		Metadata: &pb.ServiceMetadata{Type: "compute", Subtype: "gpu", Attributes: map[string]string{"rack": "7", "tier": "gold"}},
		Capabilities: &pb.ServiceCapabilities{Compute: &pb.ComputeCapabilities{
			CpuCores: 8, MemoryMb: 16000, Gpus: []*pb.GPUInfo{{Model: "x"}},
		}},
		Location: &pb.GeoLocation{Latitude: ptr(52.52), Longitude: ptr(13.405), Country: "DE", Region: "Berlin"},
		Pricing:  &pb.PricingInfo{Currency: "USDC", BasePrice: ptr(0.5), PriceUnit: "per-hour"},
		Health: &pb.HealthStatus{
			Status: pb.HealthStatus_DEGRADED, UptimePercent: ptr(99.5), ResponseTimeMs: ptr(uint64(100)), ErrorRate: ptr(uint32(50)),
		},
	}
}

func TestRejectNamesTheFilterAndBothValues(t *testing.T) {
	full, bare := seal(t, 1, rich()), seal(t, 1, &pb.ServiceRecord{
		Id: "bare", Metadata: &pb.ServiceMetadata{Type: "relay"},
	})
	me, other := idOf(t, 1).String(), idOf(t, 2).String()
	tests := map[string]struct {
		query          func(*query.Query)
		ofRich, ofBare string
	}{
		"subtype":   {func(q *query.Query) { q.Subtype = "cpu" }, "subtype: gpu stated, cpu asked for", "subtype: nothing stated, cpu asked for"},
		"provider":  {func(q *query.Query) { q.ProviderID = other }, "provider_id: of " + me + ", " + other + " asked for", "provider_id: of " + me + ", " + other + " asked for"},
		"health":    {func(q *query.Query) { q.Health = query.HealthHealthy }, "health: claimed DEGRADED, only HEALTHY asked for", "health: claimed UNKNOWN, only HEALTHY asked for"},
		"cores":     {func(q *query.Query) { q.MinCPUCores = 9 }, "min_cpu_cores: 8 stated, at least 9 asked for", "min_cpu_cores: nothing stated, at least 9 asked for"},
		"storage":   {func(q *query.Query) { q.MinStorageGB = 2 }, "min_storage_gb: nothing stated, at least 2000000000 bytes asked for", "min_storage_gb: nothing stated, at least 2000000000 bytes asked for"},
		"gpu":       {func(q *query.Query) { q.RequireGPU = true }, "", "require_gpu: nothing stated, at least 1 asked for"},
		"uptime":    {func(q *query.Query) { q.MinUptime = ptr(99.9) }, "min_uptime: 99.5 % stated, at least 99.9 asked for", "min_uptime: nothing stated, at least 99.9 % asked for"},
		"uptime 0":  {func(q *query.Query) { q.MinUptime = ptr(0.0) }, "", "min_uptime: nothing stated, at least 0 % asked for"},
		"errors":    {func(q *query.Query) { q.MaxErrorRate = ptr(uint32(9)) }, "max_error_rate: 50 of 10000 stated, at most 9 asked for", "max_error_rate: nothing stated, at most 9 of 10000 asked for"},
		"price":     {func(q *query.Query) { q.MaxPrice = ptr(0.1) }, "max_price: 0.5 stated, at most 0.1 USDC per-hour asked for", "max_price: nothing stated, at most 0.1 USDC per-hour asked for"},
		"currency":  {func(q *query.Query) { q.MaxPrice, q.Currency = ptr(9.0), "eur" }, "max_price: stated in USDC per-hour, and does not compare with EUR per-hour", "max_price: nothing stated, at most 9 EUR per-hour asked for"},
		"countries": {func(q *query.Query) { q.Countries = []string{"us", "fr"} }, "countries: DE stated, one of FR, US asked for", "countries: nothing stated, one of FR, US asked for"},
		"regions":   {func(q *query.Query) { q.Regions = []string{"Hesse"} }, "regions: Berlin stated, one of hesse asked for", "regions: nothing stated, one of hesse asked for"},
		"attribute": {func(q *query.Query) { q.Attributes = map[string]string{"tier": "Gold"} }, `attributes.tier: "gold" stated, "Gold" asked for`, `attributes.tier: nothing stated, "Gold" asked for`},
		"near":      {func(q *query.Query) { q.Near = &query.Near{Latitude: 52.52, Longitude: 13.605, RadiusKM: ptr(10.0)} }, "near: 13.532 km away, at most 10 asked for", "near: no place stated, at most 10 km away asked for"},
		"anywhere":  {func(q *query.Query) { q.Near = &query.Near{} }, "", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			check := func(r *records.Record, want string) {
				q := query.Query{Type: r.Type()}
				test.query(&q)
				if usesPrices(&q) {
					q.PriceUnit = "per-hour"
				}
				p := compile(t, q)
				require.Equal(t, want, p.Reject(r))
				require.Equal(t, want == "", p.Match(r))
			}
			check(full, test.ofRich)
			check(bare, test.ofBare)
		})
	}
	require.Equal(t, "type: compute stated, cdn asked for", compile(t, query.Query{Type: "cdn"}).Reject(full))
	stopped := rich()
	stopped.Health.Status, stopped.Paused = pb.HealthStatus_UNHEALTHY, &pb.Pause{Stopped: true, Since: timestamppb.New(t0())}
	require.Equal(t, "stopped by its provider", compile(t, query.Query{Type: "compute"}).Reject(seal(t, 1, stopped)))
	require.True(t, compile(t, query.Query{Type: "compute", Quality: query.Quality{Health: query.HealthAny}}).Match(seal(t, 1, stopped)))
	sick := rich()
	sick.Health.Status = pb.HealthStatus_UNHEALTHY
	require.Equal(t, "health: claimed UNHEALTHY, which is not usable", compile(t, query.Query{Type: "compute"}).Reject(seal(t, 1, sick)))
}

// A value at the limit passes. The next value beyond it fails.
func TestBoundsBelongToTheFilter(t *testing.T) {
	r := seal(t, 1, rich())
	here := query.Near{Latitude: 52.52, Longitude: 13.605}
	km := geo.Distance(geo.Point{Lat: 52.52, Lon: 13.605}, geo.Point{Lat: 52.52, Lon: 13.405}) / 1000
	at := func(radius float64) *query.Near {
		return &query.Near{Latitude: here.Latitude, Longitude: here.Longitude, RadiusKM: &radius}
	}
	tests := map[string][2]query.Query{
		"cores":  {{Capacity: query.Capacity{MinCPUCores: 8}}, {Capacity: query.Capacity{MinCPUCores: 9}}},
		"memory": {{Capacity: query.Capacity{MinMemoryMB: 16000}}, {Capacity: query.Capacity{MinMemoryMB: 16001}}},
		"price":  {{Price: query.Price{MaxPrice: ptr(.5)}}, {Price: query.Price{MaxPrice: ptr(math.Nextafter(.5, 0))}}},
		"uptime": {{Quality: query.Quality{MinUptime: ptr(99.5)}}, {Quality: query.Quality{MinUptime: ptr(99.51)}}},
		"errors": {{Quality: query.Quality{MaxErrorRate: ptr(uint32(50))}}, {Quality: query.Quality{MaxErrorRate: ptr(uint32(49))}}},
		"near":   {{Near: at(km + 1e-9)}, {Near: at(km - 1e-9)}},
		"tags":   {{Attributes: map[string]string{"tier": "gold"}}, {Attributes: map[string]string{"tier": "gold", "rack": "8"}}},
		"unit":   {{Price: query.Price{MaxPrice: ptr(.5), PriceUnit: "PER-HOUR"}}, {Price: query.Price{MaxPrice: ptr(.5), PriceUnit: "per-day"}}},
	}
	for name, pair := range tests {
		for i, q := range pair {
			q.Type = "compute"
			p := compile(t, q)
			require.Equal(t, i == 0, p.Match(r), "%s: %s", name, p.Reject(r))
		}
	}
}

func TestTombstonesMatchNothing(t *testing.T) {
	full := seal(t, 1, rich())
	gone := &pb.ServiceRecord{Id: "gpu-1", Metadata: &pb.ServiceMetadata{Type: "compute", Subtype: "gpu"}, Withdrawn: true}
	p := compile(t, query.Query{Type: "compute", Quality: query.Quality{Health: query.HealthAny}})
	require.True(t, p.Match(full))
	tombstone := seal(t, 1, proto.CloneOf(gone))
	require.False(t, p.Match(tombstone))
	require.Equal(t, "withdrawn by its provider", p.Reject(tombstone))
}

// Peers merge answers in the random order, so all must compute the same permutation. These
// values never change.
func TestRandomOrderIsTheSameOnEveryPeer(t *testing.T) {
	r := seal(t, 1, rich())
	for seed, want := range goldenRandom() {
		require.Equal(t, want, compile(t, query.Query{Type: "compute", Sort: query.SortRandom, Seed: seed}).Value(r))
	}
}

// Each name is among the first ten about equally often: the chi-square of 300 equal groups of names is that of chance (mean 299, standard
// deviation 24).
func TestRandomOrderIsEven(t *testing.T) {
	const groups, seeds, limit = 300, 3000, 10
	for _, n := range []int{groups, 100 * groups} {
		hashes := make([]uint64, n)
		for i := range hashes {
			hashes[i] = hash(records.Name{Provider: "p", ID: strconv.Itoa(i)})
		}
		var shown [groups]int
		for seed := range uint64(seeds) {
			first := make([]Hit, limit) // the least values, sorted; Record is not used
			at := [limit]int{}
			for i := range first {
				first[i].Value = math.Inf(1)
			}
			for i, h := range hashes {
				v := random(h, mix(seed))
				if v >= first[limit-1].Value {
					continue
				}
				j := limit - 1
				for ; j > 0 && v < first[j-1].Value; j-- {
					first[j], at[j] = first[j-1], at[j-1]
				}
				first[j].Value, at[j] = v, i
			}
			for _, i := range at {
				shown[i%groups]++
			}
		}
		chi := 0.0
		const expected = seeds * limit / groups
		for _, k := range shown {
			chi += float64((k-expected)*(k-expected)) / expected
		}
		t.Logf("%d names: chi-square %.0f", n, chi)
		require.Less(t, chi, 450.0, "%d names", n)
	}
}

func TestFoldIsEqualFold(t *testing.T) {
	text := rapid.OneOf(regionGen(), rapid.StringOfN(rapid.RuneFrom([]rune("aAkK\u212asSſßẞıIİiσςΣµμ")), 0, 3, -1), rapid.String())
	rapid.Check(t, func(rt *rapid.T) {
		a, b := text.Draw(rt, "a"), text.Draw(rt, "b")
		require.Equal(rt, strings.EqualFold(a, b), Fold(a) == Fold(b))
		require.Equal(rt, Fold(a), Fold(Fold(a)))
		require.Equal(rt, strings.Compare(Fold(a), Fold(b)), sign(compareFold(a, b)))
		require.True(rt, strings.EqualFold(a, upper(a)))
	})
}

func sign(n int) int { return max(-1, min(n, 1)) }

func TestFilterOfNothingPassesEverything(t *testing.T) {
	nan := math.NaN()
	odd := &records.Facts{Known: math.MaxUint16, Uptime: nan, Price: nan, ErrorRate: math.MaxUint32, Status: -5}
	p := compile(t, query.Query{Type: "a", Quality: query.Quality{Health: query.HealthAny}})
	require.True(t, p.Filter().Pass(&records.Facts{}))
	require.True(t, p.Filter().Pass(odd))
	for _, q := range []query.Query{
		{Type: "storage", Price: query.Price{MaxPrice: ptr(math.MaxFloat64)}},
		{Type: "storage", Quality: query.Quality{MinUptime: ptr(0.0)}},
	} {
		p := compile(t, q)
		require.False(t, p.Filter().Pass(odd), "not a number passes no filter")
		require.NotEmpty(t, p.Filter().reject(odd))
	}
}

// goldenRandom returns the rank of rich() by seed, computed by another implementation.
func goldenRandom() map[uint64]float64 {
	return map[uint64]float64{0: 0.16781612482879538, 1: 0.536684517676149, math.MaxUint64: 0.6515852400023892}
}
