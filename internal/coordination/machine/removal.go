package machine

import (
	"encoding/binary"

	"github.com/tidwall/btree"

	"github.com/blackhole/blackhole/internal/contract/coord"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// MaxRemovalRecords bounds the removal records of all owners; the oldest go first. A removal record
// remembers that an owner removed an entry, by name or by replacing a span, not by the end of its
// lease. It blocks earlier registrations of other owners. The same owner may return after an
// absence. A put of the key deletes the record. The bound is part of the log's format; the records
// need at most a few megabytes.
const MaxRemovalRecords = 10_000

// removal records the revision and owner of a removal.
type removal struct {
	at    coord.Revision
	owner string
}

// removals are the removal records.
type removals struct {
	keys  btree.Map[string, removal]
	order btree.Set[string] // derived: the oldest first
}

// ordered is the place of a departure in the order.
func (d removal) ordered(key string) string {
	var room [128]byte
	return string(append(binary.BigEndian.AppendUint64(room[:0], uint64(d.at)), key...))
}

// add records a removal. The key has no record: a put came before.
func (s *removals) add(key string, d removal) {
	s.keys.Set(key, d)
	s.order.Insert(d.ordered(key))
	if s.keys.Len() > MaxRemovalRecords {
		oldest, _ := s.order.PopMin()
		s.keys.Delete(oldest[8:])
	}
}

// forget deletes the record of a key, after a put.
func (s *removals) forget(key string) {
	if d, ok := s.keys.Delete(key); ok {
		s.order.Delete(d.ordered(key))
	}
}

// Removed returns the revision and owner of the last removal of an entry; 0 without a record.
func (m *Machine) Removed(key string) (at coord.Revision, owner string) {
	d, _ := m.removals.keys.Get(key)
	return d.at, d.owner
}

// Since returns the revision that first committed the registration of an entry; 0 if unknown and for
// other keys.
func (s *Keyspace) Since(key string) coord.Revision {
	kv, ok := s.tree.Get(key)
	if !ok {
		return 0
	}
	return kv.Since
}

// clampSince returns a Since within the group's history, or 0.
func (s *Keyspace) clampSince(since coord.Revision) coord.Revision {
	if since > s.revision {
		return 0
	}
	return since
}

// supersede reports whether another owner made a later decision about a put's key, or has the entry of another
// caller. kv is the present version, or nil. An entry belongs to the owner of its lease. An application may register with
// several owners in turn, and owners may leave and return in any order: the latest registration counts. A put with adopt is a
// new registration. One without adopt repeats a registration first committed at revision since.
func (s *removals) supersede(since coord.Revision, key string, e *apiv1.DirectoryEntry, kv *coord.KeyValue, owner string) bool {
	switch {
	case kv != nil && kv.Principal != "" && kv.Principal != e.GetPrincipal():
		return true // whose lease lasts: only the same caller moves an instance away from there
	case e.GetAdopt():
		return kv != nil && kv.LockClaim != nil
	case kv != nil:
		return since <= kv.Since
	}
	d, ok := s.keys.Get(key)
	return ok && d.owner != owner && since < d.at
}

// stamp sets the Since of the entries put by a batch, and returns them; 0 for a skipped put. With Adopt it is the revision of
// the batch. A batch without changes makes no revision and uses the present one: had the key belonged to another owner, the
// batch would have moved it.
func (b *batch) stamp(m *Machine) []int64 {
	at := m.revision
	if len(m.effects.Events) > 0 {
		at++
	}
	told := make([]int64, len(b.puts))
	for i, e := range b.GetPuts() {
		kv, ok := m.tree.Get(b.puts[i])
		if !ok || kv.Lease != b.lease { // a skipped put
			continue
		}
		since := m.clampSince(coord.Revision(e.GetSince()))
		if e.GetAdopt() {
			since = at
		}
		since = max(since, kv.Since)
		told[i] = int64(since)
		if since == kv.Since {
			continue
		}
		if kv.ModRevision <= m.revision { // shared version: copy it
			shared := *kv
			kv = &shared
			m.tree.Set(kv.Key, kv)
		}
		kv.Since = since
	}
	return told
}
