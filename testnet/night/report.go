package night

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/blackhole/blackhole/testnet/nemesis"
)

// Report is the result of a night, written as JSON.
type Report struct {
	Seed     uint64              `json:"seed"`
	Seconds  float64             `json:"seconds"`
	Load     string              `json:"load"` // of the machine at the end, as in /proc/loadavg
	World    []string            `json:"world"`
	Promises []Line              `json:"promises"`
	Figures  []Figure            `json:"figures"`
	Attacks  map[string]*Attack  `json:"attacks"`
	Failed   map[string]int      `json:"failed"` // purchases in vain, by reason
	Hidden   []string            `json:"hidden"`
	Troubles []string            `json:"troubles"` // what the program could not do
	Samples  map[string][]Sample `json:"samples"`
	Nemesis  *nemesis.Report     `json:"nemesis"`
}

// Figure is what was measured, and breaks nothing.
type Figure struct {
	What string `json:"what"`
	Text string `json:"text"`
}

// conclude judges the night.
func (n *night) conclude(r *nemesis.Report) *Report {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.books.mu.Lock()
	defer n.books.mu.Unlock()
	return &Report{
		Seed: n.Seed, Seconds: n.Duration.Seconds(), Load: loadAverage(), World: n.table(),
		Promises: n.judge(r), Figures: n.figures(r), Attacks: n.attacks, Nemesis: r,
		Failed: n.books.failed, Hidden: n.books.lines, Troubles: n.troubles, Samples: n.samples,
	}
}

// Held reports whether no promise was broken.
func (r *Report) Held() bool {
	return !slices.ContainsFunc(r.Promises, func(l Line) bool { return l.Broken > 0 })
}

// Show prints the report for people.
func (r *Report) Show(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nseed %d, %.0f s, load of the machine %s\n\nPROMISE\tBROKEN\tCHECKED\tWHAT\n", r.Seed, r.Seconds, r.Load)
	for _, l := range r.Promises {
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\n", l.Promise, l.Broken, l.Checked, l.What)
	}
	fmt.Fprintf(t, "\nROLE\tSHIFTS\tIDENTITIES\tSENT\tACCEPTED\tWHAT\n")
	for _, name := range slices.Sorted(maps.Keys(r.Attacks)) {
		a := r.Attacks[name]
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%s\n", name, a.Shifts, a.Hosts, a.Sent, a.Accepted, a.About)
	}
	fmt.Fprintf(t, "\nFAULT\tTIMES\n")
	for _, kind := range slices.Sorted(maps.Keys(r.Nemesis.Faults)) {
		fmt.Fprintf(t, "%s\t%d\n", kind, r.Nemesis.Faults[kind])
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, f := range r.Figures {
		fmt.Fprintf(w, "%s: %s\n", f.What, f.Text)
	}
	for _, what := range slices.Sorted(maps.Keys(r.Failed)) {
		fmt.Fprintf(w, "  in vain %d times: %s\n", r.Failed[what], what)
	}
	for _, why := range slices.Sorted(maps.Keys(r.Nemesis.Questions.Reasons)) {
		fmt.Fprintf(w, "  incomplete %d times: %s\n", r.Nemesis.Questions.Reasons[why], why)
	}
	for _, line := range slices.Concat(r.Hidden, r.Nemesis.Questions.Late, r.Troubles) {
		fmt.Fprintf(w, "  %s\n", line)
	}
	broken := 0
	for _, l := range r.Promises {
		if l.Broken > 0 {
			broken++
			fmt.Fprintf(w, "\nBROKEN %s: %d %s: %s\n", l.Promise, l.Broken, l.What, strings.TrimSpace(l.Detail))
		}
	}
	if r.Nemesis.Kept != "" {
		fmt.Fprintf(w, "\ndata, logs and history are in %s\n", r.Nemesis.Kept)
	}
	_, err := fmt.Fprintf(w, "\n%d of %d promises broken\n", broken, len(r.Promises))
	return err
}
