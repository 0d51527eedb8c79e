package query

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// scored returns a query that rates every part.
func scored() query.Query {
	return query.Query{
		Type: "compute", Near: &query.Near{Latitude: 52.52, Longitude: 13.405, RadiusKM: ptr(100.0)},
		Price: query.Price{MaxPrice: ptr(2.0)}, Sort: query.SortScore,
	}
}

func TestScoreExplainsItself(t *testing.T) {
	p, r := compile(t, scored()), seal(t, 1, rich())
	require.InDelta(t, 99.5*.3+9.5+22.5+18+10, p.Score(r), 1e-9)
	require.Equal(t, []string{
		"health 39.35 of 40: uptime 99.5 %, errors 50 of 10000",
		"price 22.50 of 30: 0.5 of at most 2 USDC per-hour",
		"performance 18.00 of 20: response time 100 ms",
		"location 10.00 of 10: 0.000 km of 100.000 km",
	}, p.ExplainScore(r, &Evidence{}))

	p, r = compile(t, query.Query{Type: "relay", Sort: query.SortScore}), seal(t, 1, &pb.ServiceRecord{
		Id: "bare", Metadata: &pb.ServiceMetadata{Type: "relay"},
	})
	require.Zero(t, p.Score(r))
	require.Equal(t, []string{
		"health 0.00 of 40: uptime unknown, errors unknown",
		"price 0.00 of 30: no max_price to compare with",
		"performance 0.00 of 20: response time unknown",
		"location 0.00 of 10: no place to compare with",
	}, p.ExplainScore(r, &Evidence{}))

	foreign := rich()
	foreign.Pricing.Currency = "EUR"
	parts := compile(t, scored()).ExplainScore(seal(t, 1, foreign), &Evidence{})
	require.Equal(t, "price 0.00 of 30: in EUR per-hour, does not compare with USDC per-hour", parts[1])
}

func TestScoreEnds(t *testing.T) {
	p := compile(t, scored())
	best := records.Facts{
		Known: math.MaxUint16, Point: geo.Point{Lat: 52.52, Lon: 13.405},
		Uptime: 100, Currency: "usdc", PriceUnit: "PER-HOUR",
	}
	require.Equal(t, points{30, 10, 30, 20, 10}, p.score(&best))
	worst := best
	worst.Point, worst.Uptime, worst.ErrorRate, worst.Price, worst.ResponseMS = geo.Point{Lat: -52.52, Lon: -166.595}, 0, 10000, 1e300, math.MaxUint64
	require.Equal(t, points{}, p.score(&worst))
	worst.Uptime, worst.Price = math.NaN(), math.NaN()
	require.Equal(t, points{}, p.score(&worst))

	over := best
	over.Uptime, over.Price = 150, -1
	require.Equal(t, p.score(&best), p.score(&over), "nothing earns more than all")

	free := scored()
	free.MaxPrice = ptr(0.0)
	require.Equal(t, 30.0, compile(t, free).score(&best).price)
	require.Zero(t, compile(t, free).score(&worst).price)

	anywhere := scored()
	anywhere.Near.RadiusKM = nil
	require.InDelta(t, 0, compile(t, anywhere).score(&worst).location, 1e-4)
	require.Equal(t, 10.0, compile(t, anywhere).score(&best).location)
}

func TestScoreIsMonotone(t *testing.T) {
	plans := []*Plan{compile(t, scored())}
	q := scored()
	q.Near.RadiusKM = nil
	plans = append(plans, compile(t, q))
	lat := func(f *records.Facts) *float64 { return &f.Point.Lat }
	improve := map[string]func(rt *rapid.T, f *records.Facts){
		"uptime": func(rt *rapid.T, f *records.Facts) { f.Uptime = rapid.Float64Range(f.Uptime, 100).Draw(rt, "better") },
		"errors": func(rt *rapid.T, f *records.Facts) {
			f.ErrorRate = rapid.Uint32Range(0, f.ErrorRate).Draw(rt, "better")
		},
		"price": func(rt *rapid.T, f *records.Facts) { f.Price = rapid.Float64Range(0, f.Price).Draw(rt, "better") },
		"response": func(rt *rapid.T, f *records.Facts) {
			f.ResponseMS = rapid.Uint64Range(0, f.ResponseMS).Draw(rt, "better")
		},
		"distance": func(rt *rapid.T, f *records.Facts) { *lat(f) = rapid.Float64Range(52.52, *lat(f)).Draw(rt, "better") },
	}
	parts := []string{"uptime", "errors", "price", "response", "distance"}
	rapid.Check(t, func(rt *rapid.T) {
		p := rapid.SampledFrom(plans).Draw(rt, "plan")
		worse := records.Facts{
			Known:      records.Known(rapid.Uint16().Draw(rt, "known")),
			Uptime:     rapid.Float64Range(0, 100).Draw(rt, "uptime"),
			ErrorRate:  rapid.Uint32Range(0, 10000).Draw(rt, "errors"),
			Price:      rapid.Float64Range(0, 5).Draw(rt, "price"),
			ResponseMS: rapid.Uint64Range(0, 5000).Draw(rt, "response"),
			Point:      geo.Point{Lat: rapid.Float64Range(52.52, 54).Draw(rt, "latitude"), Lon: 13.405},
			Currency:   "USDC", PriceUnit: "per-hour",
		}
		better := worse
		improve[rapid.SampledFrom(parts).Draw(rt, "part")](rt, &better)
		better.Known |= records.Known(rapid.Uint16().Draw(rt, "learnt"))
		low, high := p.score(&worse).total(), p.score(&better).total()
		require.LessOrEqual(rt, low, high)
		require.True(rt, low >= 0 && high <= 100)
	})
}
