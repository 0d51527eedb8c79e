// Command coordination measures the coordination plane: a group of three blackholed processes on
// loopback with real fsync, driven by package client. With -etcd it drives an etcd cluster of
// three by etcd's own Go client in between, on the same disk, run by run, and prints the ratios.
//
//	go run ./bench/coordination -etcd "$(which etcd)" -only locks -duration 5s -runs 3
//
// It prints rows for a Markdown table. Servers and clients share the machine. On a busy machine
// the processor time of an operation and the ratio to etcd say more than the rate.
package main

import (
	"context"
	"io"
	"slices"
	"time"

	"github.com/blackhole/blackhole/bench/kit"
	"github.com/blackhole/blackhole/pkg/fault"
)

func main() { kit.Main("coordination", execute) }

// execute measures part by part.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s := &session{}
	if err := s.parse(args, stderr); err != nil {
		return err
	}
	return kit.Play(ctx, s, parts(), stdout, stderr)
}

// Open also starts the systems, one directory each.
func (s *session) Open(ctx context.Context, stdout, stderr io.Writer) error {
	if err := s.Session.Open(ctx, stdout, stderr); err != nil {
		return err
	}
	return s.start(ctx)
}

// Close also stops the systems.
func (s *session) Close() error {
	s.stop()
	return s.Session.Close()
}

func (s *session) parse(args []string, stderr io.Writer) error {
	f := s.Flags("coordination", kit.Names(parts()), 5*time.Second, stderr)
	f.StringVar(&s.etcd, "etcd", "", "`path` of an etcd to measure beside it")
	f.StringVar(&s.at, "at", spread, "where blackholed's clients connect: "+spread+", "+leading+" or "+following)
	f.IntVar(&s.kills, "kills", 20, "of the leader, by failover")
	if err := s.Parse(f, args); err != nil {
		return err
	}
	if !slices.Contains([]string{spread, leading, following}, s.at) {
		return fault.Invalidf("at", s.at, "must be %s, %s or %s", spread, leading, following)
	}
	return kit.Within("kills", s.kills, 1, 1000)
}
