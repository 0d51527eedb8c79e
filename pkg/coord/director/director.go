// Package director holds what the cluster needs against what its directory has.
//
// A requirement asks for so many instances of a service. A Director tells of each whether it is
// satisfied: it starts with the complete directory, whose requirements are kept beside the
// instances, and follows every committed change. So a requirement that was not satisfied when it
// was set is looked at again when, and only when, something came that may satisfy it, and
// whoever takes over from another Director knows all that the last one knew.
//
// A Director only computes, and costs what changed: an event touches the requirements of its own
// service and nothing else. It is for one goroutine.
package director

import (
	"maps"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Status is how a requirement stands.
type Status struct {
	coord.Requirement
	// Available counts the instances that the selector picks; below Min, the requirement is not
	// satisfied.
	Available int
	// Since is the revision at which Satisfied, or the requirement itself, last changed, as far as the
	// Director saw it: that of its Reset for what was so before.
	Since coord.Revision
	// Problem says why nothing can be counted, such as a selector that cannot be understood; mostly nil.
	Problem error
}

// Satisfied reports whether there are as many instances as it needs.
func (s *Status) Satisfied() bool { return s.Problem == nil && s.Available >= s.Min }

// Err is nil when the requirement is satisfied. Errors: Unavailable, with needed and available in its
// text; Unprocessable, the Problem.
func (s *Status) Err() error {
	switch {
	case s.Problem != nil:
		return fault.As("director", fault.Unprocessable, s.Problem)
	case !s.Satisfied():
		return fault.New("director", fault.Unavailable, "insufficient_nodes: %s needs %d instances of %s, %d available",
			s.Name, s.Min, s.Service.Service, s.Available)
	}
	return nil
}

// Change is what became of one requirement.
type Change struct {
	Name string
	Was  *Status // nil: it is new
	Now  *Status // nil: it is deleted
}

// Turned reports whether the change is one of Satisfied.
func (c *Change) Turned() bool {
	return (c.Was != nil && c.Was.Satisfied()) != (c.Now != nil && c.Now.Satisfied())
}

// Director tells how requirements stand.
type Director struct {
	revision     coord.Revision
	services     map[instance.Name]*service
	requirements map[string]*requirement
	touched      map[string]*Status // as they were before the call under way; nil: they were not
}

// service is what there is of a service and what is required of it; never both nothing.
type service struct {
	entries      map[string]*entry // by key
	requirements map[string]*requirement
}

// entry is an instance, read when somebody first requires its service.
type entry struct {
	kv   *coord.KeyValue
	read *instance.Instance // nil: not yet, or it cannot be read
	bad  bool
}

type requirement struct {
	Status
	matcher instance.Matcher
}

// New makes a Director of an empty directory.
func New() *Director {
	return &Director{
		services: make(map[instance.Name]*service), requirements: make(map[string]*requirement),
		touched: make(map[string]*Status),
	}
}

// Revision is the last one that it has followed.
func (d *Director) Revision() coord.Revision { return d.revision }

// Get tells of one requirement.
func (d *Director) Get(name string) (Status, bool) {
	if r := d.requirements[name]; r != nil {
		return r.Status, true
	}
	return Status{}, false
}

// All tells of all requirements, by name.
func (d *Director) All() []Status {
	all := make([]Status, 0, len(d.requirements))
	for _, name := range slices.Sorted(maps.Keys(d.requirements)) {
		all = append(all, d.requirements[name].Status)
	}
	return all
}

// Reset begins with all keys of the directory and all requirements at a revision: at first, and whenever
// events were missed. Keys beside them are passed over. It gives what differs, by name.
func (d *Director) Reset(keys []*coord.KeyValue, at coord.Revision) []Change {
	before := *d
	*d = *New()
	for _, kv := range keys {
		d.apply(kv.Key, kv, at)
	}
	d.revision = at
	clear(d.touched)
	for name, was := range before.requirements {
		status := was.Status
		d.touched[name] = &status
		if now := d.requirements[name]; now != nil && !redefined(&was.Status, &now.Status) && was.Satisfied() == now.Satisfied() {
			now.Since = was.Since
		}
	}
	for name := range d.requirements {
		if before.requirements[name] == nil {
			d.touched[name] = nil
		}
	}
	return d.changes()
}

// Advance follows events, in the order of their revisions, up to a revision, that one included. Events up
// to Revision are passed over: it had them. It gives what differs in the end, by name.
func (d *Director) Advance(events []coord.Event, to coord.Revision) []Change {
	for i := range events {
		if e := &events[i]; e.Revision > d.revision {
			d.apply(e.Key, e.KV, e.Revision)
		}
	}
	d.revision = max(d.revision, to)
	return d.changes()
}

// apply makes kv the version of a key; nil deletes it.
func (d *Director) apply(key string, kv *coord.KeyValue, at coord.Revision) {
	if k, ok := coord.InstanceKey(key); ok {
		d.change(k.Name(), key, kv, at)
	} else if name, ok := strings.CutPrefix(key, coord.RequirementsPrefix); ok {
		d.require(name, kv, at)
	}
}

// change follows an instance.
func (d *Director) change(name instance.Name, key string, kv *coord.KeyValue, at coord.Revision) {
	s := d.service(name)
	was := s.entries[key]
	var is *entry
	if kv != nil {
		is = &entry{kv: kv}
		s.entries[key] = is
	} else {
		delete(s.entries, key)
	}
	for _, r := range s.requirements { // in any order: each counts for itself
		if n := r.counts(is) - r.counts(was); n != 0 {
			d.count(r, n, at)
		}
	}
	d.tidy(name)
}

// count changes what is available.
func (d *Director) count(r *requirement, n int, at coord.Revision) {
	d.touch(r.Name)
	was := r.Satisfied()
	if r.Available += n; r.Satisfied() != was {
		r.Since = at
	}
}

// require follows a requirement.
func (d *Director) require(name string, kv *coord.KeyValue, at coord.Revision) {
	d.touch(name)
	if was := d.requirements[name]; was != nil {
		delete(d.requirements, name)
		delete(d.service(was.Service).requirements, name)
		d.tidy(was.Service)
	}
	if kv == nil {
		return
	}
	r := &requirement{Status: Status{Since: at}}
	r.Requirement, r.Problem = coord.RequirementOf(kv)
	r.Name = name
	if r.Problem == nil {
		r.matcher, r.Problem = r.Selector.Compile()
	}
	d.requirements[name] = r
	s := d.service(r.Service)
	s.requirements[name] = r
	for _, e := range s.entries {
		r.Available += r.counts(e)
	}
}

// counts is 1 for an instance that the selector picks, otherwise 0. One that cannot be read is none.
func (r *requirement) counts(e *entry) int {
	if e == nil || r.Problem != nil {
		return 0
	}
	if e.read == nil && !e.bad {
		i, err := instance.Unmarshal(e.kv.Value)
		e.read, e.bad = i, err != nil
	}
	if e.bad || !r.matcher.Match(e.read) {
		return 0
	}
	return 1
}

func (d *Director) service(name instance.Name) *service {
	s := d.services[name]
	if s == nil {
		s = &service{entries: make(map[string]*entry), requirements: make(map[string]*requirement)}
		d.services[name] = s
	}
	return s
}

// tidy forgets a service of which there is nothing and nothing is required.
func (d *Director) tidy(name instance.Name) {
	if s := d.services[name]; s != nil && len(s.entries)+len(s.requirements) == 0 {
		delete(d.services, name)
	}
}

// touch remembers how a requirement stood before the call under way.
func (d *Director) touch(name string) {
	if _, ok := d.touched[name]; ok {
		return
	}
	d.touched[name] = nil
	if r := d.requirements[name]; r != nil {
		was := r.Status
		d.touched[name] = &was
	}
}

// changes gives what differs for the requirements that were touched.
func (d *Director) changes() []Change {
	var all []Change
	for _, name := range slices.Sorted(maps.Keys(d.touched)) {
		c := Change{Name: name, Was: d.touched[name]}
		if r := d.requirements[name]; r != nil {
			now := r.Status
			c.Now = &now
		}
		if differs(c.Was, c.Now) {
			all = append(all, c)
		}
	}
	clear(d.touched)
	return all
}

func differs(was, now *Status) bool {
	if was == nil || now == nil {
		return was != now
	}
	return was.Available != now.Available || redefined(was, now)
}

// redefined reports whether the requirement itself is another.
func redefined(was, now *Status) bool {
	return was.Service != now.Service || was.Min != now.Min || was.Selector.Canonical() != now.Selector.Canonical() ||
		(was.Problem == nil) != (now.Problem == nil)
}
