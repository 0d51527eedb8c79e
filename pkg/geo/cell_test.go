package geo

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/fault"
)

func TestCellOf(t *testing.T) {
	below := func(x float64) float64 { return math.Nextafter(x, -1000) }
	for _, tt := range []struct {
		p    Point
		want Cell
	}{
		{Point{57.64911, 10.40744}, "u4pruydqqvj"}, // the example of geohash.org
		{Point{42.605, -5.603}, "ezs42"},
		{Point{-25.382708, -49.265506}, "6gkzwgjzn820"},
		{Point{37.7749, -122.4194}, "9q8yyk8ytpxr"},
		{Point{}, "s00000000000"},
		{Point{below(0), below(0)}, "7zzzzzzzzzzz"},
		{Point{0, below(0)}, "ebpbpbpbpbpb"},
		{Point{90, 0}, "upbpbpbpbpbp"},
		{Point{90, 180}, "bpbpbpbpbpbp"},
		{Point{90, below(180)}, "zzzzzzzzzzzz"},
		{Point{-90, -180}, "000000000000"},
		{Point{-90, 180}, "000000000000"},
		{Point{0, 180}, "800000000000"},
		{Point{0, below(180)}, "xbpbpbpbpbpb"},
		{Point{-17.7134, 178.065}, "ruye5zqgznzm"}, // Fiji, west of the antimeridian
		{Point{-16.8, -179.98}, "2j002mwsfj10"},    // Fiji, east of it
		{Point{45, 90}, "y00000000000"},            // a corner of four cells of length 1
		{Point{below(45), 90}, "wpbpbpbpbpbp"},
		{Point{45, below(90)}, "vbpbpbpbpbpb"},
		{Point{below(45), below(90)}, "tzzzzzzzzzzz"},
	} {
		for n := 1; n <= len(tt.want); n++ {
			require.Equal(t, tt.want[:n], CellOf(tt.p, n), "%v", tt.p)
		}
	}
	require.Equal(t, Global, CellOf(Point{1, 2}, 0))
	require.Equal(t, Global, CellOf(Point{1, 2}, -3))
	require.Equal(t, CellOf(Point{1, 2}, 12), CellOf(Point{1, 2}, 99))
}

func TestIndexCells(t *testing.T) {
	require.Equal(t, []Cell{"global", "u", "u4", "u4p", "u4pr", "u4pru", "u4pruy"},
		IndexCells(Point{57.64911, 10.40744}))
}

func TestCellBox(t *testing.T) {
	require.Equal(t, Box{42.583_007_812_5, 42.626_953_125, -5.625, -5.581_054_687_5}, Cell("ezs42").Box())
	require.Equal(t, Point{42.604_980_468_75, -5.603_027_343_75}, Cell("ezs42").Center())
	require.Equal(t, Box{-90, 90, -180, 180}, Global.Box())
	require.Equal(t, Point{}, Global.Center())
	require.Equal(t, Box{45, 90, 135, 180}, Cell("z").Box())
}

func TestCellTree(t *testing.T) {
	parent, ok := Cell("u4p").Parent()
	require.True(t, ok)
	require.Equal(t, Cell("u4"), parent)
	parent, ok = Cell("u").Parent()
	require.True(t, ok)
	require.Equal(t, Global, parent)
	_, ok = Global.Parent()
	require.False(t, ok)

	require.Empty(t, Cell("u4pruydqqvj8").Children())
	for _, c := range []Cell{Global, "u", "u4pr"} {
		children := c.Children()
		require.Len(t, children, 32)
		require.True(t, slices.IsSorted(children))
		for _, child := range children {
			parent, ok := child.Parent()
			require.True(t, ok)
			require.Equal(t, c, parent)
			require.Equal(t, c.Len()+1, child.Len())
			require.True(t, c.ContainsCell(child))
			require.False(t, child.ContainsCell(c))
			_, err := ParseCell(string(child))
			require.NoError(t, err)
		}
	}
	require.True(t, Global.ContainsCell(Global))
	require.True(t, Cell("u4").ContainsCell("u4"))
	require.False(t, Cell("u4").ContainsCell("u5p"))
	require.False(t, Cell("g").ContainsCell(Global))
}

