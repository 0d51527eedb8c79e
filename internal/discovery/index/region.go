package index

import (
	"cmp"
	"math"
	"slices"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// span is an interval of meridians, both ends included; see meridian.
type span struct{ west, east uint32 }

// region is a set of rows that blocks find quickly: a rectangle of bands and meridians with an
// interval of codes. Regions of cells are exact. Regions of discs include surroundings.
type region struct {
	whole        bool // all rows, with and without a place; the other fields have no effect then
	unplaced     bool // only rows without a place
	south, north int  // bands, both ends included
	spans        [2]span
	spanned      int    // number of spans, which are disjoint
	first, last  uint64 // geo.Codes, both ends included; the maximum in last means any code
}

// Nowhere names the rows without a place where a cell is asked for. It is no cell of a record.
const Nowhere geo.Cell = ""

// withoutPlace returns the region of the rows without a place.
func withoutPlace() region {
	return region{unplaced: true, south: bandCount, north: bandCount, spans: [2]span{{0, math.MaxUint32}}, spanned: 1, last: math.MaxUint64}
}

// everything returns the region of all rows.
func everything() region { return region{whole: true, last: math.MaxUint64} }

// contains reports whether a region of a cell contains a record.
func (r *region) contains(rec *records.Record) bool {
	if r.whole {
		return true
	}
	at, ok := rec.Facts().Place()
	if !ok || r.unplaced {
		return !ok && r.unplaced
	}
	code := geo.Code(at)
	return r.first <= code && code <= r.last
}

// holds reports whether a region of a cell contains a row; any other region contains every row.
// It reads the record if the column does not decide.
func (r *region) holds(p *part, row int) bool {
	const rest = 1<<codeShift - 1
	if r.unplaced {
		return p.codes[row] == noCode && r.contains(p.records[row])
	}
	if r.last == math.MaxUint64 {
		return true
	}
	code, first, last := p.codes[row], uint32(r.first>>codeShift), uint32(r.last>>codeShift)
	switch {
	case code < first || code > last:
		return false
	case code != first && code != last, code != noCode && r.first&rest == 0 && r.last&rest == rest:
		return true
	default:
		return r.contains(p.records[row])
	}
}

// edgeSlack widens rectangles by more than the rounding error, in degrees.
const edgeSlack = 1e-7

// aroundDisc returns a region with every row of a disc, and of the surrounding edgeSlack degrees
// (11 mm).
func aroundDisc(d geo.Disc) region {
	angle := d.Radius / geo.EarthRadiusMeters
	reach := angle*(180/math.Pi) + edgeSlack
	south, north := d.Center.Lat-reach, d.Center.Lat+reach
	r := region{south: bandOf(south), north: bandOf(north), last: math.MaxUint64}
	if south <= -90 || north >= 90 { // the disc contains a pole, so every meridian crosses it
		r.spans[0], r.spanned = span{0, math.MaxUint32}, 1
		return r
	}
	// The meridians that touch the disc (J. P. Snyder, "Map Projections", 1987, right spherical
	// triangle of centre, pole and point of contact).
	sine := math.Sin(reach*(math.Pi/180)) / math.Cos(d.Center.Lat*(math.Pi/180))
	half := math.Asin(math.Min(1, sine))*(180/math.Pi) + edgeSlack
	r.setSpans(d.Center.Lon-half, d.Center.Lon+half)
	return r
}

// setSpans sets the meridians between two longitudes. One of them may lie beyond the
// antimeridian.
func (r *region) setSpans(west, east float64) {
	r.spanned = 2
	switch {
	case east-west >= 360-edgeSlack:
		r.spans[0], r.spanned = span{0, math.MaxUint32}, 1
	case west < -180:
		r.spans = [2]span{{meridian(west + 360), math.MaxUint32}, {0, meridian(east)}}
	case east >= 180:
		r.spans = [2]span{{meridian(west), math.MaxUint32}, {0, meridian(east - 360)}}
	default:
		r.spans[0], r.spanned = span{meridian(west), meridian(east)}, 1
	}
}

// ofCell returns the region of a cell.
func ofCell(c geo.Cell) region {
	b := c.Box()
	r := region{south: bandOf(b.MinLat), north: bandOf(b.MaxLat), spanned: 1}
	r.spans[0] = span{meridian(b.MinLon), meridian(b.MaxLon)}
	r.first, r.last = c.Codes()
	return r
}

// clip returns the intersection of r with the rectangle of o, or false for an empty one.
func (r region) clip(o region) (region, bool) {
	out := r
	out.south, out.north, out.spanned = max(r.south, o.south), min(r.north, o.north), 0
	for _, a := range r.spans[:r.spanned] {
		for _, b := range o.spans[:o.spanned] {
			if both := (span{max(a.west, b.west), min(a.east, b.east)}); both.west <= both.east && out.spanned < len(out.spans) {
				out.spans[out.spanned] = both
				out.spanned++
			}
		}
	}
	return out, out.south <= out.north && out.spanned > 0
}

// cellRegions returns disjoint regions for the rows of the cells, in the memory of regions. Nil
// or a list with Global means everything. Nowhere counts alone.
func cellRegions(regions []region, cells []geo.Cell) []region {
	if cells == nil || slices.Contains(cells, geo.Global) {
		return append(regions, everything())
	}
	if len(cells) == 1 && cells[0] == Nowhere {
		return append(regions, withoutPlace())
	}
	for _, c := range cells {
		if c.Len() > 0 {
			regions = append(regions, ofCell(c))
		}
	}
	slices.SortFunc(regions, func(a, b region) int {
		if a.first != b.first {
			return cmp.Compare(a.first, b.first)
		}
		return cmp.Compare(b.last, a.last) // the larger first
	})
	kept := regions[:0]
	for _, r := range regions {
		if len(kept) == 0 || r.first > kept[len(kept)-1].last { // cells are nested or disjoint
			kept = append(kept, r)
		}
	}
	return kept
}
