package machine

import (
	"slices"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// maxHidden bounds the ranges with hidden history. MAGIC: a front has one range, and every read looks at all.
const maxHidden = 16

// hiddenTrail is how many revisions of hidden history are kept, so that watches which lag behind a compaction go on.
// MAGIC: etcd lets a watch lag by 128 answers.
const hiddenTrail = 1024

// hidden is a range of keys with hidden history: a read within the range fails before a revision. Watches go on: who begins
// one first checks that its start can be read. Events that are older by hiddenTrail are gone, also for reads and watches of
// more keys.
type hidden struct {
	span   coord.Span
	before coord.Revision // the earliest that is told
}

// horizon returns the earliest revision of the keys of a span that may be told.
func (s *Keyspace) horizon(span coord.Span) (earliest coord.Revision) {
	for i := range s.hidden {
		if s.hidden[i].span.Covers(span) {
			earliest = max(earliest, s.hidden[i].before)
		}
	}
	return earliest
}

// kept returns the earliest revision from which all events of a span are there.
func (s *Keyspace) kept(span coord.Span) (earliest coord.Revision) {
	for i := range s.hidden {
		if s.hidden[i].span.Meets(span) {
			earliest = max(earliest, s.hidden[i].before-hiddenTrail)
		}
	}
	return earliest
}

// readable checks a revision at which a span is read.
func (s *Keyspace) readable(field string, span coord.Span, at coord.Revision) error {
	if at < 0 || at > s.revision {
		return fault.Invalidf(field, at, "the present revision is %d", s.revision)
	}
	if earliest := max(s.compacted, s.horizon(span), s.kept(span)); at < earliest {
		return fault.In(field, s.lost(earliest))
	}
	return nil
}

func (s *Keyspace) lost(revision coord.Revision) error {
	return fault.As("", fault.NotFound, &coord.Compacted{Revision: revision, Current: s.revision})
}

// hide checks a step that hides history, and notes it for the end of the transaction.
func (t *txn) hide(r *apiv1.TxnHide) error {
	span, before := spanOf(r), coord.Revision(r.GetRevision())
	if before > t.m.revision {
		return fault.Invalidf("revision", before, "the present revision is %d", t.m.revision)
	}
	if earliest := max(t.m.compacted, t.m.horizon(span)); before <= earliest {
		return fault.In("revision", t.m.lost(earliest))
	}
	if len(t.m.hidden)+len(t.hides) >= maxHidden && t.m.hiddenAt(span) < 0 {
		return limitReached("range_end", "too many ranges with hidden history", maxHidden)
	}
	t.hides = append(t.hides, hidden{span, before})
	return nil
}

// conceal hides history before a revision, and frees what is older by hiddenTrail. Views keep what they had.
func (m *Machine) conceal(h hidden) {
	m.hidden = slices.Clone(m.hidden)
	if at := m.hiddenAt(h.span); at >= 0 {
		m.hidden[at].before = max(m.hidden[at].before, h.before)
	} else {
		m.hidden = append(m.hidden, h)
	}
	m.past.free(h.span, h.before-hiddenTrail)
}

func (s *Keyspace) hiddenAt(span coord.Span) int {
	return slices.IndexFunc(s.hidden, func(h hidden) bool { return h.span == span })
}
