package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/lab"
	"github.com/blackhole/blackhole/testnet/night"
	"github.com/blackhole/blackhole/testnet/night/flood"
)

// playNight lets honest and hostile peers live together, and judges the promises to the honest.
func playNight(ctx context.Context, c call) (held bool, err error) {
	const op = "testnet.night"
	var n night.Config
	f := c.flags("Lets whole daemons of homes, offices and servers live with attackers and faults, each in a network namespace, and judges\n" +
		"what the honest were promised. Needs root, ip(8), nft(8) and /dev/net/tun.")
	f.DurationVar(&n.Duration, "for", 10*time.Minute, "`length` of load, faults and attacks")
	f.Uint64Var(&n.Seed, "seed", 1, "of places, attacks, faults and load")
	f.IntVar(&n.Peers, "peers", 20, fmt.Sprintf("places, %d to %d; a third of them is of attackers", night.LeastPeers, night.MostPeers))
	f.Float64Var(&n.Part, "part", 0.1, "of its full rate and of half a processor that each attacker uses, above 0 to 1")
	f.DurationVar(&n.Pause, "pause", time.Minute, "longest time that a process is stopped or a network cut")
	f.DurationVar(&n.Recovery, "recovery", 90*time.Second, "longest time from the end of a fault until all clients are served")
	roles := f.String("roles", "all", "comma-separated `names` of what attackers play, or all; none: a control that only computes")
	must := f.Bool("must", false, "fail on a machine that cannot play it")
	report := f.String("report", "", "`directory` for the report as page and as JSON (default that of data)")
	f.StringVar(&n.Dir, "data", "", "`directory` for data, logs and history (default a temporary one)")
	if err := c.parse(f, func() error {
		switch {
		case n.Duration < time.Second:
			return fault.Invalidf("-for", n.Duration, "must be at least 1s, not %v", n.Duration)
		case n.Peers < night.LeastPeers || n.Peers > night.MostPeers:
			return fault.Invalidf("-peers", n.Peers, "must be %d to %d, not %d", night.LeastPeers, night.MostPeers, n.Peers)
		case n.Part <= 0 || n.Part > 1:
			return fault.Invalidf("-part", n.Part, "must be above 0 and at most 1, not %v", n.Part)
		case n.Pause < time.Second:
			return fault.Invalidf("-pause", n.Pause, "must be at least 1s, not %v", n.Pause)
		case n.Recovery < time.Second:
			return fault.Invalidf("-recovery", n.Recovery, "must be at least 1s, not %v", n.Recovery)
		}
		n.Roles, err = flood.Find(*roles)
		return err
	}); err != nil {
		return false, err
	}
	if err := lab.Available(); err != nil {
		fmt.Fprintf(c.stdout, "skipped: this machine cannot play a night: %v\n", err)
		return !*must, nil
	}
	var done func(bool)
	if n.Dir, n.Binary, done, err = workshop(ctx, "night", n.Dir); err != nil {
		return false, err
	}
	defer func() { done(held && err == nil) }()
	if n.Program, err = os.Executable(); err != nil {
		return false, fault.As(op, fault.Unavailable, err)
	}
	n.Progress = c.stdout
	r, err := night.Run(ctx, n)
	if err != nil {
		return false, fault.New(op, fault.KindOf(err), "%w; data and logs are in %s", err, n.Dir)
	}
	if *report == "" {
		*report = n.Dir
	}
	if err := writeNight(r, *report); err != nil {
		return false, fault.As(op, fault.Unavailable, err)
	}
	return r.Held(), r.Show(c.stdout)
}

// writeNight writes the report as page and as JSON.
func writeNight(r *night.Report, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, write := range map[string]func(*os.File) error{
		"html": func(f *os.File) error { return r.WritePage(f) },
		"json": func(f *os.File) error { return writeJSON(f, r) },
	} {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("night-%d.%s", r.Seed, name)))
		if err != nil {
			return err
		}
		if err := write(f); err != nil {
			_ = f.Close()
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}
