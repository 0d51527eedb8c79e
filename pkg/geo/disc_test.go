package geo

import (
	"math"
	"slices"
	"testing"

	"github.com/golang/geo/r1"
	"github.com/golang/geo/r3"
	"github.com/golang/geo/s1"
	"github.com/golang/geo/s2"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestBoxContains(t *testing.T) {
	fiji := Box{-20, -15, 177, -178}
	for _, tt := range []struct {
		b    Box
		p    Point
		want bool
	}{
		{fiji, Point{-17, 178}, true},
		{fiji, Point{-17, 180}, true},
		{fiji, Point{-17, -179}, true},
		{fiji, Point{-17, -178}, false},
		{fiji, Point{-17, 0}, false},
		{fiji, Point{-15, 178}, false},
		{Box{0, 1, 0, 1}, Point{0, 0}, true},
		{Box{0, 1, 0, 1}, Point{1, 0}, false},
		{Box{80, 90, 0, 1}, Point{90, 0}, true},
		{Box{80, 90, 0, 1}, Point{90, 1}, false},
		{Box{}, Point{}, false},
		{Box{-90, 90, -180, 180}, Point{math.NaN(), 0}, false},
	} {
		require.Equal(t, tt.want, tt.b.Contains(tt.p), "%v %v", tt.b, tt.p)
	}
}

func TestMinDistance(t *testing.T) {
	const degree = halfTurnMeters / 180
	for _, tt := range []struct {
		name string
		p    Point
		b    Box
		min  float64
	}{
		{"inside", Point{1, 1}, Box{0, 2, 0, 2}, 0},
		{"due north", Point{5, 1}, Box{0, 2, 0, 2}, 3 * degree},
		{"due east on the equator", Point{0, 5}, Box{-2, 2, 0, 2}, 3 * degree},
		{"across the antimeridian", Point{0, -179}, Box{0, 1, 170, 179}, 2 * degree},
		{"box across the antimeridian", Point{0, 0}, Box{0, 1, 170, -170}, Distance(Point{}, Point{1, 170})},
		{"from the pole", Point{90, 50}, Box{10, 20, -100, -90}, 70 * degree},
		{"over the pole", Point{80, 0}, Box{70, 80, 180, 180}, 20 * degree},
		{"under the south pole", Point{10, 0}, Box{-80, -60, 180, 180}, 110 * degree},
		// North of the box's corner: the great circle meets the meridian at a right angle above
		// 60 degrees.
		{"bulge", Point{60, 0}, Box{50, 70, 40, 60},
			EarthRadiusMeters * math.Asin(math.Cos(math.Pi/3)*math.Sin(40*math.Pi/180))},
		{"the world", Point{12, 34}, Global.Box(), 0},
		{"point box", Point{3, 4}, Box{3, 3, 4, 4}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.InDelta(t, tt.min, MinDistance(tt.p, tt.b), 2*roundoffMeters)
		})
	}
}

// TestBoxDistanceProperties compares the bounds with points of the box, and with package s2's
// distance between a point and a rectangle.
func TestBoxDistanceProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, b := anyPoint(t, "p"), anyBox(t)
		lo := MinDistance(p, b)
		requireNear(t, s2Distance(p, b), lo)

		fraction := rapid.OneOf(rapid.Float64Range(0, 1), rapid.SampledFrom([]float64{0, 1}))
		for range 8 {
			q := pointOf(b, fraction.Draw(t, "south to north"), fraction.Draw(t, "west to east"))
			d := Distance(p, q)
			require.LessOrEqual(t, lo, d)

			disc := Disc{p, d}
			require.True(t, disc.Contains(q))
			require.True(t, disc.Intersects(b), "%v holds %v of %v", disc, q, b)
		}
	})
}

// TestIntersectsBruteForce lays a grid of points over boxes. An intersecting disc has a grid
// point at most one mesh beyond its radius.
func TestIntersectsBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, b := anyDisc(t), anyBox(t)
		const steps = 24
		width := b.MaxLon - b.MinLon
		if width < 0 {
			width += 360
		}
		mesh := math.Hypot(b.MaxLat-b.MinLat, width) / steps * halfTurnMeters / 180
		nearest := math.Inf(1)
		for i := range steps + 1 {
			for j := range steps + 1 {
				dist := Distance(d.Center, pointOf(b, float64(i)/steps, float64(j)/steps))
				nearest = min(nearest, dist)
			}
		}
		if nearest <= d.Radius {
			require.True(t, d.Intersects(b))
		}
		if d.Intersects(b) {
			require.LessOrEqual(t, nearest, d.Radius+mesh)
		}
	})
}

