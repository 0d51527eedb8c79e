package catalog

import (
	"fmt"
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Apply applies the changes of one revision. Readers of one service or one
// namespace see all of them at once. The last change of a key counts. A change
// of the revision alone is ignored. Revisions ascend over all methods. Errors:
// Invalid, field "revision" or "changes[i]", without any effect.
func (c *Catalog) Apply(rev uint64, changes []instances.Change) error {
	const op = "catalog.Apply"
	for i, ch := range changes {
		if err := validate(ch); err != nil {
			return fault.Wrap(op, fault.In("changes", fault.In(fmt.Sprintf("[%d]", i), err)))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.rev.Load(); rev <= known {
		return fault.Wrap(op, fault.Invalidf("revision", rev, "is not above %d", known))
	}
	for _, ch := range lastOfEach(changes) {
		c.stage(rev, ch)
	}
	c.publish(rev)
	return nil
}

// Reset replaces all instances at a revision; earlier changes may be missing.
// Watchers receive the differences. A revision up to the known one starts a new
// numbering, except for the known one without differences. Errors: Invalid,
// field "instances[i]" for a nil, incomplete or repeated instance, without any
// effect.
func (c *Catalog) Reset(rev uint64, all []*instance.Instance) error {
	next := make(map[instance.Key]*instance.Instance, len(all))
	for n, i := range all {
		err := complete(i)
		if err == nil && next[i.Key] != nil {
			err = fault.Invalidf("", i.Key.String(), "appears twice")
		}
		if err != nil {
			return fault.Wrap("catalog.Reset", fault.In("instances", fault.In(fmt.Sprintf("[%d]", n), err)))
		}
		next[i.Key] = i
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	rev = max(rev, 1)
	known := c.rev.Load()
	changes := c.differences(next)
	switch {
	case rev > known:
		h := *c.floor.Load()
		h.floor, h.from, h.to = max(h.floor, h.to), known, rev
		c.floor.Store(&h)
		for _, ch := range changes {
			c.stage(rev, ch)
		}
		c.publish(rev)
	case rev < known || len(changes) > 0:
		for _, ch := range changes {
			var before *instance.Instance
			if s := c.streams.get(ch.Key.Name()); s != nil {
				before = s.byID[ch.Key.ID]
			}
			c.note(before, ch.Instance)
		}
		c.restart(rev, next)
	}
	return nil
}

// Freeze marks answers as stale since now, with a reason for people. In a
// frozen catalog it only changes the reason.
func (c *Catalog) Freeze(reason string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.link.Load()
	if old.stale {
		now = old.since
	}
	c.turn(linkState{stale: true, reason: reason, since: now})
}

// Thaw marks answers as current.
func (c *Catalog) Thaw() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn(linkState{})
}

func (c *Catalog) turn(next linkState) {
	if *c.link.Load() == next {
		return
	}
	c.link.Store(&next)
	c.linkChanged.Wake()
}

func validate(ch instances.Change) error {
	if ch.Instance == nil {
		return ch.Key.Validate()
	}
	if ch.Key != ch.Instance.Key {
		return fault.Invalidf("key", ch.Key.String(), "is not the instance's, %s", ch.Instance.Key)
	}
	return complete(ch.Instance)
}

func complete(i *instance.Instance) error {
	if i == nil {
		return fault.Invalidf("", nil, "is missing")
	}
	return i.Key.Validate()
}

// lastOfEach keeps the last change of each key.
func lastOfEach(changes []instances.Change) []instances.Change {
	if len(changes) < 2 {
		return changes
	}
	last := make(map[instance.Key]int, len(changes))
	for i, ch := range changes {
		last[ch.Key] = i
	}
	if len(last) == len(changes) {
		return changes
	}
	var kept []instances.Change
	for i, ch := range changes {
		if last[ch.Key] == i {
			kept = append(kept, ch)
		}
	}
	return kept
}

// differences returns the changes from the present instances to next, by key.
func (c *Catalog) differences(next map[instance.Key]*instance.Instance) []instances.Change {
	var changes []instances.Change
	for _, s := range c.all {
		for _, i := range s.byID {
			if next[i.Key] == nil {
				changes = append(changes, instances.Change{Key: i.Key})
			}
		}
	}
	for key, i := range next {
		if s := c.streams.get(key.Name()); s == nil || !s.byID[key.ID].Same(i) {
			changes = append(changes, instances.Change{Key: key, Instance: i})
		}
	}
	slices.SortFunc(changes, func(a, b instances.Change) int { return a.Key.Compare(b.Key) })
	return changes
}

// open returns a stream and creates it if necessary.
func (c *Catalog) open(n instance.Name) *stream {
	s := c.streams.get(n)
	if s == nil {
		s = newStream(n, c.forgotten.Load())
		s.place = len(c.all)
		c.all = append(c.all, s)
		c.streams.put(s)
	}
	return s
}

// stage adds a change to its service and its namespace.
func (c *Catalog) stage(rev uint64, ch instances.Change) {
	service := c.streams.get(ch.Key.Name())
	var before *instance.Instance
	if service != nil {
		before = service.byID[ch.Key.ID]
	}
	if before.Same(ch.Instance) {
		return
	}
	c.note(before, ch.Instance)
	c.leases.replace(before, ch.Instance)
	service, space := c.open(ch.Key.Name()), c.open(instance.Name{Namespace: ch.Key.Namespace})
	e := entry{rev: rev, before: before, after: ch.Instance}
	grown := 0
	switch {
	case ch.Instance == nil:
		e.after, e.gone = tombstone(before, rev), true
		delete(service.byID, ch.Key.ID)
		grown = -1
	default:
		service.byID[ch.Key.ID] = ch.Instance
		if before == nil {
			grown = 1
		}
	}
	for _, s := range []*stream{service, space} {
		if len(s.staged) == 0 {
			c.touched = append(c.touched, s)
		}
		s.staged = append(s.staged, e)
		s.size += grown
	}
}

func tombstone(i *instance.Instance, rev uint64) *instance.Instance {
	gone := *i
	gone.Status, gone.Revision = instance.StatusDown, rev
	return &gone
}

// publish shows the staged changes, and wakes waiters as soon as all of them
// are readable.
func (c *Catalog) publish(rev uint64) {
	made := 0
	for _, s := range c.touched {
		made += len(s.staged)
		s.publish(c.cfg.Log)
	}
	c.rev.Store(rev)
	c.moved.Wake()
	for _, s := range c.touched {
		s.changed.Wake()
	}
	clear(c.touched)
	c.touched = c.touched[:0]
	c.sweep(rev, made)
}

// sweep forgets old changes in small steps: it visits all streams once per
// quarter of the history. It drops changes from before the previous round, and
// empty streams with them, so that a change lives for at most three rounds.
func (c *Catalog) sweep(rev uint64, changes int) {
	round := c.cfg.History / 4
	c.credit += changes * len(c.all)
	for ; c.credit >= round && len(c.all) > 0; c.credit -= round {
		if c.hand >= len(c.all) {
			c.hand, c.mark, c.began = 0, c.began, rev
		}
		s := c.all[c.hand]
		if st := s.state.Load(); c.mark >= st.floor {
			s.truncate(int(st.after(c.mark) - st.first))
		}
		c.hand++
		c.drop(s)
	}
}

// drop forgets an idle stream. Streams not visited by the sweep stay behind its
// position.
func (c *Catalog) drop(s *stream) {
	if !s.idle() {
		return
	}
	c.forgotten.Store(max(c.forgotten.Load(), s.state.Load().floor))
	c.streams.remove(s.name)
	hole, last := s.place, len(c.all)-1
	if hole < c.hand {
		c.hand--
		c.move(c.hand, hole)
		hole = c.hand
	}
	if hole != last {
		c.move(last, hole)
	}
	c.all[last] = nil
	c.all = c.all[:last]
}

func (c *Catalog) move(from, to int) {
	c.all[to] = c.all[from]
	c.all[to].place = to
}

// restart starts a new numbering.
func (c *Catalog) restart(rev uint64, next map[instance.Key]*instance.Instance) {
	h := logFloor{floor: rev, era: c.floor.Load().era + 1}
	c.floor.Store(&logFloor{era: h.era, busy: true})
	c.rev.Store(rev)
	c.forgotten.Store(rev)
	c.credit, c.hand, c.mark, c.began = 0, 0, rev, rev
	c.leases.reset(next)
	lists := make(map[instance.Name][]*instance.Instance)
	for _, s := range c.all {
		clear(s.byID)
		lists[s.name] = nil
	}
	for key, i := range next {
		s, space := c.open(key.Name()), instance.Name{Namespace: key.Namespace}
		c.open(space)
		s.byID[key.ID] = i
		lists[s.name] = append(lists[s.name], i)
		lists[space] = append(lists[space], i)
	}
	for name, list := range lists {
		slices.SortFunc(list, instance.Matcher{}.Compare)
		c.streams.get(name).restart(rev, list)
	}
	c.floor.Store(&h)
	c.moved.Wake()
	for _, s := range slices.Clone(c.all) {
		s.changed.Wake()
		c.drop(s)
	}
}
