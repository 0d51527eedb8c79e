package machine

import (
	"cmp"
	"slices"
	"strings"

	"github.com/tidwall/btree"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Keyspace is a read view of the keys and their recent history. The Keyspace inside a Machine moves
// with each Apply; the result of View stays fixed and is safe for concurrent use.
//
// Versions are immutable and the tree is copied on write, so a view is cheap.
type Keyspace struct {
	revision  coord.Revision
	compacted coord.Revision // events up to this revision are gone
	hidden    []hidden       // replaced, never changed in place
	tree      btree.Map[string, *coord.KeyValue]
	bytes     int64 // sum of the sizes in the tree
	past      history
}

func (s *Keyspace) clone() Keyspace {
	return Keyspace{
		revision: s.revision, compacted: s.compacted, hidden: s.hidden, bytes: s.bytes,
		tree: *s.tree.Copy(), past: s.past.clone(),
	}
}

// Revision gives the present revision.
func (s *Keyspace) Revision() coord.Revision { return s.revision }

// Compacted returns the latest revision without events: the earliest for Range. Watches continue
// from a later one.
func (s *Keyspace) Compacted() coord.Revision { return s.compacted }

// Len gives the number of keys.
func (s *Keyspace) Len() int { return s.tree.Len() }

// Get gives a key's present version.
func (s *Keyspace) Get(key string) (*coord.KeyValue, bool) { return s.tree.Get(key) }

// Range reads the keys of a span at a revision. The cost of an earlier revision grows with the events
// since.
//
// Errors: Invalid for a future revision, an unknown order, or a start that is no key at the revision; NotFound, wrapping
// *Compacted, for a compacted revision.
func (s *Keyspace) Range(q Query) (Page, error) {
	const op = "coord.Range"
	at := q.At
	at = cmp.Or(at, s.revision)
	if err := s.readable("at", q.Span, at); err != nil {
		return Page{}, fault.Wrap(op, err)
	}
	p := pager{Page: Page{Revision: at}, q: &q}
	switch {
	case q.CountOnly:
		s.ascend(q.Span, at, func(*coord.KeyValue) bool { p.Count++; return true })
	case q.Scans():
		found, err := s.sorted(&q, at)
		if err != nil {
			return Page{}, fault.Wrap(op, err)
		}
		for i := 0; i < len(found) && p.add(found[i]); i++ {
		}
	default:
		q.Span.From = max(q.Span.From, q.From)
		s.ascend(q.Span, at, p.add)
	}
	return p.Page, nil
}

// ascend visits the versions of a span at a revision after the compacted ones.
func (s *Keyspace) ascend(span coord.Span, at coord.Revision, visit func(*coord.KeyValue) bool) {
	if span.Empty() {
		return
	}
	before := s.past.before(span, at+1) // replace the present versions
	next := 0
	more := true
	s.tree.Ascend(span.From, func(key string, kv *coord.KeyValue) bool {
		if span.To != "" && key >= span.To {
			return false
		}
		for ; more && next < len(before) && before[next].Key < key; next++ {
			more = before[next].Prev == nil || visit(before[next].Prev)
		}
		if more && next < len(before) && before[next].Key == key {
			kv = before[next].Prev
			next++
		}
		more = more && (kv == nil || visit(kv))
		return more
	})
	for ; more && next < len(before); next++ {
		more = before[next].Prev == nil || visit(before[next].Prev)
	}
}

// before returns, for each key of the span with a change at from or later, its first such event, by key.
func (h *history) before(span coord.Span, from coord.Revision) []coord.Event {
	var first []coord.Event
	for i := h.search(from); i < h.n; i++ {
		if e := h.at(i); span.Contains(e.Key) {
			first = append(first, *e)
		}
	}
	slices.SortStableFunc(first, func(a, b coord.Event) int { return strings.Compare(a.Key, b.Key) })
	return slices.CompactFunc(first, func(a, b coord.Event) bool { return a.Key == b.Key })
}

// put makes kv the present version of its key. The caller has set Key, Value, Lease, Writer and LockClaim, and has checked
// the lease. A claim that displaces a plain key makes a new key: its create revision is a fencing token.
func (m *Machine) put(kv *coord.KeyValue) {
	prev, had := m.tree.Set(kv.Key, kv)
	kv.ModRevision = m.revision + 1
	kv.CreateRevision, kv.Version = kv.ModRevision, 1
	if had {
		if kv.LockClaim == nil || prev.LockClaim != nil {
			kv.CreateRevision, kv.Version, kv.Since = prev.CreateRevision, prev.Version+1, prev.Since
		}
		unbind(m, prev)
	}
	bind(m, kv)
	m.bytes += kvSize(kv) - kvSize(prev)
	m.effects.Events = append(m.effects.Events, coord.Event{Revision: kv.ModRevision, Key: kv.Key, KV: kv, Prev: prev})
}

// remove deletes a key. The queue of a lock's key is the caller's to mend.
func (m *Machine) remove(key string) {
	prev, had := m.tree.Delete(key)
	if !had {
		return
	}
	unbind(m, prev)
	m.bytes -= kvSize(prev)
	m.effects.Events = append(m.effects.Events, coord.Event{Revision: m.revision + 1, Key: key, Prev: prev})
}

// publish turns the events of a command into a revision.
func (m *Machine) publish() {
	events := m.effects.Events
	if len(events) == 0 {
		return
	}
	m.revision++
	if len(events) > 1 {
		slices.SortFunc(events, func(a, b coord.Event) int { return strings.Compare(a.Key, b.Key) })
	}
	for i := range events {
		m.past.push(events[i])
	}
	m.trim(&m.limits)
}

// trim compacts events above the limits on history.
func (s *Keyspace) trim(l *limits) {
	for s.past.n > int(l.HistoryEvents) || uint64(s.past.bytes) > l.HistoryBytes {
		oldest := s.past.at(0).Revision
		if oldest == s.revision {
			return
		}
		s.compact(oldest)
	}
}

// compact forgets the events up to revision.
func (s *Keyspace) compact(revision coord.Revision) {
	s.past.drop(revision)
	s.compacted = revision
}
