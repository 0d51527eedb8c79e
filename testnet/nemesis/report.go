package nemesis

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/blackhole/blackhole/testnet/nemesis/history"
)

// Report is the result of a run, written as JSON. Times are seconds.
type Report struct {
	Seed       uint64                    `json:"seed"`
	Founders   int                       `json:"founders"`
	Others     int                       `json:"others"`
	Seconds    float64                   `json:"seconds"`
	Operations map[string]map[string]int `json:"operations"` // by kind and outcome
	Faults     map[string]int            `json:"faults"`
	Skipped    []string                  `json:"skipped,omitempty"`
	Events     int                       `json:"events"`
	Watches    int                       `json:"watches"`
	Resumed    int                       `json:"resumed"`             // watches resumed at another peer
	Answers    history.Answers           `json:"answers"`             // to questions for all offers, during an upgrade
	Trades     history.Trades            `json:"trades"`              // requests for units of offers
	Questions  Answers                   `json:"questions"`           // the same questions, by time
	Unsettled  []string                  `json:"unsettled,omitempty"` // peers of a stage without a complete answer after all
	Leaders    int                       `json:"leaders"`             // terms with an observed leader
	Recoveries []float64                 `json:"recoveries"`          // from the end of a fault until every peer answers
	Freed      []float64                 `json:"freed"`               // from the death of a client to the end of its locks
	Checks     []Check                   `json:"checks"`
	Violations []history.Violation       `json:"violations"`
	Kept       string                    `json:"kept,omitempty"` // directory of data, logs and history

	term uint64
}

// Check is the result and the cost of one rule.
type Check struct {
	Rule       string  `json:"rule"`
	Checked    int     `json:"checked"`
	Seconds    float64 `json:"seconds"`
	Violations int     `json:"violations"`
}

// noteTerm counts terms with a leader, observed between faults only.
func (r *Report) noteTerm(term uint64) {
	if term > r.term {
		r.term = term
		r.Leaders++
	}
}

func newReport(c Config) *Report {
	return &Report{
		Seed: c.Seed, Founders: c.Founders, Others: c.Others, Seconds: c.Duration.Seconds(),
		Operations: make(map[string]map[string]int), Faults: make(map[string]int), Violations: []history.Violation{},
	}
}

// conclude adds the results to the report.
func (r *Report) conclude(h history.History, results []history.Result) {
	for _, o := range h.Ops {
		kind := string(o.Kind)
		if r.Operations[kind] == nil {
			r.Operations[kind] = make(map[string]int)
		}
		r.Operations[kind][string(o.Outcome)]++
	}
	r.Events = len(h.Events)
	for _, d := range history.Freed(h) {
		r.Freed = append(r.Freed, d.Seconds())
	}
	for _, v := range results {
		r.Checks = append(r.Checks, Check{v.Rule, v.Checked, v.Took.Round(time.Millisecond).Seconds(), len(v.Violations)})
		r.Violations = append(r.Violations, v.Violations...)
	}
}

// Show prints the report for people.
func (r *Report) Show(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nseed %d, %d founders and %d others, %.0f s\n\n", r.Seed, r.Founders, r.Others, r.Seconds)
	fmt.Fprintf(t, "OPERATION\tOK\tREFUSED\tUNKNOWN\n")
	total := 0
	for _, kind := range slices.Sorted(maps.Keys(r.Operations)) {
		of := r.Operations[kind]
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\n", kind, of["ok"], of["refused"], of["unknown"])
		total += of["ok"] + of["refused"] + of["unknown"]
	}
	fmt.Fprintf(t, "\n%d operations; %d events to %d watches, which resumed elsewhere %d times\n", total, r.Events, r.Watches, r.Resumed)
	if a := r.Answers; a != (history.Answers{}) {
		fmt.Fprintf(t, "questions for all offers: %d complete answers, %d incomplete, %d failed; %d complete answers lacked a change that not all keepers had taken\n",
			a.Complete, a.Incomplete, a.Failed, a.Late)
	}
	if n := r.Trades; n != (history.Trades{}) {
		fmt.Fprintf(t, "%d requests for units of offers: %d with effect, %d refused, %d without an answer\n",
			n.Granted+n.Refused+n.Unknown, n.Granted, n.Refused, n.Unknown)
	}
	fmt.Fprintf(t, "\nFAULT\tTIMES\n")
	for _, kind := range slices.Sorted(maps.Keys(r.Faults)) {
		fmt.Fprintf(t, "%s\t%d\n", kind, r.Faults[kind])
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(t, "skipped\t%s\n", s)
	}
	fmt.Fprintf(t, "\n%d terms had a leader; all peers served again after a fault: median %.2f s, longest %.2f s\n",
		r.Leaders, quantile(r.Recoveries, 0.5), quantile(r.Recoveries, 1))
	fmt.Fprintf(t, "the locks of clients that died, under leases of %v, were free after: median %.2f s, longest %.2f s, of %d\n",
		ttl, quantile(r.Freed, 0.5), quantile(r.Freed, 1), len(r.Freed))
	fmt.Fprintf(t, "\nCHECK\tCHECKED\tTOOK\tVIOLATIONS\n")
	for _, c := range r.Checks {
		fmt.Fprintf(t, "%s\t%d\t%.3f s\t%d\n", c.Rule, c.Checked, c.Seconds, c.Violations)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, v := range r.Violations {
		fmt.Fprintf(w, "\nVIOLATION %v\n", v)
	}
	if r.Kept != "" {
		fmt.Fprintf(w, "\ndata, logs and history are in %s\n", r.Kept)
	}
	_, err := fmt.Fprintf(w, "\n%d violations\n", len(r.Violations))
	return err
}

func quantile(all []float64, q float64) float64 {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[int(q*float64(len(sorted)-1))]
}
