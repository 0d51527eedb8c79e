package main

import (
	"context"
	"fmt"
	"io"

	"github.com/blackhole/blackhole/testnet/scenario"
)

// script plays a script seed after seed and reports whether it held in all of them.
func (t *trial) script(ctx context.Context, people, stdout io.Writer) (held bool, err error) {
	all := []scenario.Outcome{}
	held = true
	fmt.Fprintf(people, "%4s  %5s %6s %6s %8s %5s\n", "SEED", "PEERS", "KILLED", "TOKENS", "FORMED", "ALL")
	for i := range t.seeds {
		o, err := scenario.Run(ctx, scenario.Config{Scenario: t.scenario, Binary: t.Binary, Dir: t.Dir, Seed: t.Seed + uint64(i), Bound: t.Recovery,
			Duration: t.Duration, Progress: people})
		if err != nil {
			return false, err
		}
		all = append(all, o)
		fmt.Fprintf(people, "%4d  %5d %6d %6d %6.2f s %3.0f s\n", o.Seed, o.Peers, o.Killed, o.Tokens, o.Formed, o.Seconds)
		if o.Failure != "" {
			held = false
			fmt.Fprintf(people, "%s\nVIOLATION %s, seed %d; data and logs are in %s\n", o.Failure, o.Scenario, o.Seed, o.Data)
		}
	}
	if t.json {
		err = writeJSON(stdout, all)
	}
	return held, err
}
