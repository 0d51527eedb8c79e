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
	etcd       string
	blackholed string
	only       string
	dir        string
	at         string
	duration   time.Duration
	runs       int
	kills      int
	leases     int
	verbose    bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the program at once
	err := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case fault.KindOf(err) == fault.Invalid:
		fmt.Fprintln(os.Stderr, "coordination:", err)
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "coordination:", err)
		os.Exit(1)
	}
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("coordination", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.etcd, "etcd", "", "`path` of an etcd to measure beside it")
	f.StringVar(&o.blackholed, "blackholed", "", "`path` of the blackholed to measure (default: built from this tree)")
	f.StringVar(&o.only, "only", "", "parts to run, with commas: "+strings.Join(names(), ", ")+" (default all)")
	f.StringVar(&o.dir, "dir", "", "`directory` on the disk to use (default a temporary one)")
	f.StringVar(&o.at, "at", spread, "where blackholed's clients connect: "+spread+", "+leading+" or "+following)
	f.DurationVar(&o.duration, "duration", 5*time.Second, "of one measurement")
	f.IntVar(&o.runs, "runs", 3, "of each measurement; the median is told")
	f.IntVar(&o.kills, "kills", 20, "of the leader, by failover")
	f.IntVar(&o.leases, "leases", 90_000, "that end together, in storm")
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
	case !slices.Contains([]string{spread, leading, following}, o.at):
		return fault.Invalidf("at", o.at, "must be %s, %s or %s", spread, leading, following)
	case o.duration < 100*time.Millisecond || o.duration > time.Hour:
		return fault.Invalidf("duration", o.duration, "must be 100ms to 1h")
	case o.runs < 1 || o.runs > 1000:
		return fault.Invalidf("runs", o.runs, "must be 1 to 1000")
	case o.kills < 1 || o.kills > 1000:
		return fault.Invalidf("kills", o.kills, "must be 1 to 1000")
	case o.leases < 1 || o.leases > 99_000:
		return fault.Invalidf("leases", o.leases, "must be 1 to 99000: a group has at most 100000")
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

// execute starts the systems, one directory each, and measures part by part.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp(o.dir, "blackhole-bench-")
	if err != nil {
		return fault.As("coordination", fault.Invalid, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	s := &session{options: o, out: stdout}
	if o.verbose {
		s.log = stderr
	}
	defer s.stop()
	if err := s.start(ctx, scratch); err != nil {
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
