package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/lan"
	"github.com/blackhole/blackhole/testnet/startup"
)

// orders is the scenario with peer starts in any order. It has no choice of faults.
const orders = "startup"

// starts is the -json object of this scenario.
type starts struct {
	Skipped  string            `json:"skipped,omitempty"` // why there were no cuts
	Outcomes []startup.Outcome `json:"seeds"`
}

// rise plays seed after seed and reports whether every promise held in all of them.
func (t *trial) rise(ctx context.Context, people, stdout io.Writer) (held bool, err error) {
	c := startup.Config{Binary: t.Binary, Dir: t.Dir, Peers: startup.Peers, Founders: min(t.Founders, startup.Peers), Bound: t.Recovery}
	all := starts{Outcomes: []startup.Outcome{}}
	if c.LAN, err = lan.New(c.Peers); err != nil {
		if fault.KindOf(err) != fault.Unsupported {
			return false, err
		}
		c.LAN, all.Skipped = nil, err.Error()
		fmt.Fprintf(people, "no cuts: %v\n", err)
	} else {
		defer c.LAN.Close()
	}
	fmt.Fprintf(people, "%4s  %-24s %9s %4s %7s %4s %9s %9s  %-9s %6s %5s\n",
		"SEED", "ORDER (! KILLED)", "COMMITTED", "KEPT", "REFUSED", "LEFT", "INSTANCES", "CONVERGED", "CUT", "HEALED", "ALL")
	held = true
	for i := range t.seeds {
		c.Seed = t.Seed + uint64(i)
		o, err := startup.Run(ctx, c)
		if err != nil {
			return false, err
		}
		all.Outcomes = append(all.Outcomes, o)
		held = held && len(o.Violations) == 0
		show(people, o)
	}
	summarize(people, all.Outcomes)
	if t.json {
		encoder := json.NewEncoder(stdout)
		encoder.SetEscapeHTML(false)
		err = encoder.Encode(all)
	}
	return held, fault.As("testnet.rise", fault.Unavailable, err)
}

// show prints one line for one seed.
func show(w io.Writer, o startup.Outcome) {
	cut := "none"
	if o.Cut > 0 {
		cut = fmt.Sprintf("%d|%d %.1f s", o.Side, startup.Peers-o.Side, o.Cut)
	}
	fmt.Fprintf(w, "%4d  %-24s %9d %4d %7d %4d %9d %7.2f s  %-9s %4.2f s %3.0f s\n",
		o.Seed, o.Order, o.Committed, o.Kept, o.Refused, o.Deregistered, o.Instances, o.Converged, cut, o.Healed, o.Seconds)
	for _, v := range o.Violations {
		fmt.Fprintf(w, "VIOLATION %s\n", v)
	}
	if o.Data != "" {
		fmt.Fprintf(w, "data and logs are in %s\n", o.Data)
	}
}

// summarize prints totals over all seeds.
func summarize(w io.Writer, all []startup.Outcome) {
	var converged, healed []float64
	instances, violations, killed, overtaken := 0, 0, 0, 0
	for _, o := range all {
		converged, healed = append(converged, o.Converged), append(healed, o.Healed)
		instances, violations, killed = instances+o.Instances, violations+len(o.Violations), killed+o.Killed
		overtaken += len(o.Overtaken)
	}
	fmt.Fprintf(w, "\n%d seeds, %d peers killed and started again, %d instances; all known everywhere: median %.2f s, longest %.2f s after the last event,"+
		" median %.2f s, longest %.2f s after a cut\n%d instances are as they were registered before they moved\n%d violations\n",
		len(all), killed, instances, middle(converged), slices.Max(converged), middle(healed), slices.Max(healed), overtaken, violations)
}

func middle(all []float64) float64 { return slices.Sorted(slices.Values(all))[(len(all)-1)/2] }
