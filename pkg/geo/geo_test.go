package geo

import (
	"math"
	"testing"

	"github.com/golang/geo/s2"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/fault"
)

func TestNewPoint(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	for _, tt := range []struct {
		lat, lon float64
		want     Point
		field    string
	}{
		{0, 0, Point{}, ""},
		{52.52, 13.405, Point{52.52, 13.405}, ""},
		{90, 7, Point{90, 7}, ""},
		{-90, -180, Point{-90, -180}, ""},
		{-17.7, 180, Point{-17.7, -180}, ""},
		{math.Nextafter(90, 91), 0, Point{}, "latitude"},
		{-90.5, 0, Point{}, "latitude"},
		{nan, 0, Point{}, "latitude"},
		{-inf, 0, Point{}, "latitude"},
		{nan, nan, Point{}, "latitude"},
		{0, math.Nextafter(180, 181), Point{}, "longitude"},
		{0, -181, Point{}, "longitude"},
		{0, nan, Point{}, "longitude"},
		{0, inf, Point{}, "longitude"},
	} {
		got, err := NewPoint(tt.lat, tt.lon)
		require.Equal(t, tt.want, got, "%v, %v", tt.lat, tt.lon)
		require.Equal(t, tt.field, fault.FieldOf(err))
		if tt.field == "" {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, fault.Invalid)
		}
	}

	p, err := NewPoint(math.Copysign(0, -1), math.Copysign(0, -1))
	require.NoError(t, err)
	require.False(t, math.Signbit(p.Lat) || math.Signbit(p.Lon), "-0 must be 0")
}

func TestDistance(t *testing.T) {
	const degree = halfTurnMeters / 180
	northPole, southPole := Point{90, 0}, Point{-90, 0}
	for _, tt := range []struct {
		name  string
		a, b  Point
		want  float64
		delta float64
	}{
		{"same point", Point{52.52, 13.405}, Point{52.52, 13.405}, 0, 0},
		{"same meridian twice", Point{-17, 180}, Point{-17, -180}, 0, 0},
		{"pole on two meridians", Point{90, 12}, Point{90, -170}, 0, 0},
		{"pole to pole", northPole, Point{-90, 77}, halfTurnMeters, 1e-8},
		{"pole to equator", southPole, Point{0, 33}, 90 * degree, 1e-8},
		{"degree of a meridian", Point{10, 5}, Point{11, 5}, degree, 1e-8},
		{"degree of the equator across the antimeridian", Point{0, 179.5}, Point{0, -179.5}, degree, 1e-8},
		{"over the pole", Point{89, 10}, Point{89, -170}, 2 * degree, 1e-8},
		{"antipodes on the equator", Point{0, 0}, Point{0, 180}, halfTurnMeters, 1e-8},
		{"antipodes", Point{37.5, -122.25}, Point{-37.5, 57.75}, halfTurnMeters, 1e-8},
		{"a metre from the antipode", Point{37.5, -122.25}, Point{-37.5 + 1/degree, 57.75}, halfTurnMeters - 1, 1e-8},
		{"a millimetre", Point{60, 20}, Point{60 + 0.001/degree, 20}, 0.001, 2e-9},
		// By the spherical law of cosines.
		{"Berlin, Paris", Point{52.52, 13.405}, Point{48.8566, 2.3522}, 877_464.5379, 1e-3},
		{"Suva, Apia", Point{-18.1416, 178.4419}, Point{-13.8333, -171.7667}, 1_150_703.5662, 1e-3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.InDelta(t, tt.want, Distance(tt.a, tt.b), tt.delta)
			require.Equal(t, Distance(tt.a, tt.b), Distance(tt.b, tt.a))
		})
	}
}

// TestDistanceProperties compares distances with arcs between vectors in package s2.
func TestDistanceProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyPoint(t, "a"), anyPoint(t, "b")
		if rapid.Bool().Draw(t, "near antipode") {
			b = walk(antipode(a), 77, rapid.Float64Range(0, 10).Draw(t, "meters"))
		}
		d := Distance(a, b)
		require.Equal(t, d, Distance(b, a))
		require.GreaterOrEqual(t, d, 0.0)
		require.LessOrEqual(t, d, halfTurnMeters)
		require.InDelta(t, EarthRadiusMeters*s2Point(a).Distance(s2Point(b)).Radians(), d, roundoffMeters/2)
		require.InDelta(t, halfTurnMeters, d+Distance(b, antipode(a)), roundoffMeters/2)

		c := anyPoint(t, "c")
		require.LessOrEqual(t, d, Distance(a, c)+Distance(c, b)+roundoffMeters)
	})
}

