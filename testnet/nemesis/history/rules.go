package history

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// latest sweeps over operations in call order and returns, for each call, the operation with the
// greatest number among those returned earlier.
type latest struct {
	number  func(Op) int64
	pending []Op // sorted by Return
	next    int
	found   Op
}

func newLatest(ops []Op, number func(Op) int64) *latest {
	l := &latest{number: number, pending: slices.Clone(ops)}
	slices.SortStableFunc(l.pending, func(a, b Op) int { return cmp.Compare(a.Return, b.Return) })
	return l
}

// before returns the operation, or one without a number if none had returned. Calls never
// decrease.
func (l *latest) before(call time.Duration) Op {
	for l.next < len(l.pending) && l.pending[l.next].Return < call {
		if o := l.pending[l.next]; l.number(o) > l.number(l.found) {
			l.found = o
		}
		l.next++
	}
	return l.found
}

func token(o Op) int64 { return o.Token }

func (o Op) writes() bool { return o.Kind == Put || o.Kind == Swap || o.Kind == Guarded }

// fresh checks R2 over all keys at once, by the revisions of answers.
func (c *checker) fresh(v *collector) {
	var ops []Op
	for _, o := range c.Ops {
		if o.Outcome == OK && o.Revision > 0 {
			ops = append(ops, o)
		}
	}
	past := newLatest(ops, func(o Op) int64 { return o.Revision })
	for _, o := range ops {
		v.Checked++
		if p := past.before(o.Call); p.Revision > o.Revision || p.Revision == o.Revision && o.writes() {
			v.violated("an answer is older than one that was given before it was asked for:\n  %v\n  %v", p, o)
		}
	}
}

// tokens checks L1.
func (c *checker) tokens(v *collector) {
	for _, name := range slices.Sorted(maps.Keys(c.claims)) {
		past, owners := newLatest(c.claims[name], token), make(map[int64]Op)
		for _, o := range c.claims[name] {
			v.Checked++
			if p := past.before(o.Call); p.Token >= o.Token {
				v.violated("token %d of %s was granted after %d:\n  %v\n  %v", o.Token, name, p.Token, p, o)
			}
			if p, twice := owners[o.Token]; twice {
				v.violated("token %d of %s was granted twice:\n  %v\n  %v", o.Token, name, p, o)
			}
			owners[o.Token] = o
		}
	}
}

// stale checks L2 from the view of clients: after a grant of a token, no write with a smaller
// token succeeds in the group; after a write with it outside, none succeeds there.
func (c *checker) stale(v *collector) {
	outside := make(map[string][]Op)
	for _, o := range c.Ops {
		if o.Kind == Fenced && o.Outcome == OK {
			outside[o.Lock] = append(outside[o.Lock], o)
		}
	}
	granted, written := make(map[string]*latest), make(map[string]*latest)
	for _, o := range c.Ops {
		if o.Kind != Guarded && o.Kind != Fenced || o.Outcome != OK {
			continue
		}
		v.Checked++
		if granted[o.Lock] == nil {
			granted[o.Lock], written[o.Lock] = newLatest(c.claims[o.Lock], token), newLatest(outside[o.Lock], token)
		}
		p := granted[o.Lock].before(o.Call)
		if o.Kind == Fenced {
			p = written[o.Lock].before(o.Call)
		}
		if p.Token > o.Token {
			v.violated("a write with token %d of %s was accepted after token %d:\n  %v\n  %v", o.Token, o.Lock, p.Token, p, o)
		}
	}
}

// replay checks L2 by the events: each write under a lock belongs to the lock holder at its
// revision.
func (c *checker) replay(v *collector) {
	writer := make(map[string]Op)
	for _, o := range c.Ops {
		if o.Kind == Guarded {
			writer[o.Value] = o
		}
	}
	queues := make(map[string]map[int64]Event)
	for _, e := range c.Events {
		if e.Lock != "" {
			if queues[e.Lock] == nil {
				queues[e.Lock] = make(map[int64]Event)
			}
			if queues[e.Lock][e.Create] = e; e.Deleted {
				delete(queues[e.Lock], e.Create)
			}
			continue
		}
		o, ok := writer[e.Value]
		if !ok || e.Deleted {
			continue
		}
		v.Checked++
		if holding := holders(queues[o.Lock]); !slices.Contains(holding, o.Token) {
			v.violated("a write with token %d of %s took effect at revision %d, when %v held it:\n  %v", o.Token, o.Lock, e.Revision, holding, o)
		}
	}
}

// holders returns the tokens of the longest queue prefix that may hold together.
func holders(queue map[int64]Event) (tokens []int64) {
	var first Event
	for _, t := range slices.Sorted(maps.Keys(queue)) {
		e := queue[t]
		if len(tokens) == 0 {
			first = e
		} else if e.Mode != first.Mode || e.Mode == Exclusive || e.Mode == Permit && len(tokens) >= min(e.Permits, first.Permits) {
			break
		}
		tokens = append(tokens, t)
	}
	return tokens
}

// order checks L7 on exclusive locks: a token is a place in the queue, and a later claim learns
// later about its grant, since the earlier claim had to end first.
func (c *checker) order(v *collector) {
	for _, name := range slices.Sorted(maps.Keys(c.claims)) {
		claims := slices.Clone(c.claims[name])
		if slices.ContainsFunc(claims, func(o Op) bool { return o.Mode != Exclusive }) {
			continue
		}
		slices.SortFunc(claims, func(a, b Op) int { return cmp.Compare(a.Token, b.Token) })
		for i, o := range claims {
			v.Checked++
			if i > 0 && o.Return < claims[i-1].Return {
				v.violated("%s was granted out of turn:\n  %v\n  %v", name, claims[i-1], o)
			}
		}
	}
}

// durable checks D1.
func (c *checker) durable(v *collector) {
	for _, o := range c.Ops {
		switch {
		case o.writes() && o.Outcome != Unknown:
			v.Checked++
			e, done := c.written[o.Value]
			if done != (o.Outcome == OK) {
				v.violated("done %t, which no watch confirms:\n  %v", o.Outcome == OK, o)
			} else if done && (e.Revision != o.Revision || e.Key != o.Object) {
				v.violated("%s has it at revision %d:\n  %v", e.Key, e.Revision, o)
			}
		case o.acquired():
			v.Checked++
			if e, done := c.made[o.metadata()]; !done || e.Create != o.Token || e.Lock != o.Object {
				v.violated("no watch saw the claim, or it has token %d:\n  %v", e.Create, o)
			}
		}
	}
}

// once checks E1: no value is written twice.
func (c *checker) once(v *collector) {
	seen := make(map[string]Event)
	for _, e := range c.Events {
		if e.Lock != "" || e.Deleted {
			continue
		}
		v.Checked++
		if p, twice := seen[e.Value]; twice {
			v.violated("%q was written at revision %d and at %d", e.Value, p.Revision, e.Revision)
		}
		seen[e.Value] = e
	}
}

// Freed returns the time until each claim of a dead client ended: the rest of its time to live
// plus the delay of the group.
func Freed(h History) (all []time.Duration) {
	gone := make(map[claim]time.Duration)
	for _, e := range h.Events {
		if e.Deleted && e.Lock != "" {
			gone[claim{e.Lock, e.Create}] = e.Seen
		}
	}
	for _, o := range h.Ops {
		if at, ok := gone[claim{o.Object, o.Token}]; ok && o.Kind == Abandon && at > o.Call {
			all = append(all, at-o.Call)
		}
	}
	return all
}
