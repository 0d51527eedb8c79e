package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/blackhole/blackhole/bench/program"
	"github.com/blackhole/blackhole/pkg/fault"
)

// session is one run of the command.
type session struct {
	program.Session
	peers     int
	instances int
	changes   int
	kills     int
	crowd     int
	crowded   int
	spread    bool
	profile   string
	opened    int
}

func parts() []program.Part[*session] {
	return []program.Part[*session]{
		{Name: "cold", Run: (*session).cold},
		{Name: "batched", Run: (*session).batched},
		{Name: "pull", Run: (*session).pull},
		{Name: "known", Run: (*session).known},
		{Name: "wake", Run: (*session).wake},
		{Name: "reads", Run: (*session).reads},
		{Name: "kill", Run: (*session).kill},
		{Name: "peers", Run: (*session).simulate},
	}
}

// open starts a fleet of new peers with a group of three.
func (s *session) open(ctx context.Context) (*fleet, error) {
	dir, err := s.room()
	if err != nil {
		return nil, err
	}
	f := &fleet{binary: s.Blackholed, dir: dir, log: s.Log, size: s.peers}
	if err := f.start(ctx); err != nil {
		f.stop()
		return nil, err
	}
	return f, nil
}

// room creates a directory.
func (s *session) room() (string, error) {
	s.opened++
	dir := filepath.Join(s.Scratch, fmt.Sprint(s.opened))
	return dir, fault.As("room", fault.Invalid, os.Mkdir(dir, 0o700))
}

// table begins a table.
func (s *session) table(title string, columns ...string) {
	fmt.Fprintf(s.Out, "\n%s\n\n|", title)
	for _, c := range columns {
		fmt.Fprintf(s.Out, " %s |", c)
	}
	fmt.Fprint(s.Out, "\n|")
	for range columns {
		fmt.Fprint(s.Out, "---|")
	}
	fmt.Fprintln(s.Out)
}

func (s *session) row(format string, args ...any) { fmt.Fprintf(s.Out, "| "+format+" |\n", args...) }
