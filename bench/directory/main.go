// Command directory measures the directory of a group: blackholed processes on loopback with real
// fsync. The first three are the group, the others its clients. Services register at one peer and
// appear at another.
//
//	go run ./bench/directory -only cold,wake,reads -runs 3
//
// It prints rows for Markdown tables, each with the load of the machine and the processor time of
// all peers. Peers and clients share the machine. On a busy machine the processor time says more
// than the clock.
//
// Part peers plays a thousand peers in this process, against a group of three real ones.
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
	blackholed string
	only       string
	dir        string
	peers      int
	instances  int
	changes    int
	duration   time.Duration
	runs       int
	kills      int
	crowd      int
	crowded    int
	spread     bool
	profile    string
	verbose    bool
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == memberCommand {
		exit(member(os.Args[2:]))
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the program at once
	exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func exit(err error) {
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case fault.KindOf(err) == fault.Invalid:
		fmt.Fprintln(os.Stderr, "directory:", err)
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "directory:", err)
		os.Exit(1)
	}
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("directory", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.blackholed, "blackholed", "", "`path` of the blackholed to measure (default: built from this tree)")
	f.StringVar(&o.only, "only", "", "parts to run, with commas: "+strings.Join(names(), ", ")+" (default all)")
	f.StringVar(&o.dir, "dir", "", "`directory` on the disk to use (default a temporary one)")
	f.IntVar(&o.peers, "peers", 10, "of which the first three are the group")
	f.IntVar(&o.instances, "instances", 10_000, "of all peers together, in cold and batched")
	f.IntVar(&o.changes, "changes", 300, "of which watchers are told, in wake")
	f.DurationVar(&o.duration, "duration", 2*time.Second, "of one run, in batched and reads")
	f.IntVar(&o.runs, "runs", 3, "of each measurement; the median is told")
	f.IntVar(&o.kills, "kills", 3, "of the leader, in kill")
	f.IntVar(&o.crowd, "crowd", 1000, "peers that are played, in peers")
	f.IntVar(&o.crowded, "crowded", 17_200, "instances of those together")
	f.BoolVar(&o.spread, "spread", false, "have them watch at all members; as it is, all do at the leader")
	f.StringVar(&o.profile, "profile", "", "`file` to write a profile of the processor time of this process to, in peers")
	f.BoolVar(&o.verbose, "v", false, "show the peers' logs")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	return o, o.validate(f.Args())
}

func (o options) validate(rest []string) error {
	switch {
	case len(rest) > 0:
		return fault.Invalidf("arguments", rest, "there are none")
	case o.peers < members+2 || o.peers > 50:
		return fault.Invalidf("peers", o.peers, "must be %d to 50", members+2)
	case o.instances < o.peers || o.instances > 100_000:
		return fault.Invalidf("instances", o.instances, "must be %d to 100000", o.peers)
	case o.changes < 1 || o.changes > 100_000:
		return fault.Invalidf("changes", o.changes, "must be 1 to 100000")
	case o.duration < 100*time.Millisecond || o.duration > time.Hour:
		return fault.Invalidf("duration", o.duration, "must be 100ms to 1h")
	case o.runs < 1 || o.runs > 1000:
		return fault.Invalidf("runs", o.runs, "must be 1 to 1000")
	case o.kills < 1 || o.kills > 1000:
		return fault.Invalidf("kills", o.kills, "must be 1 to 1000")
	case o.crowd < 1 || o.crowd > 10_000:
		return fault.Invalidf("crowd", o.crowd, "must be 1 to 10000")
	case o.crowded < o.crowd || o.crowded > 1_000_000:
		return fault.Invalidf("crowded", o.crowded, "must be %d to 1000000", o.crowd)
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

// execute measures part by part, each with new peers.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp(o.dir, "blackhole-bench-")
	if err != nil {
		return fault.As("directory", fault.Invalid, err)
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
