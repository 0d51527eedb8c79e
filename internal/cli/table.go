package cli

import (
	"slices"
	"strconv"
	"strings"
)

// Terminal describes the terminal of the program. The zero value is none: files and pipes.
type Terminal struct {
	Size   func() (columns, rows int) // of standard output; nil for files and pipes
	Errors bool                       // standard error is a terminal
}

// screen is what text is laid out for. The zero value is a file or a pipe: any width, no colours.
type screen struct {
	columns int // 0: any
	colour  bool
}

// layout is the text form of a document.
type layout interface{ on(s screen) string }

// plain is text without a layout.
type plain string

func (p plain) on(screen) string { return string(p) }

// grid is rows in aligned columns. On a narrow screen spare columns are left out, the last column wraps, peer ids are
// abbreviated as shortPeer does, and then the widest of the other columns are cut. A pipe gets everything.
type grid struct {
	header []string // nil: none
	rows   [][]string
	above  map[int][]string // lines before a row
	below  map[int][]string // lines after a row, indented
	notes  []string         // lines at the end
	spare  []string         // headers of columns that a narrow screen does without, the first of them first
}

// table lays out rows under a header in aligned columns.
func table(header []string, rows [][]string) grid { return grid{header: header, rows: rows} }

// pairs lays out names and values, one pair a line.
func pairs(rows [][]string) grid { return grid{rows: rows} }

const (
	columnGap    = 2
	narrowColumn = 8  // a column is not cut below this width
	narrowText   = 24 // a last column that wraps keeps this width while others can be cut
)

func (g grid) on(s screen) string {
	cells := make([][]string, 0, len(g.rows)+1)
	for _, row := range g.lines() {
		clear := make([]string, len(row))
		for i, cell := range row {
			clear[i] = clean(cell)
		}
		cells = append(cells, clear)
	}
	cells = g.narrowed(cells, s.columns)
	widths := fit(cells, s.columns)
	var b strings.Builder
	if g.header != nil {
		writeRow(&b, cells[0], widths, func(string) string { return bold }, s)
		cells = cells[1:]
	}
	for i, row := range cells {
		writeLines(&b, g.above[i], "", s)
		writeRow(&b, row, widths, hue, s)
		writeLines(&b, g.below[i], "    ", s)
	}
	writeLines(&b, g.notes, "", s)
	return b.String()
}

// narrowed returns the cells without as many spare columns as are too much for the screen.
func (g grid) narrowed(cells [][]string, columns int) [][]string {
	for _, name := range g.spare {
		if columns <= 0 || total(widthsOf(cells), 0) <= columns {
			break
		}
		if i := slices.Index(cells[0], name); i >= 0 {
			for n := range cells {
				cells[n] = slices.Delete(cells[n], i, i+1)
			}
		}
	}
	return cells
}

// lines is the header, if any, and the rows.
func (g grid) lines() [][]string {
	if g.header == nil {
		return g.rows
	}
	return append([][]string{g.header}, g.rows...)
}

// fit returns the widths of the columns, and abbreviates cells that are too wide for the screen.
func fit(cells [][]string, columns int) []int {
	widths := widthsOf(cells)
	if columns <= 0 || total(widths, 0) <= columns {
		return widths
	}
	last := len(widths) - 1
	if total(widths[:last], min(widths[last], narrowText)) > columns {
		for _, row := range cells {
			for i := range row {
				row[i] = shortPeers(row[i])
			}
		}
		widths = widthsOf(cells)
	}
	for total(widths[:last], min(widths[last], narrowText)) > columns {
		widest := -1
		for i, w := range widths[:last] {
			if w > narrowColumn && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
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

// writeRow writes a row: its last cell wraps, and the others are cut.
func writeRow(b *strings.Builder, row []string, widths []int, hue func(cell string) string, s screen) {
	last, indent := len(row)-1, 0
	for i, cell := range row[:max(last, 0)] {
		cut := cutTo(cell, widths[i])
		b.WriteString(s.painted(cut, hue(cell)))
		b.WriteString(strings.Repeat(" ", widths[i]-textWidth(cut)+columnGap))
		indent += widths[i] + columnGap
	}
	if last < 0 {
		b.WriteString("\n")
		return
	}
	for i, line := range wrap(row[last], widths[last]) {
		if i > 0 {
			b.WriteString(strings.Repeat(" ", indent))
		}
		b.WriteString(s.painted(line, hue(row[last])) + "\n")
	}
}

func writeLines(b *strings.Builder, lines []string, indent string, s screen) {
	for _, text := range lines {
		width := 0
		if s.columns > 0 {
			width = max(s.columns-len(indent), narrowColumn)
		}
		for _, line := range wrap(clean(text), width) {
			b.WriteString(indent + line + "\n")
		}
	}
}

// cutTo cuts text to a width, with a sign that something is missing.
func cutTo(text string, width int) string {
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

// shortPeers abbreviates the peer ids in a text.
func shortPeers(text string) string {
	const length = 52 // of the base58 form of an Ed25519 key
	words := strings.Split(text, " ")
	for i, w := range words {
		if len(w) == length && strings.HasPrefix(w, "12D3KooW") {
			words[i] = shortPeer(w)
		}
	}
	return strings.Join(words, " ")
}

// Select Graphic Rendition of ECMA-48.
const (
	bold   = "1"
	red    = "31"
	green  = "32"
	yellow = "33"
)

// counted is a number with its noun: 1 peer, 2 peers.
func counted(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}

// hue is the colour of a cell that is the name of a state, or "".
func hue(cell string) string {
	switch cell {
	case "UP", fine, "ready", "healthy", "satisfied", "holds", "leader":
		return green
	case "DOWN", broken, "failed", "insufficient_nodes", "unreachable":
		return red
	case "UNHEALTHY", "STARTING", "OUT_OF_SERVICE", "UNKNOWN", waiting, "waits", "pending", "degraded":
		return yellow
	}
	return ""
}

// painted gives text a colour if the screen shows colours.
func (s screen) painted(text, colour string) string {
	if !s.colour || colour == "" || text == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[m"
}