func TestCover(t *testing.T) {
	for _, tt := range []struct {
		name string
		d    Disc
		max  int
		want []Cell
	}{
		{"well inside of a cell", Disc{Cell("u4pruy").Center(), 100}, 1, []Cell{"u4pruy"}},
		{"a corner of four", Disc{Point{45, 90}, 1}, 4, []Cell{"tzzzzz", "vbpbpb", "wpbpbp", "y00000"}},
		{"too small a limit", Disc{Point{45, 90}, 1}, 3, []Cell{Global}},
		{"no limit at all", Disc{Point{45, 90}, 1}, 0, []Cell{Global}},
		{"negative limit", Disc{Point{45, 90}, 1}, -5, []Cell{Global}},
		{"antimeridian", Disc{Cell("xbpbpb").Center(), 650}, 5,
			[]Cell{"800000", "rzzzzz", "xbpbp8", "xbpbpb", "xbpbpc"}},
		{"the world", Disc{Point{1, 2}, MaxRadius}, 1023, []Cell{Global}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, Cover(tt.d, tt.max))
		})
	}
	require.Len(t, Cover(Disc{Point{1, 2}, MaxRadius}, 1024), 1024)

	pole := Cover(Disc{Point{90, 0}, 1}, 32) // all cells of the top row meet at the pole
	require.Len(t, pole, 32)
	for _, c := range pole {
		require.Equal(t, 2, c.Len())
		require.Equal(t, 90.0, c.Box().MaxLat)
	}

	// Extra rows without cells, visited for safety, do not count.
	center := Cell("s00000").Center()
	rim := center.Lat / 180 * halfTurnMeters
	cells, ok := CoverAt(Disc{center, rim - 1.5*roundoffMeters}, 6, 1)
	require.True(t, ok)
	require.Equal(t, []Cell{"s00000"}, cells)

	_, ok = CoverAt(Disc{Point{}, 1}, 0, 10)
	require.False(t, ok)
	_, ok = CoverAt(Disc{Point{}, 1}, MaxCellLen+1, 10)
	require.False(t, ok)
}

// TestCoverOfInvalidDisc: covers of discs made without NewDisc end without a panic.
func TestCoverOfInvalidDisc(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	require.Equal(t, []Cell{"7zzzzz", "ebpbpb", "kpbpbp", "s00000"}, Cover(Disc{}, 4))
	require.Equal(t, []Cell{Global}, Cover(Disc{Radius: inf}, 10))
	require.Empty(t, Cover(Disc{Radius: nan}, 10))
	require.Empty(t, Cover(Disc{Radius: -5}, 10))
	require.NotPanics(t, func() {
		Cover(Disc{Point{nan, nan}, 10}, 10)
		Cover(Disc{Point{inf, -inf}, 1e9}, 10)
		Cover(Disc{Point{1e300, -1e300}, 1e6}, 10)
	})
}

// TestCoverCompleteAndTight checks both promises of a cover: on points of the disc, and on its
// cells with the reference implementation.
func TestCoverCompleteAndTight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := anyDisc(t)
		limit := rapid.IntRange(1, 300).Draw(t, "limit")
		cells := Cover(d, limit)
		require.NotEmpty(t, cells)
		require.LessOrEqual(t, len(cells), limit)
		require.True(t, slices.IsSorted(cells))
		require.Len(t, slices.Compact(slices.Clone(cells)), len(cells))

		length := cells[0].Len()
		for _, c := range cells {
			require.Equal(t, length, c.Len())
			require.True(t, d.Intersects(c.Box()))
			distance := s2Distance(d.Center, c.Box())
			require.LessOrEqual(t, distance, d.Radius+s2Error(distance), "%v is not in %v", c, d)
		}
		for range 20 {
			bearing := rapid.Float64Range(0, 360).Draw(t, "bearing")
			part := rapid.OneOf(rapid.Float64Range(0, 1), rapid.Just(1.0)).Draw(t, "part")
			q := walk(d.Center, bearing, min(d.Radius, halfTurnMeters)*part)
			if !d.Contains(q) {
				continue // rounded across the rim
			}
			_, found := slices.BinarySearch(cells, CellOf(q, length))
			require.True(t, found, "%v of %v is in no cell of the cover", q, d)
		}
	})
}

