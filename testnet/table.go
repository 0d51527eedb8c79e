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

	"github.com/blackhole/blackhole/testnet/network"
)

// tableOf renders the current state of every peer, one line each.
func tableOf(ctx context.Context, n *network.Network) []byte {
	rows := make([]string, len(n.Peers))
	var wg sync.WaitGroup
	for i, p := range n.Peers {
		wg.Go(func() { rows[i] = row(ctx, p) })
	}
	wg.Wait()
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tID\tPID\tHTTP\tGRPC\tPEERS\tKEPT\tOWN\tRSS")
	for _, r := range rows {
		fmt.Fprintln(w, r)
	}
	_ = w.Flush() // writes to memory
	return b.Bytes()
}

func row(ctx context.Context, p *network.Peer) string {
	id := p.ID.String()
	who := fmt.Sprintf("%s\t..%s\t%d\thttp://%s\t%s", p.Name, id[max(len(id)-6, 0):], p.PID(), p.HTTP, p.GRPC)
	if !p.Running() {
		return who + "\tended\t\t\t"
	}
	v, err := p.Look(ctx)
	if err != nil {
		return who + "\tsilent\t\t\t"
	}
	return fmt.Sprintf("%s\t%d\t%d\t%d\t%.1f MiB", who, v.Connected, v.Kept, v.Own, mib(v.Resident))
}

// screen draws a table over its last drawing on a terminal, and below it on other outputs.
type screen struct {
	out  io.Writer
	live bool
	left int // lines of the last drawing
}

func newScreen(out io.Writer) *screen {
	f, ok := out.(*os.File)
	if !ok {
		return &screen{out: out}
	}
	info, err := f.Stat()
	return &screen{out: out, live: err == nil && info.Mode()&os.ModeCharDevice != 0}
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
