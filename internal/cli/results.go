package cli

import (
	"slices"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
)

// results collects the outcomes of a command with several changes.
type results struct {
	of     int      // number of named ids
	header []string // of the table; nil prints no table
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

// add notes a success.
func (o *results) add(item any, row ...string) {
	o.items, o.rows = append(o.items, item), append(o.rows, row)
}

// warn notes the warnings of a success. One warning about several ids is shown once.
func (o *results) warn(id string, warnings []string) {
	for _, w := range warnings {
		if !slices.ContainsFunc(o.warned, func(line string) bool { return strings.HasSuffix(line, ": "+w) }) {
			o.warned = append(o.warned, "warning: "+id+": "+w)
		}
	}
}

// fail notes a failed change.
func (o *results) fail(id string, err error) {
	if o.first == nil {
		o.first = err
	}
	f := failure{ID: id}
	f.Error.Kind, f.Error.Field, f.Error.Message = fault.KindOf(err).String(), fault.FieldOf(err), message(err)
	o.items, o.failed = append(o.items, f), append(o.failed, id+": "+oneLine(err))
}

// each calls do for each id, and stops at an error that later ids would repeat. do adds successes.
func (o *results) each(ids []string, do func(id string) error) {
	for _, id := range ids {
		err := do(id)
		if err != nil {
			o.fail(id, err)
		}
		if hopeless(err) {
			return
		}
	}
}

// print shows the results and returns the first failure, or a summary of several results.
func (o *results) print(r *remote) error {
	if o.of == 1 && o.first != nil {
		return o.first
	}
	doc := document{value: map[string]any{"results": emptied(o.items)}, items: o.items}
	if len(o.rows) > 0 && o.header != nil {
		doc.table = table(o.header, o.rows)
	}
	err := r.print(doc)
	for _, line := range o.warned {
		r.say("%s", line)
	}
	if err != nil || o.first == nil {
		return err
	}
	for _, line := range o.failed {
		r.say("%s", line)
	}
	if left := o.of - len(o.items); left > 0 {
		r.say("%d not tried", left)
	}
	if !answered(o.first) {
		return o.first
	}
	kind := fault.KindOf(o.first)
	return fault.As("", kind, fault.New("", kind, "%d of %d failed", len(o.failed), o.of)) // nested: see answered
}
