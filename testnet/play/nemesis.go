package main

import (
	"context"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/nemesis"
	"github.com/blackhole/blackhole/testnet/scenario"
)

// trial is the command line of the nemesis: faults under client load.
type trial struct {
	nemesis.Config
	scenario string
	seeds    int
	json     bool
}

// sorts maps each scenario to the name prefixes of its faults.
func sorts() map[string][]string {
	return map[string][]string{
		"all": nil, "stop": {"stop"}, "kill": {"kill", "interrupt", "hand"}, "partition": {"cut", "flap"},
		"loss": {"lose"}, "clock": {"step"}, "scarce": {"fill", "starve"},
	}
}

// scenarioNames lists the scenarios.
func scenarioNames() string {
	return strings.Join(slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(sorts())), scenario.Names()...))), ", ")
}

// playNemesis breaks a network of real peers and checks the observations of its clients. It holds without violations.
func playNemesis(ctx context.Context, c call) (held bool, err error) {
	t, err := parseTrial(c)
	if err != nil {
		return false, err
	}
	return t.run(ctx, c.stdout, c.stderr)
}

// parseTrial reads and validates the command line. It fails with Invalid, naming the flag.
func parseTrial(c call) (t trial, err error) {
	f := c.flags("Kills, stops, cuts off and starves real peers while clients use their coordination group, and checks what they saw.")
	f.DurationVar(&t.Duration, "duration", 5*time.Minute, "of load and faults, and of the script soak")
	f.Uint64Var(&t.Seed, "seed", 1, "of faults and load")
	f.IntVar(&t.Founders, "peers", nemesis.Founders, "peers that found the group, 4 to 9; three of them vote")
	f.IntVar(&t.Others, "others", nemesis.Others, "peers that are never members, 0 to 9")
	f.IntVar(&t.Buyers, "buyers", nemesis.Buyers, "clients that take units of four offers, 0 to 1000")
	f.StringVar(&t.scenario, "scenario", "all", scenarioNames())
	f.IntVar(&t.seeds, "seeds", 1, "to play, one after the other, of the scripts; they have their own peers")
	f.DurationVar(&t.Pause, "pause", 30*time.Second, "longest time that a process is stopped or a network cut")
	f.DurationVar(&t.Recovery, "recovery", 30*time.Second, "longest time from the end of a fault until all clients are served")
	f.StringVar(&t.Dir, "data", "", "`directory` for data, logs and history (default a temporary one)")
	f.BoolVar(&t.json, "json", false, "print one JSON object on standard output, and all else on standard error")
	err = c.parse(f, t.validate)
	return t, err
}

func (t *trial) validate() error {
	words, known := sorts()[t.scenario]
	switch {
	case !known && !slices.Contains(scenario.Names(), t.scenario):
		return fault.Invalidf("-scenario", t.scenario, "must be one of %s", scenarioNames())
	case t.seeds < 1 || t.seeds > 10_000:
		return fault.Invalidf("-seeds", t.seeds, "must be 1 to 10000, not %d", t.seeds)
	case t.Duration < time.Second:
		return fault.Invalidf("-duration", t.Duration, "must be at least 1s, not %v", t.Duration)
	case t.Founders < 4 || t.Founders > 9:
		return fault.Invalidf("-peers", t.Founders, "must be 4 to 9, not %d", t.Founders)
	case t.Others < 0 || t.Others > 9:
		return fault.Invalidf("-others", t.Others, "must be 0 to 9, not %d", t.Others)
	case t.Buyers < 0 || t.Buyers > 1000:
		return fault.Invalidf("-buyers", t.Buyers, "must be 0 to 1000, not %d", t.Buyers)
	case t.Pause < time.Second:
		return fault.Invalidf("-pause", t.Pause, "must be at least 1s, not %v", t.Pause)
	case t.Recovery < time.Second:
		return fault.Invalidf("-recovery", t.Recovery, "must be at least 1s, not %v", t.Recovery)
	}
	t.Faults = nemesis.Faults(words...)
	return nil
}

// run reports whether every promise held.
func (t *trial) run(ctx context.Context, stdout, stderr io.Writer) (held bool, err error) {
	const op = "testnet.nemesis"
	people := stdout
	if t.json {
		people = stderr
	}
	var done func(bool)
	if t.Dir, t.Binary, done, err = workshop(ctx, "nemesis", t.Dir); err != nil {
		return false, err
	}
	defer func() { done(held) }()
	if slices.Contains(scenario.Names(), t.scenario) {
		held, err := t.script(ctx, people, stdout)
		if err != nil {
			return false, fault.New(op, fault.KindOf(err), "%w; data and logs are in %s", err, t.Dir)
		}
		return held, nil
	}
	t.Progress = people
	report, err := nemesis.Run(ctx, t.Config)
	if err != nil {
		return false, fault.New(op, fault.KindOf(err), "%w; data and logs are in %s", err, t.Dir)
	}
	if err := report.Show(people); err != nil {
		return false, fault.As(op, fault.Unavailable, err)
	}
	if t.json {
		err = writeJSON(stdout, report)
	}
	return len(report.Violations) == 0, err
}
