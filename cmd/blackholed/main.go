// Command blackholed runs a peer of the network, or calls a running peer.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/blackhole/blackhole/internal/cli"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/group"
	"github.com/blackhole/blackhole/internal/daemon"
	"github.com/blackhole/blackhole/internal/platform/config"
)

// untilSignal returns a context that ends with the first signal, and names it as its cause. A second signal kills the process.
func untilSignal() context.Context {
	ctx, end := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() { // until the end of the process
		if s, ok := (<-signals).(syscall.Signal); ok {
			signal.Stop(signals)
			end(exit.Signal(s))
		}
	}()
	return ctx
}

func main() {
	ctx := untilSignal()
	v := version()
	os.Exit(cli.App{
		Version: v, Build: built(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(), Terminal: terminal(), Superuser: os.Geteuid() == 0,
		Identity: daemon.Identity, Reclaim: daemon.Reclaim, Examine: daemon.Examine, Join: daemon.Join, NetworkKeys: daemon.NetworkKeys,
		Restore: func(dataDir string, backup io.Reader, after uint64, commit bool) (group.Restoration, error) {
			r, err := daemon.Restore(dataDir, backup, after, commit)
			return group.Restoration(r), err
		},
		Run: func(ctx context.Context, c config.Config, r cli.Runner) error {
			return daemon.Run(ctx, c, daemon.Options{Stderr: r.Stderr, Version: v, Joined: r.Joined, Alone: r.Alone, Libraries: adoptLibraries(c.Log.Format), Up: func(u daemon.Up) { r.Up(cli.Up(u)) }, Again: r.Again})
		},
	}.Execute(ctx, os.Args[1:]))
}
