package machine

import (
	"encoding/binary"
	"slices"

	"github.com/tidwall/btree"

	"github.com/blackhole/blackhole/pkg/coord"
)

// MaxRemovalRecords bounds how many departures of entries are remembered, those of all owners together; the oldest are
// forgotten first. A departure is that an owner took an entry out of the directory, by name or by replacing the
// span around it, as against its lease ending. What another owner registered before that does not come back, though
// that owner, which may have been away, does. It is remembered until the key is put again. The bound is part
// of the format of the log; at it they take a few megabytes.
const MaxRemovalRecords = 10_000

// removal is when an entry was taken out, and by which owner.
type removal struct {
	at    coord.Revision
	owner string
}

// removals are those remembered.
type removals struct {
	keys  btree.Map[string, removal]
	order btree.Set[string] // derived: the oldest first
}

// ordered is the place of a departure in the order.
func (d removal) ordered(key string) string {
	var room [128]byte
	return string(append(binary.BigEndian.AppendUint64(room[:0], uint64(d.at)), key...))
}

// add remembers a departure. There is none of the key yet: it was put since the last.
func (s *removals) add(key string, d removal) {
	s.keys.Set(key, d)
	s.order.Insert(d.ordered(key))
	if s.keys.Len() > MaxRemovalRecords {
		oldest, _ := s.order.PopMin()
		s.keys.Delete(oldest[8:])
	}
}

// forget forgets the departure of a key that is put.
func (s *removals) forget(key string) {
	if d, ok := s.keys.Delete(key); ok {
		s.order.Delete(d.ordered(key))
	}
}

// Removed gives the revision at which the last owner of an entry took it out of the directory, and that owner; 0 when that
// is forgotten, or the key was put since.
func (m *Machine) Removed(key string) (at coord.Revision, owner string) {
	d, _ := m.removals.keys.Get(key)
	return d.at, d.owner
}

// Since gives the revision at which the registration that an entry stands for was first committed; 0 when that is not known, and
// for any other key.
func (s *Keyspace) Since(key string) coord.Revision {
	kv, ok := s.tree.Get(key)
	if !ok {
		return 0
	}
	return kv.Since
}

// clampSince is what the group knows of a Since.
func (s *Keyspace) clampSince(since coord.Revision) coord.Revision {
	if since > s.revision {
		return 0
	}
	return since
}

// supersede reports whether there is a later word than a put on its key, which is another owner's if anybody's: kv, nil for none.
func (s *removals) supersede(since coord.Revision, e *coord.Entry, kv *coord.KeyValue, owner string) bool {
	switch {
	case e.Adopt:
		return kv != nil && kv.LockClaim != nil
	case kv != nil:
		return since <= kv.Since
	}
	d, ok := s.keys.Get(e.Key)
	return ok && d.owner != owner && since < d.at
}

// stamp gives the entries that a batch has put their Since, and what the result has to say of it. With Adopt it is
// the revision that the batch makes, or the present one if it makes none, which is as good: were the key another
// owner's at that revision, the batch had moved it and so made one.
func (o *registerBatchOp) stamp(m *Machine) []coord.Revision {
	at, told := m.revision, false
	if len(m.effects.Events) > 0 {
		at++
	}
	m.since = m.since[:0]
	for i := range o.Puts {
		e := &o.Puts[i]
		kv, ok := m.tree.Get(e.Key)
		if !ok || kv.Lease != o.Lease { // it was passed over
			m.since = append(m.since, 0)
			continue
		}
		expected, since := e.Since, m.clampSince(e.Since)
		if e.Adopt {
			expected, since = at, at
		}
		since = max(since, kv.Since)
		m.since = append(m.since, since)
		if told = told || since != expected; since == kv.Since {
			continue
		}
		if kv.ModRevision <= m.revision { // others share this version
			shared := *kv
			kv = &shared
			m.tree.Set(e.Key, kv)
		}
		kv.Since = since
	}
	if !told {
		return nil
	}
	return slices.Clone(m.since)
}
