package query

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
)

// The bound of a cell is at most the value of every match in it, in any order. A cell without a bound has no match.
func TestBoundAgainstValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := compile(t, queryGen(t).Draw(t, "query"))
		for _, s := range recordsGen(t, 8).Draw(t, "records") {
			at, placed := s.record.Facts().Place()
			if !placed || !p.Match(s.record) {
				continue
			}
			c := geo.CellOf(at, rapid.IntRange(1, geo.DeepLen).Draw(t, "length"))
			bound, some := p.Bound(c)
			require.True(t, some, c)
			require.LessOrEqual(t, bound, p.Value(s.record), c)
		}
	})
}

// Only orders of places have bounds. A cell outside of the disc, or on an earlier page, has no match.
func TestBoundsGoByPlace(t *testing.T) {
	berlin, radius := query.Near{Latitude: 52.52, Longitude: 13.405}, 10.0
	near := compile(t, query.Query{Type: "a", Sort: query.SortDistance, Near: &berlin})
	here, _ := near.Bound("u33d")
	there, some := near.Bound("u33e")
	require.True(t, some)
	require.Zero(t, here)
	require.Positive(t, there)
	stable := compile(t, query.Query{Type: "a", Sort: query.SortStable})
	first, _ := stable.Bound("u33")
	second, _ := stable.Bound("u34")
	require.Less(t, first, second)
	for _, sort := range []query.Sort{query.SortPrice, query.SortScore, query.SortRandom, query.SortUptime, query.SortResponseTime} {
		bound, some := compile(t, query.Query{Type: "compute", Sort: sort}).Bound("u33")
		require.True(t, some)
		require.Equal(t, math.Inf(-1), bound, sort)
	}
	berlin.RadiusKM = &radius
	_, some = compile(t, query.Query{Type: "a", Near: &berlin}).Bound("9q8y")
	require.False(t, some)
}
