package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/process"
	"github.com/blackhole/blackhole/testnet/soak"
)

// steep keeps peers under steady load without faults. The exit code is 0 only if what each peer holds stayed flat.
func steep(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	c := soak.Config{Progress: stdout}
	f := flag.NewFlagSet("testnet soak", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.DurationVar(&c.Duration, "duration", time.Hour, "of the load")
	f.DurationVar(&c.Every, "every", time.Minute, "from one look at the peers to the next")
	f.IntVar(&c.Peers, "peers", 5, "peers, 2 to 9; three of them vote")
	f.StringVar(&c.Binary, "binary", "", "`file` of a built blackholed to run instead of building one")
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err == nil && f.NArg() > 0 {
		err = fault.Invalidf("arguments", f.Args(), "there are none, not %q", f.Args())
	}
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		fmt.Fprintf(stderr, "testnet soak: %v\n", err)
		return exitUsage
	}
	flat, err := soakIn(ctx, c)
	if err != nil {
		fmt.Fprintf(stderr, "testnet soak: %v\n", err)
	}
	if err != nil || !flat {
		return exitFailed
	}
	return exitOK
}

// soakIn runs in a temporary directory, which stays if something grew.
func soakIn(ctx context.Context, c soak.Config) (flat bool, err error) {
	const op = "testnet.soak"
	if c.Dir, err = os.MkdirTemp("", "blackhole-soak-"); err != nil {
		return false, fault.As(op, fault.Unavailable, err)
	}
	defer func() {
		if flat || err != nil {
			_ = os.RemoveAll(c.Dir) // leftovers in the temporary directory are harmless
		}
	}()
	if c.Binary == "" {
		fmt.Fprintln(c.Progress, "building blackholed ...")
		c.Binary, err = process.Build(ctx, c.Dir)
	} else {
		c.Binary, err = filepath.Abs(c.Binary)
	}
	if err != nil {
		return false, err
	}
	return soak.Run(ctx, c)
}
