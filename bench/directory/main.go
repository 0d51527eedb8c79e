// Command directory measures the directory of a group: ten blackholed processes on loopback with real
// fsync. The first three are the group, the others its clients. A service registers at one peer and
// appears at another.
//
//	go run ./bench/directory -only wake
//
// It prints rows for Markdown tables, each with the load of the machine and the processor time of
// all peers. Peers and clients share the machine. On a busy machine the processor time says more
// than the clock.
package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/blackhole/blackhole/bench/kit"
	"github.com/blackhole/blackhole/pkg/fault"
)

func main() { kit.Main("directory", execute) }

// session is one run of the command.
type session struct {
	kit.Session
	peers   int
	changes int
}

// execute measures part by part, each with new peers.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s := &session{}
	parts := []kit.Part[*session]{{Name: "wake", Run: (*session).wake}}
	f := s.Flags("directory", kit.Names(parts), 2*time.Second, stderr)
	f.IntVar(&s.peers, "peers", 10, "of which the first three are the group")
	f.IntVar(&s.changes, "changes", 300, "of which watchers are told")
	err := cmp.Or(s.Parse(f, args), kit.Within("peers", s.peers, members+2, 50), kit.Within("changes", s.changes, 1, 100_000))
	if err != nil {
		return err
	}
	return kit.Play(ctx, s, parts, stdout, stderr)
}

// open starts a fleet of new peers with a group of three.
func (s *session) open(ctx context.Context) (*fleet, error) {
	f := &fleet{binary: s.Blackholed, dir: filepath.Join(s.Scratch, "peers"), log: s.Log, size: s.peers}
	if err := os.Mkdir(f.dir, 0o700); err != nil {
		return nil, fault.As("open", fault.Invalid, err)
	}
	if err := f.start(ctx); err != nil {
		f.stop()
		return nil, err
	}
	return f, nil
}

// table begins a table.
func (s *session) table(title string, columns ...string) {
	fmt.Fprintf(s.Out, "\n%s\n\n| %s |\n%s|\n", title, strings.Join(columns, " | "), strings.Repeat("|---", len(columns)))
}

func (s *session) row(format string, args ...any) { fmt.Fprintf(s.Out, "| "+format+" |\n", args...) }
