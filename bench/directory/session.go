package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/blackhole/blackhole/bench/child"
	"github.com/blackhole/blackhole/pkg/fault"
)

// session is one run of the command.
type session struct {
	options
	out     io.Writer
	log     io.Writer // may be nil
	scratch string
	opened  int
}

// part is one measured part.
type part struct {
	name string
	run  func(*session, context.Context) error
}

func parts() []part {
	return []part{
		{"cold", (*session).cold}, {"batched", (*session).batched}, {"pull", (*session).pull}, {"known", (*session).known}, {"wake", (*session).wake},
		{"reads", (*session).reads}, {"kill", (*session).kill}, {"peers", (*session).simulate},
	}
}

func names() []string {
	var all []string
	for _, p := range parts() {
		all = append(all, p.name)
	}
	return all
}

func (s *session) build(ctx context.Context) error {
	if s.blackholed != "" {
		return nil
	}
	s.blackholed = filepath.Join(s.scratch, "blackholed")
	return child.Build(ctx, ".", s.blackholed, "github.com/blackhole/blackhole/cmd/blackholed")
}

// open starts a fleet of new peers with a group of three.
func (s *session) open(ctx context.Context) (*fleet, error) {
	dir, err := s.room()
	if err != nil {
		return nil, err
	}
	f := &fleet{binary: s.blackholed, dir: dir, log: s.log, size: s.peers}
	if err := f.start(ctx); err != nil {
		f.stop()
		return nil, err
	}
	return f, nil
}

// room creates a directory.
func (s *session) room() (string, error) {
	s.opened++
	dir := filepath.Join(s.scratch, fmt.Sprint(s.opened))
	return dir, fault.As("room", fault.Invalid, os.Mkdir(dir, 0o700))
}

// table begins a table.
func (s *session) table(title string, columns ...string) {
	fmt.Fprintf(s.out, "\n%s\n\n|", title)
	for _, c := range columns {
		fmt.Fprintf(s.out, " %s |", c)
	}
	fmt.Fprint(s.out, "\n|")
	for range columns {
		fmt.Fprint(s.out, "---|")
	}
	fmt.Fprintln(s.out)
}

func (s *session) row(format string, args ...any) { fmt.Fprintf(s.out, "| "+format+" |\n", args...) }
