package main

import (
	"fmt"
	"io"

	"github.com/blackhole/blackhole/testnet/tour"
)

// progress prints one line for each step of the tour. A terminal sees the step while it runs, and
// its line ends at the edge; other outputs get every detail.
type progress struct {
	*screen
	taken int // steps
}

func newProgress(out io.Writer) *progress { return &progress{screen: newScreen(out)} }

func (p *progress) begin(name string) {
	p.taken++
	if p.live {
		fmt.Fprintf(p.out, "%2d/%d ...  %s", p.taken, len(tour.Names()), name)
	}
}

func (p *progress) end(r tour.Result) {
	line := stepLine(p.taken, r)
	if p.live {
		columns, _ := p.size()
		if r.OK {
			line = cut(line, columns-1)
		}
		line = "\r\x1b[K" + line // ECMA-48: erase to the end of the line
	}
	fmt.Fprintln(p.out, line)
}

// stepLine has what fits into 80 columns first: number, outcome, name and time.
func stepLine(n int, r tour.Result) string {
	mark := "ok  "
	switch {
	case r.Skip:
		mark = "skip"
	case !r.OK:
		mark = "FAIL"
	}
	return fmt.Sprintf("%2d/%d %s %-33s %6.2f s  %s", n, len(tour.Names()), mark, r.Name, r.Took.Seconds(), r.Detail)
}

// cut ends a line after so many characters.
func cut(line string, most int) string {
	if r := []rune(line); len(r) > most && most > 3 {
		return string(r[:most-3]) + "..."
	}
	return line
}

// summary counts the steps that held.
func summary(results []tour.Result) string {
	held, skipped := 0, 0
	for _, r := range results {
		switch {
		case r.Skip:
			skipped++
		case r.OK:
			held++
		}
	}
	text := fmt.Sprintf("%d of %d steps held", held, len(tour.Names()))
	if skipped > 0 {
		text += fmt.Sprintf(" (%d skipped)", skipped)
	}
	return text
}
