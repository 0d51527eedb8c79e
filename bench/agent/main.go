// Command agent measures the agent plane: a blackholed process on loopback with its data on disk,
// asked by local applications over HTTP and gRPC. With -consul it measures a Consul agent in -dev
// mode in between, run by run, and prints the ratios.
//
//	go run ./bench/agent -consul "$(which consul)" -only reads,wake -duration 3s -runs 3
//
// It prints rows for Markdown tables; each row is the median of the runs. Servers and clients
// share the machine. On a busy machine the processor time of an operation and the ratio to Consul
// say more than the rate. The name server has its own command, bench/dns.
package main

import (
	"cmp"
	"context"
	"io"
	"time"

	"github.com/blackhole/blackhole/bench/program"
	"github.com/blackhole/blackhole/pkg/fault"
)

func main() { program.Main("agent", execute) }

// execute measures part by part, each with new servers.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s := &session{}
	if err := s.parse(args, stderr); err != nil {
		return err
	}
	return program.Play(ctx, s, parts(), stdout, stderr)
}

// Open also says which systems are measured.
func (s *session) Open(ctx context.Context, stdout, stderr io.Writer) error {
	err := s.Session.Open(ctx, stdout, stderr)
	s.kinds = []kind{{s.Blackholed, startOurs}}
	if s.consul != "" {
		s.kinds = append(s.kinds, kind{s.consul, startConsul})
	}
	return err
}

func (s *session) parse(args []string, stderr io.Writer) error {
	f := s.Flags("agent", program.Names(parts()), 3*time.Second, stderr)
	f.StringVar(&s.consul, "consul", "", "`path` of a Consul to measure beside it")
	f.DurationVar(&s.checking, "checking", time.Minute, "for which health checks are watched, in checks")
	f.IntVar(&s.instances, "instances", 10_000, "that are present, in register, stream and checks")
	f.IntVar(&s.changes, "changes", 300, "of which watchers are told in a run, in wake")
	if err := s.Parse(f, args); err != nil {
		return err
	}
	if s.checking < time.Second || s.checking > time.Hour {
		return fault.Invalidf("checking", s.checking, "must be 1s to 1h")
	}
	return cmp.Or(
		program.Within("instances", s.instances, newcomers, maxInstances),
		program.Within("changes", s.changes, 1, 1_000_000),
	)
}
