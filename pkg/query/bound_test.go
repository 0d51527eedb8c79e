package query

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// bestOf returns the best values of records under a plan.
func bestOf(p *Plan, recs []*records.Record) records.Facts {
	var best records.Facts
	better := func(k records.Known, known, is bool) bool {
		if !known || best.Has(k) && !is {
			return false
		}
		best.Known |= k
		return true
	}
	for _, r := range recs {
		x := r.Facts()
		if better(records.KnownUptime, x.Has(records.KnownUptime), x.Uptime > best.Uptime) {
			best.Uptime = x.Uptime
		}
		if better(records.KnownErrorRate, x.Has(records.KnownErrorRate), x.ErrorRate < best.ErrorRate) {
			best.ErrorRate = x.ErrorRate
		}
		if better(records.KnownResponseTime, x.Has(records.KnownResponseTime), x.ResponseMS < best.ResponseMS) {
			best.ResponseMS = x.ResponseMS
		}
		currency, unit := p.Prices()
		if better(records.KnownPrice, pricedIn(x, currency, unit), x.Price < best.Price) {
			best.Price = x.Price
		}
	}
	return best
}

// The bound of a set is at most the value of every match, in any order.
func TestBoundAgainstValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := compile(t, queryGen(t).Draw(t, "query"))
		var recs []*records.Record
		box := geo.Box{MinLat: 90, MaxLat: -90, MinLon: 180, MaxLon: -180}
		for _, s := range recordsGen(t, 8).Draw(t, "records") {
			at, ok := s.record.Facts().Place()
			if !ok {
				continue
			}
			recs = append(recs, s.record)
			box.MinLat, box.MaxLat = math.Min(box.MinLat, at.Lat), math.Max(box.MaxLat, at.Lat)
			box.MinLon, box.MaxLon = math.Min(box.MinLon, at.Lon), math.Max(box.MaxLon, at.Lon)
		}
		if len(recs) == 0 {
			return
		}
		best := bestOf(p, recs)
		bound, some := p.Bound(&best, box)
		require.False(t, math.IsNaN(bound))
		for _, r := range recs {
			if p.Match(r) {
				require.True(t, some)
				require.LessOrEqual(t, bound, p.Value(r))
			}
		}
	})
}
