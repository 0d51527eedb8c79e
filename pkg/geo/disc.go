package geo

import (
	"math"
	"slices"

	"github.com/blackhole/blackhole/pkg/fault"
)

// The range of a disc's radius in metres. The largest reaches every point of the Earth.
const (
	MinRadius = 1
	MaxRadius = 20_015_115
)

// maxExpect bounds the memory that a cover takes before it has found any cell.
const maxExpect = 1024

// Disc is the set of points within Radius of Center, its rim included. The zero value
// is the single point (0, 0).
type Disc struct {
	Center Point
	Radius float64 // metres along the great circle, MinRadius .. MaxRadius
}

// NewDisc checks the radius and gives the disc. It returns a fault.Invalid naming
// "radius" when that is not finite or out of range, or one of NewPoint for the centre.
func NewDisc(center Point, radius float64) (Disc, error) {
	center, err := NewPoint(center.Lat, center.Lon)
	if err != nil {
		return Disc{}, err
	}
	if !(radius >= MinRadius && radius <= MaxRadius) {
		return Disc{}, fault.Invalidf("radius", radius, "must be between %d and %d metres", MinRadius, MaxRadius)
	}
	return Disc{Center: center, Radius: radius}, nil
}

// Contains reports whether Distance from the centre to p is at most the radius.
func (d Disc) Contains(p Point) bool { return Distance(d.Center, p) <= d.Radius }

// Intersects reports whether some point of b or of its edges lies in d. A box that
// misses d by no more than about a tenth of a micrometre may be taken to intersect; one that
// holds a point of d always does.
func (d Disc) Intersects(b Box) bool { return MinDistance(d.Center, b) <= d.Radius }

// ContainsBox reports whether every point of b lies in d, so that points known to be
// in b need no test of their own. A box within about a tenth of a micrometre of the rim may
// be taken to stick out.
func (d Disc) ContainsBox(b Box) bool { return MaxDistance(d.Center, b) <= d.Radius }

// Cover gives the cells of one length whose boxes intersect d, sorted: of the longest
// length in MinLen .. MaxLen that needs at most maxCells of them, or {Global} when
// even MinLen needs more. Every point of d lies in a cell given, and every cell given
// intersects d. Its cost is proportional to maxCells at most.
func Cover(d Disc, maxCells int) []Cell {
	for length := MaxLen; length >= MinLen; length-- {
		if cells, ok := CoverAt(d, length, maxCells); ok {
			return cells
		}
	}
	return []Cell{Global}
}

// CoverAt gives the cells of a length 1 .. MaxCellLen whose boxes intersect d, sorted,
// and false when these are more than maxCells or the length is out of range.
func CoverAt(d Disc, length, maxCells int) ([]Cell, bool) {
	if length < 1 || length > MaxCellLen {
		return nil, false
	}
	g := gridOf(length)
	least := g.leastCells(d.Radius)
	if least > float64(maxCells) {
		return nil, false
	}
	expect := min(maxCells, 16+2*int(least), maxExpect)
	s := sweep{grid: g, disc: d, limit: maxCells, codes: make([]uint64, 0, expect)}
	if !s.run() {
		return nil, false
	}
	slices.Sort(s.codes)
	cells := make([]Cell, len(s.codes))
	for i, code := range s.codes {
		cells[i] = g.cell(code)
	}
	return cells, true
}

// leastCells is a lower bound of the number of cells that a disc needs: its area over
// that of a cell at the equator, where cells are largest.
func (g grid) leastCells(radius float64) float64 {
	half := MetersToChord(radius) / 2
	discArea := 4 * math.Pi * half * half // of the unit sphere
	cellArea := (2 * math.Pi / float64(g.cols)) * (math.Pi / float64(g.rows))
	return discArea / cellArea
}

// sweep collects the codes of the cells of grid that intersect disc, row by row.
type sweep struct {
	grid  grid
	disc  Disc
	limit int
	codes []uint64
}

// run visits the rows that the disc reaches and reports whether the limit sufficed.
func (s *sweep) run() bool {
	// Two roundoffs wide, so that a row is left out only if Intersects would say so too.
	reach := (s.disc.Radius + 2*roundoffMeters) / EarthRadiusMeters * (180 / math.Pi)
	center := s.disc.Center
	south, north := s.grid.row(center.Lat-reach), s.grid.row(center.Lat+reach)
	if north-south-1 > s.limit { // all but the outermost two are sure to have cells
		return false
	}
	col := s.grid.col(center.Lon)
	for row := south; row <= north; row++ {
		if !s.sweepRow(row, col) {
			return false
		}
	}
	return true
}

// sweepRow walks from the centre's column eastwards and then westwards until the disc
// ends. Distance grows with the gap in longitude, so nothing beyond intersects; and
// the column that ended the walk eastwards ends the one westwards at the latest.
func (s *sweep) sweepRow(row, center int) bool {
	cols := s.grid.cols
	east := 0
	for ; east < cols && s.intersects(row, center+east); east++ {
		if !s.add(row, center+east) {
			return false
		}
	}
	for west := 1; west < cols-east && s.intersects(row, center-west); west++ {
		if !s.add(row, center-west) {
			return false
		}
	}
	return true
}

// intersects tests the cell at a column that may have run across the antimeridian.
func (s *sweep) intersects(row, col int) bool {
	return s.disc.Intersects(s.grid.box(row, col&(s.grid.cols-1)))
}

// add collects a cell and reports whether it is still within the limit.
func (s *sweep) add(row, col int) bool {
	if len(s.codes) >= s.limit {
		return false
	}
	s.codes = append(s.codes, s.grid.code(row, col&(s.grid.cols-1)))
	return true
}
