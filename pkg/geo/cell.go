package geo

import (
	"strings"

	"github.com/mmcloughlin/geohash"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Cell is a geohash prefix of 1 to MaxCellLen characters, or Global. Cells form a tree: a cell's
// parent is its prefix shorter by one character, with Global as the root. The zero value is
// invalid. Package geohash checks the spelling. Cells are computed here by halving, because all peers
// must agree on the cell of a place on an edge, and its encoder rounds there.
//
// Geohash interleaves the binary expansions of longitude and latitude, longitude first, in base
// 32 (G. Niemeyer, geohash.org, 2008; alphabet "0123456789bcdefghjkmnpqrstuvwxyz").
type Cell string

// Global is the cell of the whole Earth.
const Global Cell = "global"

// MaxLen is the length of the smallest cells used as index keys, about 1.2 km by 0.6 km at the equator. All their ancestors are
// index keys too, so each cell has 32 parts.
const MaxLen = 6

// DeepLen is the length of the smallest cells in index keys, about 5 m by 5 m. They are parts of a
// full cell of length MaxLen.
const DeepLen = 9

// MaxCellLen is the length of the smallest cells, about 37 mm by 19 mm.
const MaxCellLen = 12

const alphabet = "0123456789bcdefghjkmnpqrstuvwxyz"

// bitsPerChar is log2 of the fan-out of the tree.
const bitsPerChar = 5

// ParseCell parses the canonical lower-case spelling of a cell. Other input is a fault.Invalid
// error naming "cell".
func ParseCell(s string) (Cell, error) {
	if s == string(Global) {
		return Global, nil
	}
	if len(s) < 1 || len(s) > MaxCellLen {
		return "", fault.Invalidf("cell", nil, "must have 1 to %d characters, or be %q", MaxCellLen, Global)
	}
	if err := geohash.Validate(s); err != nil {
		return "", fault.Invalidf("cell", s, "must be a geohash: %w", err)
	}
	return Cell(s), nil
}

// CellOf returns the cell of a length that contains p. Length 0 means Global; other lengths are
// limited to 0 .. MaxCellLen.
func CellOf(p Point, length int) Cell {
	length = max(0, min(length, MaxCellLen))
	if length == 0 {
		return Global
	}
	g := gridOf(length)
	return g.cell(g.code(g.row(p.Lat), g.col(p.Lon)))
}

// IndexCells returns all index cells of p: Global, then the lengths 1 to MaxLen.
func IndexCells(p Point) []Cell {
	cells := make([]Cell, 1+MaxLen)
	cells[0] = Global
	longest := CellOf(p, MaxLen)
	for n := range MaxLen {
		cells[1+n] = longest[:1+n]
	}
	return cells
}

// Len returns the number of characters of the geohash, the depth of c in the tree; 0 for Global.
func (c Cell) Len() int {
	if c == Global {
		return 0
	}
	return len(c)
}

// Contains reports whether c contains p: CellOf(p, c.Len()) == c.
func (c Cell) Contains(p Point) bool { return c.Box().Contains(p) }

// ContainsCell reports whether d is c or a descendant of c.
func (c Cell) ContainsCell(d Cell) bool {
	return c == Global || d != Global && strings.HasPrefix(string(d), string(c))
}

// Box returns the exact edges of c.
func (c Cell) Box() Box {
	if c == Global {
		return Box{MinLat: -90, MaxLat: 90, MinLon: -180, MaxLon: 180}
	}
	b := geohash.BoundingBox(string(c))
	return Box{MinLat: b.MinLat, MaxLat: b.MaxLat, MinLon: b.MinLng, MaxLon: b.MaxLng}
}

// Center returns the middle of c's box in degrees; (0, 0) for Global.
func (c Cell) Center() Point {
	b := c.Box()
	return Point{Lat: (b.MinLat + b.MaxLat) / 2, Lon: (b.MinLon + b.MaxLon) / 2}
}

// Parent returns the cell around c, or false for Global.
func (c Cell) Parent() (Cell, bool) {
	switch c.Len() {
	case 0:
		return "", false
	case 1:
		return Global, true
	default:
		return c[:len(c)-1], true
	}
}

// Children returns the 32 parts of c, sorted; none for a cell of MaxCellLen.
func (c Cell) Children() []Cell {
	if c.Len() >= MaxCellLen {
		return nil
	}
	prefix := c[:c.Len()]
	cells := make([]Cell, len(alphabet))
	for i := range cells {
		cells[i] = prefix + Cell(alphabet[i])
	}
	return cells
}

// Code returns p's geohash of MaxCellLen characters as a number of 60 bits. Sorting points by
// Code groups the points of every cell: see Cell.Codes.
func Code(p Point) uint64 {
	g := gridOf(MaxCellLen)
	return g.code(g.row(p.Lat), g.col(p.Lon))
}

// CellAt returns the cell of a length 1 .. MaxCellLen with a number among those of this length, in their order.
func CellAt(number uint64, length int) Cell { return gridOf(length).cell(number) }

// Codes returns the first and last Code of the points in c. Disjoint cells have disjoint ranges,
// in the order of the cells.
func (c Cell) Codes() (first, last uint64) {
	shift := bitsPerChar * max(0, MaxCellLen-c.Len())
	if c != Global {
		first, _ = geohash.ConvertStringToInt(string(c))
	}
	return first << shift, (first+1)<<shift - 1
}

// grid divides the Earth into the cells of one length. Numbers of rows and columns are powers of
// two up to 2^30, so that every edge is an exact float64.
type grid struct {
	length     int
	rows, cols int
}

// gridOf returns the grid of a length 1 .. MaxCellLen.
func gridOf(length int) grid {
	bits := bitsPerChar * length
	return grid{length: length, rows: 1 << (bits / 2), cols: 1 << (bits - bits/2)}
}

// row returns the row of a latitude, counted from the south pole.
func (g grid) row(lat float64) int { return slot(lat, 180, g.rows) }

// col returns the column of a longitude, counted eastwards from the antimeridian.
func (g grid) col(lon float64) int { return slot(wrapLon(lon), 360, g.cols) }

// box returns the edges of the cell at a row and a column.
func (g grid) box(row, col int) Box {
	return Box{
		MinLat: edge(row, 180, g.rows), MaxLat: edge(row+1, 180, g.rows),
		MinLon: edge(col, 360, g.cols), MaxLon: edge(col+1, 360, g.cols),
	}
}

// code returns the geohash of the cell at a row and a column as a number: their bits in turn, from the highest one of the column on.
func (g grid) code(row, col int) uint64 {
	if bitsPerChar*g.length%2 == 0 {
		return spread(col)<<1 | spread(row)
	}
	return spread(col) | spread(row)<<1
}

// spread puts a zero before each of the low 32 bits of x (G. M. Morton, 1966).
func spread(x int) uint64 {
	b := uint64(x)
	b = (b | b<<16) & 0x0000ffff0000ffff
	b = (b | b<<8) & 0x00ff00ff00ff00ff
	b = (b | b<<4) & 0x0f0f0f0f0f0f0f0f
	b = (b | b<<2) & 0x3333333333333333
	return (b | b<<1) & 0x5555555555555555
}

// cell spells the geohash of a code.
func (g grid) cell(code uint64) Cell {
	return Cell(geohash.ConvertIntToString(code, uint(g.length)))
}

// edge returns the lower bound of slot k for -span/2 .. span/2 cut into n slots.
func edge(k int, span float64, n int) float64 {
	return float64(k)*span/float64(n) - span/2
}

// slot returns the k in 0 .. n-1 with edge(k) <= x < edge(k+1), and the nearest slot for an x
// outside of the span.
func slot(x, span float64, n int) int {
	k := int(clamp((x+span/2)/span*float64(n), 0, float64(n-1)))
	// The quotient is exact at edges and rounding keeps order: x may reach the edge above, but
	// never falls below the edge beneath.
	if k > 0 && x < edge(k, span, n) {
		return k - 1
	}
	return k
}