// TestCoverBruteForce compares a cover with a test of every cell on Earth.
func TestCoverBruteForce(t *testing.T) {
	all := map[int][]Cell{1: Global.Children()}
	for length := 2; length <= 3; length++ {
		for _, c := range all[length-1] {
			all[length] = append(all[length], c.Children()...)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		d := anyDisc(t)
		length := rapid.SampledFrom([]int{1, 1, 2, 2, 2, 2, 2, 3}).Draw(t, "length")
		var want []Cell
		for _, c := range all[length] {
			if d.Intersects(c.Box()) {
				want = append(want, c)
			}
		}
		got, ok := CoverAt(d, length, len(want))
		require.True(t, ok)
		require.Equal(t, want, got)
		_, ok = CoverAt(d, length, len(want)-1)
		require.False(t, ok)

		if length == 1 { // Cover chooses a coarser length only if the finer cover is too large
			require.Equal(t, []Cell{Global}, Cover(d, len(want)-1))
			if next, ok := CoverAt(d, length+1, len(want)); !ok {
				limit := len(want)
				if limit == len(all[1]) { // all parts of the world are the world
					want = []Cell{Global}
				}
				require.Equal(t, want, Cover(d, limit))
			} else {
				require.GreaterOrEqual(t, Cover(d, len(want))[0].Len(), next[0].Len())
			}
		}
	})
}

// anyDisc draws discs of all magnitudes, from 1 m to the whole Earth.
func anyDisc(t *rapid.T) Disc {
	radius := rapid.OneOf(
		rapid.Map(rapid.Float64Range(0, math.Log(MaxRadius)), math.Exp),
		rapid.SampledFrom([]float64{MinRadius, halfTurnMeters / 2, halfTurnMeters - 1, halfTurnMeters - 1e-3, MaxRadius}),
		rapid.Float64Range(halfTurnMeters/2, halfTurnMeters),
	).Draw(t, "radius")
	return Disc{anyPoint(t, "center"), clamp(radius, MinRadius, MaxRadius)}
}

// anyBox draws boxes of cells and other boxes, across the antimeridian too.
func anyBox(t *rapid.T) Box {
	a := anyPoint(t, "corner")
	if rapid.Bool().Draw(t, "cell") {
		return CellOf(a, rapid.IntRange(0, 8).Draw(t, "length")).Box()
	}
	b := anyPoint(t, "other corner")
	if math.Abs(a.Lon-b.Lon) < 1e-9 { // the reference confuses a sliver with its complement
		b.Lon = a.Lon
	}
	return Box{MinLat: min(a.Lat, b.Lat), MaxLat: max(a.Lat, b.Lat), MinLon: a.Lon, MaxLon: b.Lon}
}

// pointOf returns the point of b at fractions of its height and width.
func pointOf(b Box, north, east float64) Point {
	width := b.MaxLon - b.MinLon
	if width < 0 {
		width += 360
	}
	lon := b.MinLon + east*width
	switch {
	case east == 1:
		lon = b.MaxLon
	case lon > 180:
		lon -= 360
	}
	return Point{
		Lat: clamp(b.MinLat+north*(b.MaxLat-b.MinLat), b.MinLat, b.MaxLat),
		Lon: wrapLon(lon),
	}
}

// requireNear compares a distance with the reference implementation.
func requireNear(t *rapid.T, want, got float64) {
	require.InDelta(t, want, got, s2Error(want))
}

// s2Error bounds the error of the reference, which works with chords and deviates by decimetres
// near antipodes.
func s2Error(distance float64) float64 {
	if distance > 0.9*halfTurnMeters {
		return 0.3
	}
	return 1e-6
}

func s2Vector(v Vec) r3.Vector { return r3.Vector{X: v[0], Y: v[1], Z: v[2]} }

// s2Distance returns the reference distance from p to b.
func s2Distance(p Point, b Box) float64 {
	rad := func(deg float64) float64 { return deg * math.Pi / 180 }
	lon := s1.IntervalFromEndpoints(rad(b.MinLon), rad(b.MaxLon))
	if b.MaxLon-b.MinLon == 360 {
		lon = s1.FullInterval()
	}
	rect := s2.Rect{Lat: r1.Interval{Lo: rad(b.MinLat), Hi: rad(b.MaxLat)}, Lng: lon}
	return EarthRadiusMeters * rect.DistanceToLatLng(s2.LatLngFromDegrees(p.Lat, p.Lon)).Radians()
}
