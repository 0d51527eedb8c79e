package geo

import (
	"math"
	"slices"
)

// The range of a disc's radius in metres. The largest disc covers the Earth.
const (
	MinRadius = 1
	MaxRadius = 20_015_115
)

// maxExpect limits the initial memory of a cover.
const maxExpect = 1024

// Disc is the set of points within Radius of Center, its rim included. The zero value is the
// single point (0, 0).
type Disc struct {
	Center Point
	Radius float64 // metres along the great circle, MinRadius .. MaxRadius
}

// Contains reports whether Distance from the centre to p is at most the radius.
func (d Disc) Contains(p Point) bool { return Distance(d.Center, p) <= d.Radius }

// Intersects reports whether d contains a point of b or its edges. It may accept a box up to
// about a tenth of a micrometre outside d, but never misses a box with a point of d.
func (d Disc) Intersects(b Box) bool { return MinDistance(d.Center, b) <= d.Radius }

// Cover returns the sorted cells of one length with boxes that intersect d. It chooses the
// longest length in 1 .. MaxLen with at most maxCells such cells, or {Global} without one, and for all parts of it.
// The cells contain every point of d, and every cell intersects d. The cost is at most
// proportional to maxCells.
func Cover(d Disc, maxCells int) []Cell {
	for length := MaxLen; length > 0; length-- {
		if cells, ok := CoverAt(d, length, maxCells); ok && (length > 1 || len(cells) < len(alphabet)) {
			return cells
		}
	}
	return []Cell{Global}
}

// CoverAt returns the sorted cells of a length 1 .. MaxCellLen with boxes that intersect d. It
// returns false for more than maxCells cells or a length out of range.
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

// leastCells is a lower bound on the number of cells in a cover: the disc's area divided by the
// area of a cell at the equator, the largest of its length.
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

// run visits the rows of the disc and reports whether the limit sufficed.
func (s *sweep) run() bool {
	// Two roundoffs wide, so that sweep skips a row only if Intersects would refuse it too.
	reach := (s.disc.Radius + 2*roundoffMeters) / EarthRadiusMeters * (180 / math.Pi)
	center := s.disc.Center
	south, north := s.grid.row(center.Lat-reach), s.grid.row(center.Lat+reach)
	if north-south-1 > s.limit { // all rows except the outermost two certainly have cells
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

// sweepRow walks from the centre's column eastwards and then westwards to the ends of the disc.
// Distance grows with the gap in longitude, so farther columns cannot intersect. The last
// eastward column also ends the westward walk.
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

// intersects tests the cell at a column, which may lie beyond the antimeridian.
func (s *sweep) intersects(row, col int) bool {
	return s.disc.Intersects(s.grid.box(row, col&(s.grid.cols-1)))
}

// add collects a cell and reports whether the limit permits more.
func (s *sweep) add(row, col int) bool {
	if len(s.codes) >= s.limit {
		return false
	}
	s.codes = append(s.codes, s.grid.code(row, col&(s.grid.cols-1)))
	return true
}
