package query

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// pageOf is the answer of a plan to all records of a world.
func pageOf(p *Plan, world []sample) []query.Result {
	var hits []Hit
	for _, s := range world {
		if p.Match(s.record) {
			hits = append(hits, Hit{Record: s.record, Value: p.Value(s.record)})
		}
	}
	slices.SortFunc(hits, Hit.Compare)
	results := make([]query.Result, 0, p.Limit())
	for _, h := range hits[:min(p.Limit(), len(hits))] {
		results = append(results, query.Result{Record: h.Record})
	}
	return results
}

// Every record is on one page, in the order of geohash and name, whatever the size of a page.
func TestPagesHoldEachRecordOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		q := queryGen(t).Draw(rt, "query")
		q.Sort, q.After, q.Limit, q.Price = query.SortStable, "", 1000, query.Price{}
		world := recordsGen(t, 12).Draw(rt, "world")
		want := pageOf(compile(t, q), world)
		var got []query.Result
		q.Limit = rapid.IntRange(1, 5).Draw(rt, "size")
		for {
			p := compile(t, q)
			page := pageOf(p, world)
			got = append(got, page...)
			if q.After = p.Next(page); q.After == "" {
				break
			}
		}
		require.Equal(rt, len(want), len(got))
		for i := range want {
			require.Same(rt, want[i].Record, got[i].Record)
			if i > 0 {
				before, r := want[i-1].Record, want[i].Record
				require.Negative(rt, cmp.Or(strings.Compare(cellOf(before), cellOf(r)), before.Name().Compare(r.Name())))
			}
		}
	})
}

// cellOf is the geohash by which a record stands on pages; "" without a place.
func cellOf(r *records.Record) string {
	at, placed := r.Facts().Place()
	if !placed {
		return ""
	}
	return string(geo.CellOf(at, placeLen))
}

// The value never contradicts the position, so that the bounds of keepers are right, and tells most neighbours apart.
func TestStableValueFollowsThePosition(t *testing.T) {
	var all []position
	for n := range byte(20) {
		for _, place := range []uint64{0, 1, 2, placeNumber(geo.Code(geo.Point{Lat: 52.5, Lon: 13.4})), 1 << 40} {
			all = append(all, position{place, records.Name{Provider: idOf(t, n), ID: "a"}}, position{place, records.Name{Provider: idOf(t, n), ID: "b"}})
		}
	}
	equal := 0
	for _, a := range all {
		require.True(t, a.value() >= 0 && a.value() < 1)
		require.Equal(t, a, parsePosition(a.String()))
		for _, b := range all {
			require.True(t, a.compare(b) >= 0 || a.value() <= b.value())
			require.True(t, a.place >= b.place || a.value() < b.value())
			equal += len(slices.Compact([]float64{a.value(), b.value()})) % 2
		}
	}
	require.Less(t, equal, 3*len(all), "only of one provider: with itself and the other name, and a few more")
}

func TestAfterIsRefused(t *testing.T) {
	provider := "u33dc0rr/" + idOf(t, 1).String()
	for name, q := range map[string]query.Query{
		"in another order":   {Type: "cdn", Sort: query.SortPrice, After: provider + "/a"},
		"without an order":   {Type: "cdn", After: provider + "/a"},
		"not a name":         {Type: "cdn", Sort: query.SortStable, After: provider},
		"not a provider":     {Type: "cdn", Sort: query.SortStable, After: "u33dc0rr/x/a"},
		"without a cell":     {Type: "cdn", Sort: query.SortStable, After: idOf(t, 1).String() + "/a"},
		"not a cell":         {Type: "cdn", Sort: query.SortStable, After: "u33dc0ai/" + idOf(t, 1).String() + "/a"},
		"a short cell":       {Type: "cdn", Sort: query.SortStable, After: "u33dc0/" + idOf(t, 1).String() + "/a"},
		"not an id":          {Type: "cdn", Sort: query.SortStable, After: provider + "/.."},
		"another spelling":   {Type: "cdn", Sort: query.SortStable, After: "/" + provider + "/a"},
		"much too long":      {Type: "cdn", Sort: query.SortStable, After: provider + "/" + strings.Repeat("a", 65)},
		"of the price group": ForTerms(query.Query{Type: "cdn", After: provider + "/a"}, query.Terms{Currency: "USDC", PriceUnit: "per-gb"}),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Compile(q, Defaults{})
			require.ErrorIs(t, err, fault.Invalid)
			require.Equal(t, "after", fault.FieldOf(err))
		})
	}
}
