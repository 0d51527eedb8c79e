// Command blackholed runs a peer of the network, or calls a running peer.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/blackhole/blackhole/internal/cli"
	"github.com/blackhole/blackhole/internal/cli/group"
	"github.com/blackhole/blackhole/internal/daemon"
	"github.com/blackhole/blackhole/internal/platform/config"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // restores the default: a second signal kills the process
	v := version()
	os.Exit(cli.App{
		Version: v, Build: built(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(), Terminal: terminal(), Superuser: os.Geteuid() == 0,
		Identity: daemon.Identity, Reclaim: daemon.Reclaim, Join: daemon.Join, NetworkKeys: daemon.NetworkKeys,
		Recover: func(dataDir string, commit bool) (group.Recovery, error) {
			r, err := daemon.Recover(dataDir, commit)
			return group.Recovery(r), err
		},
		Restore: func(dataDir string, backup io.Reader, after uint64, commit bool) (group.Restoration, error) {
			r, err := daemon.Restore(dataDir, backup, after, commit)
			return group.Restoration(r), err
		},
		Run: func(ctx context.Context, c config.Config, r cli.Runner) error {
			return daemon.Run(ctx, c, daemon.Options{Stderr: r.Stderr, Version: v, Joined: r.Joined, Libraries: adoptLibraries(c.Log.Format), Up: func(u daemon.Up) { r.Up(cli.Up(u)) }, Again: r.Again})
		},
	}.Execute(ctx, os.Args[1:]))
}
