package term

import (
	"math"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/text/width"

	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Terminal describes the terminal of the program. The zero value is none: files and pipes.
type Terminal struct {
	Size   func() (columns, rows int) // of standard output; nil for files and pipes
	Errors bool                       // standard error is a terminal
	Input  bool                       // standard input is a terminal: somebody can answer
	Raw    func() (restore func())    // lets keys arrive at once and unseen; nil: no terminal
}

// Screen is what text is laid out for. The zero value is a file or a pipe: any width, no colours.
type Screen struct {
	Columns int // 0: any
	colour  bool
}

// Layout is the text form of a document.
type Layout interface {
	// On lays the document out for a screen.
	On(s Screen) string
}

// Plain is lines without a layout.
type Plain string

// On implements Layout.
func (p Plain) On(Screen) string { return clean.Lines(string(p), math.MaxInt) }

// Grid is rows in aligned columns. On a narrow screen spare columns are left out, the last column wraps, peer ids are
// abbreviated as ShortPeer does, and then the widest columns wrap, the first one last: it names the row. A pipe gets everything.
type Grid struct {
	header []string // nil: none
	Rows   [][]string
	Above  map[int][]string // lines before a row
	Below  map[int][]string // lines after a row, indented
	Notes  []string         // lines at the end
	Spare  []string         // headers of columns that a narrow screen does without, the first of them first
}

// Table lays out rows under a header in aligned columns.
func Table(header []string, rows [][]string) Grid { return Grid{header: header, Rows: rows} }

// Without returns the grid with spare columns.
func (g Grid) Without(spare ...string) Grid {
	g.Spare = spare
	return g
}

// Beside returns the grid with columns after the one with a header.
func (g Grid) Beside(header string, headers []string, columns ...[]string) Grid {
	at := slices.Index(g.header, header) + 1
	g.header = slices.Insert(slices.Clone(g.header), at, headers...)
	for n := range g.Rows {
		for i, cells := range columns {
			g.Rows[n] = slices.Insert(g.Rows[n], at+i, cells[n])
		}
	}
	return g
}

// Pairs lays out names and values, one pair a line.
func Pairs(rows [][]string) Grid { return Grid{Rows: rows} }

const (
	columnGap    = 2
	narrowColumn = 8  // a column is not made narrower
	NarrowText   = 24 // the last column keeps this width while others can be narrower
)

// On implements Layout.
func (g Grid) On(s Screen) string {
	cells := make([][]string, 0, len(g.Rows)+1)
	for _, row := range g.lines() {
		clear := make([]string, len(row))
		for i, cell := range row {
			clear[i] = Clean(cell)
		}
		cells = append(cells, clear)
	}
	cells, left := g.narrowed(cells, s.Columns)
	widths := fit(cells, s.Columns)
	var b strings.Builder
	if g.header != nil {
		writeRow(&b, cells[0], widths, func(string) string { return Bold }, s)
		cells = cells[1:]
	}
	for i, row := range cells {
		writeLines(&b, g.Above[i], "", s)
		writeRow(&b, row, widths, hue, s)
		writeLines(&b, g.Below[i], "    ", s)
	}
	writeLines(&b, g.Notes, "", s)
	if left > 0 {
		writeLines(&b, []string{"(" + fault.Counted(left, "column") + " left out: widen, or -o json)"}, "", s)
	}
	return b.String()
}

// narrowed returns the cells without as many spare columns as are too much for the screen, and how many it left out.
func (g Grid) narrowed(cells [][]string, columns int) (kept [][]string, left int) {
	for _, name := range g.Spare {
		if columns <= 0 || total(widthsOf(cells), 0) <= columns {
			break
		}
		if i := slices.Index(cells[0], name); i >= 0 {
			for n := range cells {
				cells[n] = slices.Delete(cells[n], i, i+1)
			}
			left++
		}
	}
	return cells, left
}

// lines is the header, if any, and the rows.
func (g Grid) lines() [][]string {
	if g.header == nil {
		return g.Rows
	}
	return append([][]string{g.header}, g.Rows...)
}

// fit returns the widths of the columns, and abbreviates peer ids that are too wide for the screen.
func fit(cells [][]string, columns int) []int {
	widths := widthsOf(cells)
	if columns <= 0 || total(widths, 0) <= columns {
		return widths
	}
	last := len(widths) - 1
	if total(widths[:last], min(widths[last], NarrowText)) > columns {
		for _, row := range cells {
			for i := range row {
				row[i] = ShortPeers(row[i])
			}
		}
		widths = widthsOf(cells)
	}
	for total(widths[:last], min(widths[last], NarrowText)) > columns {
		widest := 0
		for i, w := range widths[:last] {
			if w > narrowColumn && (widest == 0 || w > widths[widest]) {
				widest = i
			}
		}
		if widths[widest] <= narrowColumn {
			break // too many columns for any layout: the terminal wraps them
		}
		widths[widest]--
	}
	widths[last] = min(widths[last], max(columns-total(widths[:last], 1)+1, narrowColumn))
	return widths
}

func widthsOf(cells [][]string) []int {
	var widths []int
	for _, row := range cells {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], textWidth(cell))
		}
	}
	return widths
}

