package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"text/tabwriter"

	"golang.org/x/term"

	"github.com/blackhole/blackhole/testnet/network"
)

// tableOf renders the current state of every peer, one line each, within 80 columns.
func tableOf(ctx context.Context, peers []*network.Peer, paused map[*network.Peer]bool) []byte {
	rows := make([]string, len(peers))
	var wg sync.WaitGroup
	for i, p := range peers {
		wg.Go(func() { rows[i] = row(ctx, p, paused[p]) })
	}
	wg.Wait()
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tHTTP\tGRPC\tPEERS\tKEPT\tOWN\tRSS")
	for _, r := range rows {
		fmt.Fprintln(w, r)
	}
	_ = w.Flush() // writes to memory
	return b.Bytes()
}

func row(ctx context.Context, p *network.Peer, paused bool) string {
	who := fmt.Sprintf("%s\t%s\t%s", p.Name, p.HTTP, p.GRPC)
	if !p.Running() {
		return who + "\tended\t\t\t"
	}
	if paused {
		return who + "\tpaused\t\t\t"
	}
	v, err := p.Look(ctx)
	if err != nil {
		return who + "\tsilent\t\t\t"
	}
	return fmt.Sprintf("%s\t%d\t%d\t%d\t%.1f MiB", who, v.Connected, v.Kept, v.Own, mib(v.Resident))
}

// firstLines cuts a text after n lines, and says how many more there are.
func firstLines(text []byte, n int) []byte {
	lines := slices.Collect(bytes.Lines(text))
	if len(lines) <= n || n < 1 {
		return text
	}
	more := fmt.Sprintf("... and %d more\n", len(lines)-n+1)
	return append(bytes.Join(lines[:n-1], nil), more...)
}

// screen draws a table over its last drawing on a terminal, and below it on other outputs.
type screen struct {
	out  io.Writer
	live bool
	left int // lines of the last drawing
}

func newScreen(out io.Writer) *screen {
	f, ok := out.(*os.File)
	return &screen{out: out, live: ok && term.IsTerminal(int(f.Fd()))}
}

// size is that of the terminal.
func (s *screen) size() (columns, rows int) {
	const usualColumns, usualRows = 80, 24
	if f, ok := s.out.(*os.File); ok {
		if columns, rows, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 && rows > 0 {
			return columns, rows
		}
	}
	return usualColumns, usualRows
}

func (s *screen) rows() int {
	_, rows := s.size()
	return rows
}

func (s *screen) draw(table []byte) {
	if s.live && s.left > 0 {
		fmt.Fprintf(s.out, "\x1b[%dA\x1b[J", s.left) // ECMA-48: cursor up, erase to the end of the page
	}
	if s.live { // no wrapping (DECAWM): a wrapped line takes two rows and shifts the next drawing
		table = slices.Concat([]byte("\x1b[?7l"), table, []byte("\x1b[?7h"))
	}
	_, _ = s.out.Write(table) // a closed output must not stop the network
	s.left = bytes.Count(table, []byte{'\n'})
}
