package catalog

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/blackhole/blackhole/pkg/instance"
)

// result is the result of a selector. Each reader brings it up to date from the
// log: a change outside the selector keeps the View, and any other makes a new
// View with the change's revision as index.
type result struct {
	key  string
	id   string               // of the only possible instance; "": any
	used atomic.Bool          // since the last visit of memo.add
	kept *instance.Renderings // nil: each rendering is new
	*deltas

	current atomic.Pointer[version]
	mu      sync.Mutex // held by the maker of the next version
}

// deltas builds the deltas of a result. A watch keeps only this part of a
// result, and thus no View alive.
type deltas struct {
	match instance.Matcher
	last  atomic.Pointer[delta]
}

// version is a View and the number of the first entry outside it.
type version struct {
	view *instance.View
	next uint64
}

// delta is the effect of a range of entries on a result.
type delta struct {
	from, to uint64
	events   []instance.Event
	rev      uint64 // of the last change; 0: none
}

// everything matches all instances.
func everything() instance.Matcher {
	m, err := instance.Selector{AnyStatus: true}.Compile()
	if err != nil {
		panic("catalog: " + err.Error()) // impossible: the selector is a constant
	}
	return m
}

// read returns the present version.
func (r *result) read(s *stream) *version {
	if v := r.current.Load(); v != nil && v.next >= s.state.Load().end() {
		return v
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	st, v := s.state.Load(), r.current.Load()
	switch {
	case v == nil || v.next < st.first:
		v = r.advance(r.build(st), st)
	case v.next < st.end():
		v = r.advance(v, st)
	default:
		return v
	}
	r.current.Store(v)
	return v
}

// build makes the version of st.base. Without a logged change its index is the
// first revision of the log.
func (r *result) build(st *state) *version {
	list := st.base
	if r.id != "" {
		at, _ := slices.BinarySearchFunc(list, r.id, func(i *instance.Instance, id string) int { return strings.Compare(i.ID, id) })
		list = list[at:min(at+1, len(list))]
	}
	var picked []*instance.Instance
	for _, i := range list {
		if r.match.Match(i) {
			picked = append(picked, i)
		}
	}
	slices.SortFunc(picked, r.match.Compare)
	_, rev := netOf(r.match, st.log[:st.based])
	return &version{view: instance.NewView(max(st.floor, rev), picked, r.kept), next: st.first + uint64(st.based)}
}

// advance makes the version of st from an older one.
func (r *result) advance(v *version, st *state) *version {
	net, rev := netOf(r.match, st.from(v.next))
	if rev == 0 {
		return &version{view: v.view, next: st.end()}
	}
	return &version{view: v.view.Next(rev, merge(v.view.Instances, net, r.match.Compare)), next: st.end()}
}

// since returns the effect of all entries from a number on, at least st.first.
// Equal requests share the answer, because all watchers of a result wake
// together.
func (n *deltas) since(st *state, from uint64) *delta {
	if from == st.end() {
		return &delta{from: from, to: from}
	}
	if d := n.last.Load(); d != nil && d.from == from && d.to == st.end() {
		return d
	}
	net, rev := netOf(n.match, st.from(from))
	d := &delta{from: from, to: st.end(), rev: rev}
	for _, c := range net {
		if e, ok := c.event(); ok {
			d.events = append(d.events, e)
		}
	}
	n.last.Store(d)
	return d
}

// change is the change of one instance of a result.
type change struct {
	before *instance.Instance // nil: not in the result before
	after  *instance.Instance // nil: not in the result afterwards
	state  *instance.Instance // state that caused the change
	rev    uint64
}

// event returns false for an instance that entered and left.
func (c change) event() (instance.Event, bool) {
	e := instance.Event{Type: instance.Modified, Instance: c.state, Revision: c.rev}
	switch {
	case c.before == nil && c.after == nil:
		return e, false
	case c.before == nil:
		e.Type = instance.Added
	case c.after == nil:
		e.Type = instance.Removed
	}
	return e, true
}

// netOf returns the net changes of the instances that m matches, one for each
// instance with its last revision, and the last revision of a change; 0: none.
func netOf(m instance.Matcher, entries []entry) (net []change, rev uint64) {
	var at map[instance.Key]int
	for i := len(entries) - 1; i >= 0; i-- {
		e := &entries[i]
		var before, after *instance.Instance
		if e.before != nil && m.Match(e.before) {
			before = e.before
		}
		if !e.gone && m.Match(e.after) {
			after = e.after
		}
		if before == nil && after == nil {
			continue
		}
		rev = max(rev, e.rev)
		if n, ok := at[e.after.Key]; ok {
			net[n].before = before
			continue
		}
		if at == nil && i > 0 {
			at = make(map[instance.Key]int)
		}
		if at != nil {
			at[e.after.Key] = len(net)
		}
		net = append(net, change{before: before, after: after, state: e.after, rev: e.rev})
	}
	slices.Reverse(net)
	return net, rev
}

// merge applies net changes to a sorted list. It copies the parts between
// changes as a whole.
func merge(list []*instance.Instance, net []change, order func(a, b *instance.Instance) int) []*instance.Instance {
	var out, in []*instance.Instance
	for _, c := range net {
		if c.before != nil {
			out = append(out, c.before)
		}
		if c.after != nil {
			in = append(in, c.after)
		}
	}
	slices.SortFunc(out, order)
	slices.SortFunc(in, order)
	merged := make([]*instance.Instance, 0, max(0, len(list)+len(in)-len(out)))
	for len(out)+len(in) > 0 {
		takes := len(in) == 0 || len(out) > 0 && order(out[0], in[0]) <= 0 // the old state before the new one in its place
		if takes {
			n, _ := slices.BinarySearchFunc(list, out[0], order)
			merged = append(merged, list[:n]...)
			list, out = list[n+1:], out[1:]
			continue
		}
		n, _ := slices.BinarySearchFunc(list, in[0], order)
		merged = append(append(merged, list[:n]...), in[0])
		list, in = list[n:], in[1:]
	}
	return append(merged, list...)
}
