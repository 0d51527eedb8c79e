// Package geo provides geography on a sphere: points, geohash cells, discs around a point, and
// distances.
//
// The Earth is a sphere of radius EarthRadiusMeters. Distances follow the great circle and
// differ from the ellipsoid's by at most about 0.6 %. All functions are pure and correct at the
// poles and across the antimeridian. They never panic. Results are meaningful for points
// made by NewPoint and discs with a radius in range.
//
// # Boundaries
//
// A cell contains its southern and western edges, but not its northern and eastern ones, so
// every point lies in exactly one cell of each length. The cells of the northernmost row also
// contain the pole. Longitude 180 is the same meridian as -180 and belongs to the cells east of
// it. Discs are closed: a cell that touches a disc intersects it.
//
// # Rounding
//
// Cells, their edges and codes are exact and equal on every machine. Distances have an error of
// a few nanometres. Their last bits may differ between processor architectures, because Go may
// fuse a multiplication with an addition: callers that need one order everywhere compare rounded
// distances. Lower and upper bounds are widened by a tenth of a micrometre, so that they hold
// for Distance as computed: a cover never misses a point of its disc.
package geo

import (
	"math"

	"github.com/blackhole/blackhole/pkg/fault"
)

// EarthRadiusMeters is the mean radius R1 of the International Union of Geodesy and Geophysics
// for the WGS 84 ellipsoid, (2a+b)/3.
const EarthRadiusMeters = 6371008.8

// halfTurnMeters is the distance between antipodes.
const halfTurnMeters = math.Pi * EarthRadiusMeters

// roundoffMeters bounds the error of every computed distance with a margin of more than ten.
// Bounds are widened by it.
const roundoffMeters = 1e-7

// Point is a place in degrees of the WGS 84 datum. The zero value is the place (0, 0) in the
// Gulf of Guinea, not a missing place.
type Point struct {
	Lat float64 // north positive, -90 .. 90
	Lon float64 // east positive, -180 .. 180; NewPoint never returns 180
}

// NewPoint checks the coordinates and returns the normalised point: longitude 180 becomes -180,
// and negative zeros become zero. A value out of range is a fault.Invalid error naming
// "latitude" or "longitude".
func NewPoint(lat, lon float64) (Point, error) {
	if !(math.Abs(lat) <= 90) {
		return Point{}, fault.Invalidf("latitude", lat, "must be between -90 and 90 degrees")
	}
	if !(math.Abs(lon) <= 180) {
		return Point{}, fault.Invalidf("longitude", lon, "must be between -180 and 180 degrees")
	}
	return Point{Lat: lat + 0, Lon: wrapLon(lon) + 0}, nil // adding 0 turns -0 into 0
}

// Vec is a place as a unit vector from the centre of the Earth: x points to (0, 0), y to (0, 90
// E), z to the north pole. Squared chords between vectors order places by distance without
// trigonometry. The zero value is invalid.
type Vec [3]float64

// Vec returns p as a unit vector.
func (p Point) Vec() Vec {
	sinLat, cosLat := sincosDeg(p.Lat)
	sinLon, cosLon := sincosDeg(p.Lon)
	return Vec{cosLat * cosLon, cosLat * sinLon, sinLat}
}

// MetersToChord converts a distance along a great circle to the chord below it, in units of the
// Earth's radius, 0 .. 2. Distances are limited to 0 .. half a turn.
//
// Chords near half a turn hardly differ: there a chord resolves distances only to about 0.2 m.
// Up to a quarter turn it resolves nanometres.
func MetersToChord(meters float64) float64 {
	return 2 * math.Sin(clamp(meters, 0, halfTurnMeters)/(2*EarthRadiusMeters))
}

// Distance returns the length in metres of the great circle arc between a and b, 0 .. half a
// turn. It is exact to a few nanometres everywhere, antipodes included, and symmetric to the
// last bit.
func Distance(a, b Point) float64 {
	return EarthRadiusMeters * arc(a.Lat, b.Lat, lonGap(a.Lon, b.Lon))
}

// arc returns the angle in radians between two points at latitudes a and b, with a gap in
// longitude; all in degrees.
//
// It computes the haversine of the angle and of its supplement, because a single haversine loses
// digits for small angles or near half a turn (R. W. Sinnott, "Virtues of the Haversine", Sky
// and Telescope 68, 1984).
func arc(a, b, gap float64) float64 {
	sinDiff, _ := sincosDeg((a - b) / 2)
	sinSum, _ := sincosDeg((a + b) / 2)
	sinGap, cosGap := sincosDeg(gap / 2)
	_, cosA := sincosDeg(a)
	_, cosB := sincosDeg(b)
	near := sinDiff*sinDiff + cosA*cosB*sinGap*sinGap
	far := sinSum*sinSum + cosA*cosB*cosGap*cosGap
	return 2 * math.Atan2(math.Sqrt(near), math.Sqrt(far))
}

// sincosDeg returns the sine and cosine of an angle in degrees, exact at multiples of 90.
func sincosDeg(deg float64) (sin, cos float64) {
	quarter := math.RoundToEven(deg / 90)
	sin, cos = math.Sincos((deg - 90*quarter) * (math.Pi / 180))
	switch int(quarter) & 3 {
	case 1:
		return cos, -sin
	case 2:
		return -sin, -cos
	case 3:
		return -cos, sin
	default:
		return sin, cos
	}
}

// lonGap returns the angle between two meridians, 0 .. 180 degrees.
func lonGap(a, b float64) float64 {
	gap := math.Abs(a - b)
	if gap > 180 {
		gap = math.Abs(360 - gap)
	}
	return gap
}

// wrapLon converts a longitude of -180 .. 180 to the half-open range without 180.
func wrapLon(lon float64) float64 {
	if lon >= 180 {
		return lon - 360
	}
	return lon
}

// clamp limits x to lo .. hi, with lo for NaN.
func clamp(x, lo, hi float64) float64 {
	switch {
	case x > hi:
		return hi
	case x > lo:
		return x
	default:
		return lo
	}
}