func TestVecAxes(t *testing.T) {
	require.Equal(t, Vec{1, 0, 0}, Point{}.Vec())
	require.Equal(t, Vec{0, 1, 0}, Point{0, 90}.Vec())
	require.Equal(t, Vec{-1, 0, 0}, Point{0, -180}.Vec())
	require.Equal(t, Vec{-1, 0, 0}, Point{0, 180}.Vec())
	require.Equal(t, Vec{0, 0, 1}, Point{90, 55}.Vec())
	require.Equal(t, Vec{0, 0, -1}, Point{-90, -125}.Vec())
}

func TestChords(t *testing.T) {
	require.Equal(t, 2.0, MetersToChord(halfTurnMeters))
	require.Equal(t, 2.0, MetersToChord(math.Inf(1)))
	require.Zero(t, MetersToChord(-1))
	require.Zero(t, MetersToChord(math.NaN()))

	rapid.Check(t, func(t *rapid.T) {
		a, b := anyPoint(t, "a"), anyPoint(t, "b")
		if rapid.Bool().Draw(t, "near") {
			b = walk(a, 200, rapid.Float64Range(0, 10).Draw(t, "meters"))
		}
		d := Distance(a, b)
		delta := roundoffMeters
		if d > 0.95*halfTurnMeters {
			delta = 0.3
		}
		v, w := a.Vec(), b.Vec()
		below := func(chord float64) float64 { return 2 * EarthRadiusMeters * math.Asin(min(chord, 2)/2) }
		require.InDelta(t, d, below(s2Vector(v).Sub(s2Vector(w)).Norm()), delta)
		require.InDelta(t, d, below(MetersToChord(d)), delta)
		require.InDelta(t, math.Cos(d/EarthRadiusMeters), s2Vector(v).Dot(s2Vector(w)), 1e-14)
		require.InDelta(t, 1, s2Vector(v).Norm2(), 1e-15)
	})
}

// s2Point converts p for the reference implementation.
func s2Point(p Point) s2.Point { return s2.Point{Vector: s2Vector(p.Vec())} }

// antipode returns the point opposite to p.
func antipode(p Point) Point {
	if p.Lon < 0 {
		return Point{Lat: -p.Lat, Lon: p.Lon + 180}
	}
	return Point{Lat: -p.Lat, Lon: p.Lon - 180}
}

// walk returns the point at a distance along a bearing from p, clockwise from north.
func walk(p Point, bearing, meters float64) Point {
	sinLat, cosLat := sincosDeg(p.Lat)
	sinLon, cosLon := sincosDeg(p.Lon)
	sinB, cosB := sincosDeg(bearing)
	sin, cos := math.Sincos(meters / EarthRadiusMeters)
	north := Vec{-sinLat * cosLon, -sinLat * sinLon, cosLat}
	east := Vec{-sinLon, cosLon, 0}
	at := p.Vec()
	var to Vec
	for i := range to {
		to[i] = cos*at[i] + sin*(cosB*north[i]+sinB*east[i])
	}
	return Point{
		Lat: math.Atan2(to[2], math.Hypot(to[0], to[1])) * 180 / math.Pi,
		Lon: wrapLon(math.Atan2(to[1], to[0]) * 180 / math.Pi),
	}
}

// anyPoint draws a point, often an edge case: poles, the antimeridian, edges of cells and
// adjacent floating-point numbers.
func anyPoint(t *rapid.T, label string) Point {
	coordinate := func(span float64) *rapid.Generator[float64] {
		return rapid.OneOf(
			rapid.Float64Range(-span/2, span/2),
			rapid.SampledFrom([]float64{-span / 2, -span/2 + 1e-7, -1e-9, 0, 1e-9, span/2 - 1e-7, span / 2}),
			rapid.Custom(func(t *rapid.T) float64 {
				n := 1 << rapid.IntRange(0, 30).Draw(t, "bits")
				x := edge(rapid.IntRange(0, n).Draw(t, "k"), span, n)
				towards := rapid.SampledFrom([]float64{-span, x, span}).Draw(t, "towards")
				return clamp(math.Nextafter(x, towards), -span/2, span/2)
			}),
		)
	}
	p, err := NewPoint(coordinate(180).Draw(t, label+".lat"), coordinate(360).Draw(t, label+".lon"))
	require.NoError(t, err)
	return p
}
