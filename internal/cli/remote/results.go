package remote

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Results collects the outcomes of a command with several changes.
type Results struct {
	Of     int      // number of named ids
	Header []string // of the table; nil prints no table
	items  []any    // JSON forms of successes and failures
	rows   [][]string
	failed []string // one line each
	warned []string // one line each
	first  error    // the first failure
}

// failure is the JSON form of a failed result.
type failure struct {
	ID    string `json:"id"`
	Error struct {
		Kind    string `json:"kind"`
		Field   string `json:"field,omitempty"`
		Message string `json:"message"`
	} `json:"error"`
}

// Add notes a success.
func (o *Results) Add(item any, row ...string) {
	o.items, o.rows = append(o.items, item), append(o.rows, row)
}

// Warn notes the warnings of a success. One warning about several ids is shown once.
func (o *Results) Warn(id string, warnings []string) {
	for _, w := range warnings {
		if !slices.ContainsFunc(o.warned, func(line string) bool { return strings.HasSuffix(line, ": "+w) }) {
			o.warned = append(o.warned, "warning: "+id+": "+w)
		}
	}
}

// Fail notes a failed change.
func (o *Results) Fail(id string, err error) {
	if o.first == nil {
		o.first = err
	}
	f := failure{ID: id}
	f.Error.Kind, f.Error.Field, f.Error.Message = fault.KindOf(err).String(), fault.FieldOf(err), exit.Message(err)
	o.items, o.failed = append(o.items, f), append(o.failed, id+": "+exit.OneLine(err))
}

// Each calls do for each id, and stops at an error that later ids would repeat. do adds successes.
func (o *Results) Each(ids []string, do func(id string) error) {
	for _, id := range ids {
		err := do(id)
		if err != nil {
			o.Fail(id, err)
		}
		if exit.Hopeless(err) {
			return
		}
	}
}

// Print shows the results and returns the first failure, or a summary of several results.
func (o *Results) Print(r *Peer) error {
	if o.Of == 1 && o.first != nil {
		return o.first
	}
	doc := term.Document{Value: map[string]any{"results": term.Emptied(o.items)}, Items: o.items}
	if len(o.rows) > 0 && o.Header != nil {
		doc.Table = term.Table(o.Header, o.rows)
	}
	err := r.Print(doc)
	for _, line := range o.warned {
		r.Say("%s", line)
	}
	if err != nil || o.first == nil {
		return err
	}
	for _, line := range o.failed {
		r.Say("%s", line)
	}
	if left := o.Of - len(o.items); left > 0 {
		r.Say("%d not tried", left)
	}
	if !exit.Answered(o.first) {
		return o.first
	}
	kind := fault.KindOf(o.first)
	return exit.Answer(kind, "%d of %d failed", len(o.failed), o.Of)
}

// MustFind adds the flag of a search that has to find something.
func MustFind(cmd *cobra.Command, must *bool) {
	cmd.Flags().BoolVar(must, "exit-code", false, "exit with code 3 if nothing is found")
}

// Found is the error of a search after its output.
func Found(err error, must bool, found int) error {
	if err == nil && must && found == 0 {
		return exit.Answer(fault.NotFound, "nothing found")
	}
	return err
}
