package lab

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/blackhole/blackhole/testnet/lab/flood"
	"github.com/blackhole/blackhole/testnet/network"
	"github.com/blackhole/blackhole/testnet/sample"
)

// print prints what a flood did, and the honest operations before, beside and after it.
func (f *floods) print(row flood.Row, r flood.Report, in []*window) {
	f.say("%-11s  %s: %d messages by %d identities, %.0f a second, %.2f cores; %d accepted, others: %v",
		row.Name, row.About, r.Sent, r.Hosts, float64(r.Sent)/r.Seconds, r.Cores, r.Accepted, r.Refused)
	for _, name := range f.honest.names() {
		var columns []string
		for _, w := range in {
			took := w.took[name]
			columns = append(columns, fmt.Sprintf("%.1f / %.1f (%d)", ms(sample.Quantile(took, 0.5)), ms(sample.Quantile(took, 0.99)), len(took)))
		}
		f.say("%-11s  %-8s p50 / p99 in ms (calls): before %s, beside %s, after %s; p99 %s",
			row.Name, name, columns[0], columns[1], columns[2], change(in[1].took[name], slices.Concat(in[0].took[name], in[2].took[name])))
	}
	quiet := (in[0].load.victim + in[2].load.victim) / 2
	each := (in[1].load.victim - quiet) / max(float64(r.Sent)/r.Seconds, 1)
	f.say("%-11s  processors used by the victim, all other peers, the lab: before %s, beside %s, after %s; of the victim %.0f us a message",
		row.Name, in[0].load, in[1].load, in[2].load, 1e6*each)
	if n := in[0].incomplete + in[1].incomplete + in[2].incomplete; n > 0 {
		f.say("%-11s  incomplete answers: %d before, %d beside, %d after", row.Name, in[0].incomplete, in[1].incomplete, in[2].incomplete)
	}
}

// change compares two 99th percentiles, in percent.
func change(beside, quiet []time.Duration) string {
	if len(beside) == 0 || len(quiet) == 0 {
		return "unknown"
	}
	return fmt.Sprintf("%+.0f %%", 100*(ms(sample.Quantile(beside, 0.99))/ms(sample.Quantile(quiet, 0.99))-1))
}

// names lists the honest operations.
func (h *honest) names() []string {
	var names []string
	for _, d := range h.operations() {
		names = append(names, d.name)
	}
	return append(names, updateSeen)
}

// String lists the parts.
func (l load) String() string { return fmt.Sprintf("%.2f %.2f %.2f", l.victim, l.others, l.lab) }

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// counted are the parts of the names of metrics that count what a peer took and refused.
func counted() []string {
	return []string{
		"_refused_total", "_dropped_total", "gossip_messages_total", `dht_operations_total{operation="serve_`, `outcome="limit_reached"`, `outcome="pool_exhausted"`, `status="429"`,
		"leader_changes_total",
	}
}

// counts returns the victim's counts of refused and accepted messages.
func (f *floods) counts(ctx context.Context) (map[string]float64, error) {
	all, err := network.Metrics(ctx, f.victim.http, httpAddress)
	maps.DeleteFunc(all, func(name string, _ float64) bool {
		return !slices.ContainsFunc(counted(), func(part string) bool { return strings.Contains(name, part) })
	})
	return all, err
}

// difference lists what changed between two counts.
func difference(before, after map[string]float64) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if d := after[name] - before[name]; d > 0 {
			all = append(all, fmt.Sprintf("%s %.0f", strings.TrimPrefix(name, "blackhole_"), d))
		}
	}
	if len(all) == 0 {
		return "nothing"
	}
	return strings.Join(all, ", ")
}
