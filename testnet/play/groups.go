package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/groups"
)

// gathers reports whether a scenario is one of package groups.
func gathers(scenario string) bool {
	return slices.Contains([]string{groups.Join, groups.Grow, groups.Merge, groups.Backup}, scenario)
}

// gather plays seed after seed and reports whether every promise held in all of them.
func (t *trial) gather(ctx context.Context, people, stdout io.Writer) (held bool, err error) {
	all := []groups.Outcome{}
	var formed []float64
	tokens, killed, ordered, violations := 0, 0, 0, 0
	fmt.Fprintf(people, "%4s  %5s %6s %7s %6s %8s %5s\n", "SEED", "PEERS", "KILLED", "ORDERED", "TOKENS", "FORMED", "ALL")
	for i := range t.seeds {
		o, err := groups.Run(ctx, groups.Config{Scenario: t.scenario, Binary: t.Binary, Dir: t.Dir, Seed: t.Seed + uint64(i), Bound: t.Recovery})
		if err != nil {
			return false, err
		}
		all, formed = append(all, o), append(formed, o.Formed)
		tokens, killed, ordered, violations = tokens+o.Tokens, killed+o.Killed, ordered+o.Ordered, violations+len(o.Violations)
		fmt.Fprintf(people, "%4d  %5d %6d %7d %6d %6.2f s %3.0f s\n", o.Seed, o.Peers, o.Killed, o.Ordered, o.Tokens, o.Formed, o.Seconds)
		for _, v := range o.Violations {
			fmt.Fprintf(people, "VIOLATION %s\n", v)
		}
		if o.Data != "" {
			fmt.Fprintf(people, "data and logs are in %s\n", o.Data)
		}
	}
	fmt.Fprintf(people, "\n%d seeds, %d peers killed and started again, %d groups given up by order, %d tokens; one group with its voters: median %.2f s, longest %.2f s after a start\n%d violations\n",
		len(all), killed, ordered, tokens, middle(formed), slices.Max(formed), violations)
	if t.json {
		encoder := json.NewEncoder(stdout)
		encoder.SetEscapeHTML(false)
		err = encoder.Encode(all)
	}
	return violations == 0, fault.As("testnet.gather", fault.Unavailable, err)
}
