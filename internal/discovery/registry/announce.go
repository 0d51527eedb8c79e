package registry

import (
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// Due gives up to limit versions that must be announced now, the longest due first:
//
//   - those that Open found, and tombstones for the places that services have left;
//   - those that were handed out 30 s ago, by whichever call, and whose outcome is unknown;
//   - those whose announcement fell short: 1 s later, then 2 s, 4 s, up to 5 min (all ±10 %);
//   - a live service whose version is as old as Config.Refresh (±10 %), or half of its life:
//     signed anew, durable, with a higher sequence and the same created_at;
//   - tombstones again after Config.Refresh, until they lapse and are forgotten.
//
// What Due, Register, Update and Withdraw give is handed out: Due does not give it again
// before its outcome is told with Announced, or 30 s have passed. So a loop that announces
// what is due can run beside callers that announce what they have just made. When signing
// or the disk fails, which is logged, the last version goes on being announced while it is
// valid.
func (r *Registry) Due(now time.Time, limit int) []*records.Record {
	now = wall(now)
	r.writing.Lock()
	defer r.writing.Unlock()
	if r.closed {
		return nil
	}
	r.mu.Lock()
	tasks := r.scheduler.take(now, limit)
	r.mu.Unlock()

	renewed := r.advance(tasks, now)
	due := make([]*records.Record, 0, len(tasks))
	for _, t := range tasks {
		s := r.services[t.id]
		record := s.version(t.sequence)
		if renewed[t.version] {
			record = s.current
		}
		if record != nil && !record.Expired(now) {
			due = append(due, record)
		}
	}
	return due
}

// advance replaces stale versions and forgets lapsed ones, all in one durable step. It
// gives those that were replaced.
func (r *Registry) advance(tasks []task, now time.Time) map[version]bool {
	c, renewed := r.change(), make(map[version]bool)
	for _, t := range tasks {
		switch {
		case t.lapsed(now):
			c.set(t.id, c.at(t.id).without(t.sequence))
		case t.stale(now):
			s, err := c.renew(t.id, now)
			if err != nil {
				r.deferRenewal(t.version, now, err)
				continue
			}
			c.set(t.id, s)
			renewed[t.version] = true
		}
	}
	if err := c.commit(now); err != nil {
		for v := range renewed {
			r.deferRenewal(v, now, err)
		}
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range tasks {
		if renewed[t.version] {
			r.scheduler.handOut(versionOf(r.services[t.id].current), t.failures, now)
		}
	}
	return renewed
}

// renew signs the offer of a live service anew.
func (c *change) renew(id string, now time.Time) (*service, error) {
	last := c.at(id)
	o, err := last.decodeOffer()
	if err != nil {
		return nil, fault.As("", fault.Internal, err)
	}
	return c.of.signer.nextVersion(last, c.of.store.Floor(), o, now)
}

func (r *Registry) deferRenewal(v version, now time.Time, err error) {
	r.log.Warn("a service could not be refreshed", "id", v.id, "err", err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scheduler.deferRenewal(v, now)
}

// Announced tells the outcome of announcing a version that Due, Register, Update or
// Withdraw gave. With On < Of, or On = 0, it is due again soon; otherwise it has time
// until it must be refreshed. Outcomes of versions that were superseded, or of other
// providers, are ignored.
func (r *Registry) Announced(n records.Name, sequence uint64, s records.Stored, now time.Time) {
	if n.Provider != r.self {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scheduler.announced(version{id: n.ID, sequence: sequence}, s.On > 0 && s.On >= s.Of, wall(now))
}

// NextDue is when Due has something to do next; false when there is nothing at all.
func (r *Registry) NextDue() (time.Time, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.scheduler.next()
}
