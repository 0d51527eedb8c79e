// Command agent measures the agent plane: a blackholed process on loopback with its data on disk,
// asked by local applications over HTTP and gRPC. With -consul it measures a Consul agent in -dev
// mode in between, run by run, and prints the ratios.
//
//	go run ./bench/agent -consul "$(which consul)" -only reads,register -duration 3s -runs 3
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

	"github.com/blackhole/blackhole/bench/kit"
)

func main() { kit.Main("agent", execute) }

// execute measures part by part, each with new servers.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s := &session{}
	if err := s.parse(args, stderr); err != nil {
		return err
	}
	return kit.Play(ctx, s, parts(), stdout, stderr)
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
	f := s.Flags("agent", kit.Names(parts()), 3*time.Second, stderr)
	f.StringVar(&s.consul, "consul", "", "`path` of a Consul to measure beside it")
	f.IntVar(&s.instances, "instances", 10_000, "that are present, in register")
	return cmp.Or(s.Parse(f, args), kit.Within("instances", s.instances, newcomers, maxInstances))
}
