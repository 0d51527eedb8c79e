package geo

import (
	"strings"

	"github.com/mmcloughlin/geohash"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Cell is a geohash prefix of 1 to MaxCellLen characters, or Global. Cells form a
// tree: a cell's parent is its prefix shorter by one character, and Global is the
// root. The zero value is no cell.
//
// Geohash is the interleaving, longitude first, of the binary expansions of
// longitude and latitude, in base 32 (G. Niemeyer, geohash.org, 2008; alphabet
// "0123456789bcdefghjkmnpqrstuvwxyz").
type Cell string

// Global is the cell of the whole Earth.
const Global Cell = "global"

// The lengths of cells that serve as index keys, beside Global: from about
// 1250 km by 625 km at the equator down to 1.2 km by 0.6 km.
const (
	MinLen = 2
	MaxLen = 6
)

// DeepLen is the length of the smallest cells, of about 38 m by 19 m, that an index key
// descends to where so many records lie in a cell of MaxLen that it is divided further.
const DeepLen = 8

// MaxCellLen is the length of the smallest cells, about 37 mm by 19 mm.
const MaxCellLen = 12

const alphabet = "0123456789bcdefghjkmnpqrstuvwxyz"

// bitsPerChar is log2 of the fan-out of the tree.
const bitsPerChar = 5

// ParseCell reads a cell in its one spelling, lower case. It returns a fault.Invalid
// naming "cell" for anything else.
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

// CellOf gives the cell of a length that owns p. Length 0 is Global; lengths outside
// of 0 .. MaxCellLen are taken as the nearer end.
func CellOf(p Point, length int) Cell {
	length = max(0, min(length, MaxCellLen))
	if length == 0 {
		return Global
	}
	g := gridOf(length)
	return g.cell(g.code(g.row(p.Lat), g.col(p.Lon)))
}

// IndexCells gives all the cells that index p: Global, then those of the lengths
// MinLen to MaxLen.
func IndexCells(p Point) []Cell {
	cells := make([]Cell, 1, 2+MaxLen-MinLen)
	cells[0] = Global
	longest := CellOf(p, MaxLen)
	for n := MinLen; n <= MaxLen; n++ {
		cells = append(cells, longest[:n])
	}
	return cells
}

// Len is the number of characters of the geohash, the depth of c in the tree; 0 for Global.
func (c Cell) Len() int {
	if c == Global {
		return 0
	}
	return len(c)
}

// Contains reports whether c owns p: CellOf(p, c.Len()) == c.
func (c Cell) Contains(p Point) bool { return c.Box().Contains(p) }

// ContainsCell reports whether d is c or a descendant of c.
func (c Cell) ContainsCell(d Cell) bool {
	return c == Global || d != Global && strings.HasPrefix(string(d), string(c))
}

// Box gives the edges of c, which are exact.
func (c Cell) Box() Box {
	if c == Global {
		return Box{MinLat: -90, MaxLat: 90, MinLon: -180, MaxLon: 180}
	}
	b := geohash.BoundingBox(string(c))
	return Box{MinLat: b.MinLat, MaxLat: b.MaxLat, MinLon: b.MinLng, MaxLon: b.MaxLng}
}

// Center gives the middle of c's box in degrees; (0, 0) for Global.
func (c Cell) Center() Point {
	b := c.Box()
	return Point{Lat: (b.MinLat + b.MaxLat) / 2, Lon: (b.MinLon + b.MaxLon) / 2}
}

// Parent gives the cell around c, and false for Global, which has none.
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

// Children gives the 32 cells that c is made of, sorted; none for a cell of MaxCellLen.
// Those of Global have length 1, shorter than the cells of the index.
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

// Code is p's geohash of MaxCellLen characters as a number of 60 bits. Sorting points
// by it keeps those of every cell together: see Cell.Codes.
func Code(p Point) uint64 {
	g := gridOf(MaxCellLen)
	return g.code(g.row(p.Lat), g.col(p.Lon))
}

// Codes gives the first and the last Code of the points that c owns. Cells that do
// not contain one another have disjoint ranges, in the order of the cells.
func (c Cell) Codes() (first, last uint64) {
	shift := bitsPerChar * max(0, MaxCellLen-c.Len())
	if c != Global {
		first, _ = geohash.ConvertStringToInt(string(c))
	}
	return first << shift, (first+1)<<shift - 1
}

// grid is the division of the Earth into the cells of one length. Numbers of rows and
// columns are powers of two up to 2^30, which makes every edge a float64 without
// rounding.
type grid struct {
	length     int
	rows, cols int
}

// gridOf gives the grid of a length 1 .. MaxCellLen.
func gridOf(length int) grid {
	bits := bitsPerChar * length
	return grid{length: length, rows: 1 << (bits / 2), cols: 1 << (bits - bits/2)}
}

// row gives the row of a latitude, counted from the south pole.
func (g grid) row(lat float64) int { return slot(lat, 180, g.rows) }

// col gives the column of a longitude, counted from the antimeridian eastwards.
func (g grid) col(lon float64) int { return slot(wrapLon(lon), 360, g.cols) }

// box gives the edges of the cell at a row and a column.
func (g grid) box(row, col int) Box {
	return Box{
		MinLat: edge(row, 180, g.rows), MaxLat: edge(row+1, 180, g.rows),
		MinLon: edge(col, 360, g.cols), MaxLon: edge(col+1, 360, g.cols),
	}
}

// code gives the geohash of the cell at a row and a column as a number.
//
// It encodes the cell's middle. The library rounds differently on different
// processors for points close to an edge, and takes latitude 90 for -90 and
// longitude 180 for -180; the middle is safe from all of these.
func (g grid) code(row, col int) uint64 {
	lat := (edge(row, 180, g.rows) + edge(row+1, 180, g.rows)) / 2
	lon := (edge(col, 360, g.cols) + edge(col+1, 360, g.cols)) / 2
	return geohash.EncodeIntWithPrecision(lat, lon, uint(bitsPerChar*g.length))
}

// cell spells the geohash of a code.
func (g grid) cell(code uint64) Cell {
	return Cell(geohash.ConvertIntToString(code, uint(g.length)))
}

// edge gives the lower bound of slot k when -span/2 .. span/2 is cut into n slots.
func edge(k int, span float64, n int) float64 {
	return float64(k)*span/float64(n) - span/2
}

// slot gives the k in 0 .. n-1 with edge(k) <= x < edge(k+1), and the nearest slot for
// an x outside of the span.
func slot(x, span float64, n int) int {
	k := int(clamp((x+span/2)/span*float64(n), 0, float64(n-1)))
	// Edges come through the quotient exactly and rounding keeps order, so it can carry
	// x up to the edge above, never below the one beneath.
	if k > 0 && x < edge(k, span, n) {
		return k - 1
	}
	return k
}
