package offers

import (
	"encoding/json"
	"time"

	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/internal/platform/strictjson"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// evidenceName is the name of the evidence in the database. No service has an empty id.
const evidenceName = ""

// Evidence is a version of an own record that this registry did not issue: another machine signs with the same
// key, or the registry is an older copy of itself, from a backup.
type Evidence struct {
	ID       string    `json:"id"`
	Sequence uint64    `json:"sequence"` // the highest seen so far, of any record
	Issued   time.Time `json:"issued"`
	// Later is true for a version from after the start of this peer: an older copy does not explain it.
	Later bool `json:"later,omitempty"`
}

// Foreign reports whether a record has this registry's key, but was not issued by it. An older version than the
// current one counts as own: the registry forgets its former versions. It never waits for the disk.
func (r *Registry) Foreign(v *records.Record) bool {
	if v.Name().Provider != r.self {
		return false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if v.Sequence() <= r.reclaimed {
		return false
	}
	s := r.services[v.Name().ID]
	if s == nil {
		return v.Sequence() > r.store.Floor() // deleted services had lower sequences
	}
	if own := s.version(v.Sequence()); own != nil {
		return own.Digest() != v.Digest()
	}
	return v.Sequence() > s.current.Sequence()
}

// Suspend ends all announcements by Due because of a foreign record, also after a restart, until Reclaim. Before,
// a renewal could replace a newer version of another machine or bring a withdrawn service back. It reports whether
// this is the first evidence. An error concerns the disk; this process is suspended all the same.
func (r *Registry) Suspend(v *records.Record, now time.Time) (first bool, err error) {
	if e, ok := r.Suspended(); ok && v.Sequence() <= e.Sequence {
		return false, nil
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	last, known := r.Suspended()
	if known && v.Sequence() <= last.Sequence {
		return false, nil
	}
	e := Evidence{ID: v.Name().ID, Sequence: v.Sequence(), Issued: v.Issued()}
	e.Later = last.Later || v.Issued().After(r.opened.Add(records.ClockSkew))
	r.mu.Lock()
	r.evidence = &e
	r.mu.Unlock()
	if known && e.Later == last.Later || r.closed { // the disk has enough: Reclaim signs with the present time
		return !known, nil
	}
	value, err := json.Marshal(evidence{Suspended: &e})
	if err != nil {
		return !known, fault.As("registry.Suspend", fault.Internal, err)
	}
	return !known, fault.Wrap("registry.Suspend", r.store.Commit([]store.Edit{{Name: evidenceName, Value: value}}, 0))
}

// Suspended returns the evidence after which Due announces nothing.
func (r *Registry) Suspended() (Evidence, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.evidence == nil {
		return Evidence{}, false
	}
	return *r.evidence, true
}

func (r *Registry) loadEvidence(value []byte) error {
	var e evidence
	err := strictjson.Decode(value, maxValue, &e)
	r.evidence, r.reclaimed = e.Suspended, e.Reclaimed
	return err
}

// evidence is the value in the database: one of both.
type evidence struct {
	Suspended *Evidence `json:"suspended,omitempty"`
	Reclaimed uint64    `json:"reclaimed,omitempty"` // versions up to here, of whomever, are superseded
}

// Reclaim ends a suspension: the services in c.Dir are the valid ones of their key. The next start of the peer signs
// them again with sequences above those of all foreign versions until now, which count as superseded. It returns the
// number of live services. The peer of c.Dir must be stopped, and no other machine may use the key. Errors: as
// Open, and Conflict without a suspension.
func Reclaim(c Config, now time.Time) (services int, err error) {
	const op = "registry.Reclaim"
	c.Network = "" // it signs nothing
	r, err := openAny(c, now)
	if err != nil {
		return 0, fault.Wrap(op, err)
	}
	err = r.reclaim(wall(now))
	if closing := r.Close(); err == nil {
		err = closing
	}
	return r.Len(), fault.Wrap(op, err)
}

func (r *Registry) reclaim(now time.Time) error {
	r.writing.Lock()
	defer r.writing.Unlock()
	e, ok := r.Suspended()
	if !ok {
		return fault.New("", fault.Conflict, "the offers are not suspended: there is nothing to reclaim")
	}
	floor := max(e.Sequence, uint64(max(now.UnixMilli(), 0)))
	value, err := json.Marshal(evidence{Reclaimed: floor})
	if err != nil {
		return fault.As("", fault.Internal, err)
	}
	return r.store.Commit([]store.Edit{{Name: evidenceName, Value: value}}, floor)
}
