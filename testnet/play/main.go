// Command play starts a local network of real peers, registers offers, takes a tour of the
// promises, and stays up until interrupted; its other commands play other networks. Command testnet builds and starts it.
//
// The demonstration checks itself: it compares every answer with brute force over everything
// registered. See ../README.md.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/night/flood"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // a step failed, or the network did not start
	exitUsage  = 2
)

// subcommand is one word after "testnet".
type subcommand struct {
	name  string
	about string // one line of help; empty: for the program's own children
	run   func(context.Context, call) (held bool, err error)
}

// call is one run of a subcommand.
type call struct {
	name           string
	args           []string
	stdout, stderr io.Writer
}

// subcommands lists all but the tour, which is what the program does without one.
func subcommands() []subcommand {
	all := []subcommand{
		{"sim", "a network in virtual time, in one process", simulate},
		{"nemesis", "faults under clients, and checks of what they saw", playNemesis},
		{"oracle", "random questions and watches, held against all offers", playOracle},
		{"agents", "agents that share files, by hold and by lock files", playAgents},
		{"upgrade", "a rolling upgrade from the previous version", upgrade},
		{"lab", "homes behind NAT, lossy links, wrong clocks (root on Linux)", playLab},
		{"night", "a night among attackers and faults, with one judge (root on Linux)", playNight},
		{"prove", "the tests behind a promise of RELIABILITY.md", nil}, // by command testnet
		{flood.Command, "", func(ctx context.Context, c call) (bool, error) {
			return true, flood.Run(ctx, c.args, os.Stdin, c.stdout)
		}},
	}
	for _, verb := range verbs() {
		all = append(all, subcommand{verb, "", order})
	}
	return all
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the program at once; the kernel then ends the peers
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// execute runs the command line and returns the exit code.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	c, run, name := call{args: args, stdout: stdout, stderr: stderr}, playTour, "testnet"
	if len(args) > 0 {
		all := subcommands()
		if i := slices.IndexFunc(all, func(s subcommand) bool { return s.name == args[0] && s.run != nil }); i >= 0 {
			c.name, c.args, run, name = args[0], args[1:], all[i].run, "testnet "+args[0]
		}
	}
	held, err := run(ctx, c)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
	}
	var wrong usageError
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.As(err, &wrong):
		return exitUsage
	case err != nil || !held:
		return exitFailed
	default:
		return exitOK
	}
}

// writeJSON prints one JSON object.
func writeJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return fault.As("testnet.json", fault.Unavailable, encoder.Encode(v))
}

// usageError is a fault of the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// flags returns an empty set of flags of the subcommand, with its help.
func (c call) flags(about string) *flag.FlagSet {
	f := flag.NewFlagSet(strings.TrimSpace("testnet "+c.name), flag.ContinueOnError)
	f.SetOutput(c.stderr)
	f.Usage = func() {
		fmt.Fprintf(c.stderr, "usage: go run ./%s [flags]\n\n%s\n\nFlags:\n", f.Name(), about)
		f.PrintDefaults()
	}
	return f
}

// parse reads the flags, allows nothing else, and calls validate. It fails with a usageError, naming the flag.
func (c call) parse(f *flag.FlagSet, validate func() error) error {
	err := f.Parse(c.args)
	if err == nil && f.NArg() > 0 {
		err = fault.Invalidf("arguments", f.Args(), "there are none, not %q", f.Args())
	}
	if err == nil {
		err = validate()
	}
	if err != nil {
		return usageError{err}
	}
	return nil
}
