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
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// options are the command line.
type options struct {
	consul     string
	blackholed string
	only       string
	dir        string
	duration   time.Duration
	checking   time.Duration
	runs       int
	instances  int
	changes    int
	verbose    bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the program at once
	err := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case fault.KindOf(err) == fault.Invalid:
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("agent", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.consul, "consul", "", "`path` of a Consul to measure beside it")
	f.StringVar(&o.blackholed, "blackholed", "", "`path` of the blackholed to measure (default: built from this tree)")
	f.StringVar(&o.only, "only", "", "parts to run, with commas: "+strings.Join(names(), ", ")+" (default all)")
	f.StringVar(&o.dir, "dir", "", "`directory` on the disk to use (default a temporary one)")
	f.DurationVar(&o.duration, "duration", 3*time.Second, "of one run")
	f.DurationVar(&o.checking, "checking", time.Minute, "for which health checks are watched, in checks")
	f.IntVar(&o.runs, "runs", 3, "of each measurement; the median is told")
	f.IntVar(&o.instances, "instances", 10_000, "that are present, in register, stream and checks")
	f.IntVar(&o.changes, "changes", 300, "of which watchers are told in a run, in wake")
	f.BoolVar(&o.verbose, "v", false, "show the servers' logs")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	return o, o.validate(f.Args())
}

func (o options) validate(rest []string) error {
	switch {
	case len(rest) > 0:
		return fault.Invalidf("arguments", rest, "there are none")
	case o.duration < 100*time.Millisecond || o.duration > time.Hour:
		return fault.Invalidf("duration", o.duration, "must be 100ms to 1h")
	case o.checking < time.Second || o.checking > time.Hour:
		return fault.Invalidf("checking", o.checking, "must be 1s to 1h")
	case o.runs < 1 || o.runs > 1000:
		return fault.Invalidf("runs", o.runs, "must be 1 to 1000")
	case o.instances < newcomers || o.instances > maxInstances:
		return fault.Invalidf("instances", o.instances, "must be %d to %d", newcomers, maxInstances)
	case o.changes < 1 || o.changes > 1_000_000:
		return fault.Invalidf("changes", o.changes, "must be 1 to 1000000")
	}
	for _, part := range o.parts() {
		if !slices.Contains(names(), part) {
			return fault.Invalidf("only", part, "is none of %s", strings.Join(names(), ", "))
		}
	}
	return nil
}

func (o options) parts() []string {
	if o.only == "" {
		return names()
	}
	return strings.Split(o.only, ",")
}

// execute measures part by part, each with new servers.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp(o.dir, "blackhole-bench-")
	if err != nil {
		return fault.As("agent", fault.Invalid, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	s := &session{options: o, out: stdout, scratch: scratch}
	if o.verbose {
		s.log = stderr
	}
	if err := s.build(ctx); err != nil {
		return err
	}
	for _, p := range parts() {
		if !slices.Contains(o.parts(), p.name) {
			continue
		}
		if err := p.run(s, ctx); err != nil {
			return fault.Wrap(p.name, err)
		}
	}
	return nil
}
