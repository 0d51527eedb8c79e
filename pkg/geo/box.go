package geo

import "math"

// Box is a rectangle of latitudes and longitudes in degrees. It contains its southern and
// western edges, and a northern edge at the pole. A box with MinLon > MaxLon crosses the
// antimeridian; boxes of cells never do. The zero value is the empty box at (0, 0).
type Box struct {
	MinLat, MaxLat float64 // -90 .. 90
	MinLon, MaxLon float64 // -180 .. 180
}

// Contains reports whether b contains p.
func (b Box) Contains(p Point) bool {
	if !(p.Lat >= b.MinLat && (p.Lat < b.MaxLat || p.Lat == 90 && b.MaxLat == 90)) {
		return false
	}
	lon := wrapLon(p.Lon)
	if b.MinLon > b.MaxLon {
		return lon >= b.MinLon || lon < b.MaxLon
	}
	return lon >= b.MinLon && lon < b.MaxLon
}

// lonGap returns the angle from a meridian to the nearest meridian of b, 0 .. 180 degrees.
func (b Box) lonGap(lon float64) float64 {
	width := b.MaxLon - b.MinLon
	if width < 0 {
		width += 360
	}
	east := lon - b.MinLon
	if east < 0 {
		east += 360
	}
	if east <= width {
		return 0
	}
	return math.Max(0, math.Min(east-width, 360-east))
}

// MinDistance returns a lower bound in metres of the distance from p to every point of b and its
// edges. It lies about a tenth of a micrometre below the true minimum. A point inside b has
// distance 0.
func MinDistance(p Point, b Box) float64 {
	return math.Max(0, EarthRadiusMeters*arcToBox(p, b)-roundoffMeters)
}

// arcToBox returns the angle in radians from p to the nearest point of b.
//
// On every parallel the distance grows with the gap in longitude, so the nearest point lies on
// the meridian of b nearest to p. Along a meridian the cosine of the distance is A sin(lat) + B
// cos(lat), a cosine curve with its peak at atan2(A, B).
func arcToBox(p Point, b Box) float64 {
	gap := b.lonGap(p.Lon)
	if gap == 0 {
		return math.Abs(p.Lat-clamp(p.Lat, b.MinLat, b.MaxLat)) * (math.Pi / 180)
	}
	if gap > 90 { // the peak lies beyond a pole: one of the ends is nearest
		return math.Min(arc(p.Lat, b.MinLat, gap), arc(p.Lat, b.MaxLat, gap))
	}
	sinLat, cosLat := sincosDeg(p.Lat)
	_, cosGap := sincosDeg(gap)
	peak := math.Atan2(sinLat, cosLat*cosGap) * (180 / math.Pi)
	return arc(p.Lat, clamp(peak, b.MinLat, b.MaxLat), gap)
}