func TestParseCell(t *testing.T) {
	for _, s := range []string{"global", "g", "u4", "u4pruydqqvj8"} {
		c, err := ParseCell(s)
		require.NoError(t, err)
		require.Equal(t, Cell(s), c)
	}
	for _, s := range []string{"", "a", "u4i", "U4", "Global", "u4pruydqqvj88", "u4 ", "ü", "\x00"} {
		c, err := ParseCell(s)
		require.ErrorIs(t, err, fault.Invalid, "%q", s)
		require.Equal(t, "cell", fault.FieldOf(err))
		require.Empty(t, c)
	}
}

// TestCellProperties checks the rules of containment for every length.
func TestCellProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, q := anyPoint(t, "p"), anyPoint(t, "q")
		length := rapid.IntRange(1, MaxCellLen).Draw(t, "length")
		c := CellOf(p, length)
		g := gridOf(length)

		require.True(t, c.Contains(p))
		require.Equal(t, bisect(p, length), c)
		require.Equal(t, g.box(g.row(p.Lat), g.col(p.Lon)), c.Box())
		require.Equal(t, c, CellOf(c.Center(), length))

		parsed, err := ParseCell(string(c))
		require.NoError(t, err)
		require.Equal(t, c, parsed)

		require.Equal(t, CellOf(q, length) == c, c.Contains(q))
		first, last := c.Codes()
		require.Equal(t, c.Contains(q), first <= Code(q) && Code(q) <= last)
		require.Equal(t, CellOf(p, 12) < CellOf(q, 12), Code(p) < Code(q))

		owners := 0
		for _, child := range c.Children() {
			if child.Contains(p) {
				owners++
			}
		}
		require.Equal(t, length < MaxCellLen, owners == 1, "%d children own %v", owners, p)
	})
}

// bisect implements the definition of geohash, one bit at a time.
func bisect(p Point, length int) Cell {
	lo, hi, x := [2]float64{-180, -90}, [2]float64{180, 90}, [2]float64{wrapLon(p.Lon), p.Lat}
	var c Cell
	for i, v := 0, 0; i < bitsPerChar*length; i++ {
		axis := i % 2
		v *= 2
		if mid := (lo[axis] + hi[axis]) / 2; x[axis] >= mid {
			lo[axis] = mid
			v++
		} else {
			hi[axis] = mid
		}
		if i%bitsPerChar == bitsPerChar-1 {
			c += Cell(alphabet[v])
			v = 0
		}
	}
	return c
}

func TestCodesOfGlobal(t *testing.T) {
	first, last := Global.Codes()
	require.Zero(t, first)
	require.Equal(t, uint64(1<<60-1), last)
	require.Equal(t, last, Code(Point{90, math.Nextafter(180, 0)}))
}

// TestForeignCells: a Cell converted from any string causes no panic.
func TestForeignCells(t *testing.T) {
	for _, c := range []Cell{"", "!", "ABC", "u4pruydqqvj88888888", "\xff\xff"} {
		require.NotPanics(t, func() {
			c.Box()
			c.Center()
			c.Codes()
			c.Children()
			_, _ = c.Parent()
			c.Contains(Point{1, 1})
		}, "%q", c)
	}
}

func FuzzParseCell(f *testing.F) {
	for _, s := range []string{"", "global", "u4pruydqqvj8", "u4pruydqqvj88", "A", "z\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseCell(s)
		if err != nil {
			if !errors.Is(err, fault.Invalid) || c != "" {
				t.Fatalf("ParseCell(%q) = %q, %v", s, c, err)
			}
			return
		}
		if string(c) != s {
			t.Fatalf("ParseCell(%q) = %q", s, c)
		}
		if got := CellOf(c.Center(), c.Len()); got != c {
			t.Fatalf("cell of the centre of %q is %q", c, got)
		}
	})
}

func FuzzCellOf(f *testing.F) {
	f.Add(90.0, 180.0, 6)
	f.Add(math.Nextafter(0, -1), -180.0, 12)
	f.Add(math.NaN(), math.Inf(1), -1)
	f.Fuzz(func(t *testing.T, lat, lon float64, length int) {
		c := CellOf(Point{lat, lon}, length) // must not panic for any numbers
		p, err := NewPoint(lat, lon)
		if err != nil {
			return
		}
		if got := CellOf(p, length); got != c || !c.Contains(p) || !c.Contains(Point{lat, lon}) {
			t.Fatalf("CellOf(%v, %d) = %q, raw %q", p, length, got, c)
		}
	})
}
