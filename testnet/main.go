// Command testnet starts a local network of real peers, registers offers, takes a tour of the
// promises, and stays up until interrupted.
//
// The demonstration checks itself: it compares every answer with brute force over everything
// registered. See README.md.
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
	"syscall"

	"github.com/blackhole/blackhole/testnet/lab/crowd"
	"github.com/blackhole/blackhole/testnet/lab/flood"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // a step failed, or the network did not start
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the program at once; the kernel then ends the peers
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "sim" {
		return simulate(ctx, args[1:], stdout, stderr)
	}
	if len(args) > 0 && args[0] == "nemesis" {
		return torment(ctx, args[1:], stdout, stderr)
	}
	if len(args) > 0 && args[0] == "upgrade" {
		return upgrade(ctx, args[1:], stdout, stderr)
	}
	if len(args) > 0 && args[0] == "soak" {
		return steep(ctx, args[1:], stdout, stderr)
	}
	if len(args) > 0 && args[0] == "lab" {
		return experiment(ctx, args[1:], stdout, stderr)
	}
	if len(args) > 0 && args[0] == "prove" {
		return prove(ctx, args[1:], stdout, stderr)
	}
	if len(args) > 0 && slices.Contains(verbs(), args[0]) {
		return command(ctx, args[0], args[1:], stdout, stderr)
	}
	if len(args) > 0 && args[0] == crowd.Command {
		return child(crowd.Command, crowd.Run(ctx, args[1:], os.Stdin, stdout), stderr)
	}
	if len(args) > 0 && args[0] == flood.Command {
		return child(flood.Command, flood.Run(ctx, args[1:], os.Stdin, stdout), stderr)
	}
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		fmt.Fprintf(stderr, "testnet: %v\n", err)
		return exitUsage
	}
	held, err := run(ctx, o, stdout, stderr)
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "testnet: %v\n", err)
		return exitFailed
	case !held:
		return exitFailed
	default:
		return exitOK
	}
}