// total is the width of columns with gaps, and of one more column if further is above 0.
func total(widths []int, further int) int {
	sum := further
	for i, w := range widths {
		sum += w
		if i < len(widths)-1 || further > 0 {
			sum += columnGap
		}
	}
	return sum
}

// writeRow writes a row, whose cells wrap.
func writeRow(b *strings.Builder, row []string, widths []int, hue func(cell string) string, s Screen) {
	lines, most := make([][]string, len(row)), 1
	for i, cell := range row {
		lines[i] = wrap(cell, widths[i])
		most = max(most, len(lines[i]))
	}
	for n := range most {
		gap := 0
		for i, of := range lines {
			line := ""
			if n < len(of) {
				line = of[n]
			}
			if line != "" {
				b.WriteString(strings.Repeat(" ", gap) + s.Painted(line, hue(row[i])))
				gap = 0
			}
			gap += widths[i] - textWidth(line) + columnGap
		}
		b.WriteString("\n")
	}
}

func writeLines(b *strings.Builder, lines []string, indent string, s Screen) {
	for _, text := range lines {
		width := 0
		if s.Columns > 0 {
			width = max(s.Columns-len(indent), narrowColumn)
		}
		for _, line := range wrap(Clean(text), width) {
			b.WriteString(indent + line + "\n")
		}
	}
}

// CutTo cuts text to a width, with a sign that something is missing.
func CutTo(text string, width int) string {
	if textWidth(text) <= width {
		return text
	}
	r := []rune(text)
	return string(r[:fitting(r, width-1)]) + "…"
}

// wrap breaks text at blanks into lines of a width, and words that are longer anywhere. Width 0 is any.
func wrap(text string, width int) []string {
	if width <= 0 || textWidth(text) <= width {
		return []string{text}
	}
	var lines []string
	rest := []rune(text)
	for {
		n := fitting(rest, width)
		if n == len(rest) {
			return append(lines, string(rest))
		}
		end, next := n, n
		for i := n; i > 0; i-- {
			if rest[i] == ' ' {
				end, next = i, i+1
				break
			}
		}
		lines = append(lines, strings.TrimRight(string(rest[:end]), " "))
		rest = rest[next:]
	}
}

// Select Graphic Rendition of ECMA-48.
const (
	Bold   = "1"
	red    = "31"
	green  = "32"
	yellow = "33"
)

// hue is the colour of a cell that is the name of a state, or "".
func hue(cell string) string {
	switch cell {
	case "UP", "ok", "ready", "healthy", "satisfied", "holds", "leader":
		return green
	case "DOWN", "PROBLEM", "failed", "insufficient_nodes", "unreachable":
		return red
	case "UNHEALTHY", "STARTING", "OUT_OF_SERVICE", "UNKNOWN", "wait", "waits", "pending", "degraded":
		return yellow
	}
	return ""
}

// Painted gives text a colour if the screen shows colours.
func (s Screen) Painted(text, colour string) string {
	if !s.colour || colour == "" || text == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[m"
}

// textWidth is the number of terminal columns of a text: characters of Chinese, Japanese and Korean and most emoji take two,
// marks on the character before them take none.
func textWidth(text string) int {
	sum := 0
	for _, r := range text {
		sum += runeWidth(r)
	}
	return sum
}

func runeWidth(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	default:
		return 1
	}
}

// fitting counts the characters at the start of a text that fit into a number of columns, with their marks. It is at least 1,
// so that a loop over lines ends.
func fitting(text []rune, columns int) int {
	sum := 0
	for n, r := range text {
		if sum += runeWidth(r); sum > columns {
			return max(n, 1)
		}
	}
	return len(text)
}
