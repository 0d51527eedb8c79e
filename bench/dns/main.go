// Command dns measures the DNS front end: a separate server process over a catalog of one
// service, asked over UDP with EDNS.
//
//	go run ./bench/dns -instances 10 -duration 3s -runs 3
//
// It prints rows for a Markdown table. Server and load share the machine. On a busy machine the
// processor time of an answer, user and system, says more than the rate.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// options are the command line.
type options struct {
	serve     bool
	types     string
	instances int
	duration  time.Duration
	runs      int
	sockets   int
	window    int
	profile   string
}

func main() {
	if err := execute(os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "dns:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("dns", flag.ContinueOnError)
	f.BoolVar(&o.serve, "serve", false, "be the server, until standard input ends")
	f.StringVar(&o.types, "types", "A,SRV", "of questions")
	f.IntVar(&o.instances, "instances", 10, "of the service, each at an address of its own")
	f.DurationVar(&o.duration, "duration", 3*time.Second, "of a run")
	f.IntVar(&o.runs, "runs", 3, "of which the one in the middle counts")
	f.IntVar(&o.sockets, "sockets", 16, "of the load")
	f.IntVar(&o.window, "window", 100, "questions under way at a time, of all sockets")
	f.StringVar(&o.profile, "profile", "", "`file` for a processor profile of the server")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	switch {
	case o.instances < 1 || o.instances > 10_000:
		return o, errors.New("-instances must be from 1 to 10000")
	case o.runs < 1 || o.sockets < 1 || o.window < o.sockets || o.duration < time.Second:
		return o, errors.New("-runs and -sockets must be above 0, -window at least -sockets, -duration at least 1s")
	}
	return o, nil
}

func execute(args []string, stdout io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if o.serve {
		return serve(o, os.Stdin, stdout)
	}
	s, err := startServer(o)
	if err != nil {
		return err
	}
	defer s.stop()
	fmt.Fprintln(stdout, "| type | instances | answer | queries/s | lost | processor time an answer | one at a time p50, p99 |")
	fmt.Fprintln(stdout, "|---|---|---|---|---|---|---|")
	for _, name := range strings.Split(o.types, ",") {
		qtype, ok := dns.StringToType[name]
		if !ok {
			return fmt.Errorf("-types: %q is none", name)
		}
		if err := measure(o, s, qtype, stdout); err != nil {
			return err
		}
	}
	return nil
}

// run is the result of one run.
type run struct {
	rate float64
	lost uint64
	cpu  time.Duration // of the server, for one answer
}

// measure prints the row of a query type.
func measure(o options, s *server, qtype uint16, stdout io.Writer) error {
	size, p50, p99, err := alone(s.address, qtype)
	if err != nil {
		return err
	}
	var runs []run
	for range o.runs {
		before, err := s.used()
		if err != nil {
			return err
		}
		t, err := o.ask(s.address, qtype)
		if err != nil {
			return err
		}
		after, err := s.used()
		if err != nil {
			return err
		}
		runs = append(runs, run{
			rate: float64(t.answers) / t.took.Seconds(), lost: t.lost,
			cpu: (after - before) / time.Duration(max(t.answers, 1)),
		})
	}
	slices.SortFunc(runs, func(a, b run) int { return int(a.rate - b.rate) })
	mid := runs[len(runs)/2]
	fmt.Fprintf(stdout, "| %s | %d | %d B | %.0f | %d | %.1f us | %d, %d us |\n", dns.TypeToString[qtype], o.instances, size,
		mid.rate, mid.lost, float64(mid.cpu.Nanoseconds())/1000, p50.Microseconds(), p99.Microseconds())
	return nil
}
