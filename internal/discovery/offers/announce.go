package offers

import (
	"slices"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// Due returns up to limit versions to announce now, the longest due first:
//
//   - versions found by Open, and tombstones for places that services have left;
//   - versions that were handed out 30 s ago and whose outcome is unknown;
//   - versions with an incomplete announcement: after 1 s, 2 s, 4 s, up to 5 min, each ±10 %;
//   - live services after Config.Refresh (±10 %) or half of the version's life: signed again, durable, with a
//     higher sequence and the same created_at;
//   - tombstones after each Config.Refresh, until their expiry.
//
// After Suspend and after Stop, Due returns nothing.
//
// Due, Register, Update and Withdraw hand their versions out: until Announced reports the outcome, or for 30 s,
// Due does not return them. A refresh loop can therefore run beside callers that announce their own changes.
// After a failure of the disk or of a signature, which is logged, Due returns the last version while it is
// valid.
func (r *Registry) Due(now time.Time, limit int) []*records.Record {
	now = wall(now)
	r.writing.Lock()
	defer r.writing.Unlock()
	if _, suspended := r.Suspended(); suspended || r.closed || r.stopped {
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

// Stale reports whether Due would replace a version now.
func (r *Registry) Stale(now time.Time) bool {
	now = wall(now)
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.evidence == nil && slices.ContainsFunc(r.scheduler.queue.Items(), func(t *task) bool {
		return !t.due.After(now) && t.stale(now)
	})
}

// advance replaces stale versions and deletes lapsed ones in one durable step. It returns the replaced
// versions.
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

// renew signs the offer of a live service again.
func (c *change) renew(id string, now time.Time) (*service, error) {
	last := c.at(id)
	o, err := last.decodeOffer()
	if err != nil {
		return nil, fault.As("", fault.Internal, err)
	}
	return c.of.signer.nextVersion(last, c.of.floor(), o, last.pause(now), now)
}

func (r *Registry) deferRenewal(v version, now time.Time, err error) {
	r.log.Warn("the record of a service could not be renewed; the last version stays announced while it is valid", "id", v.id, "err", err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scheduler.deferRenewal(v, now)
}

// Announced reports the outcome of announcing a version from Due, Register, Update or Withdraw. After an
// incomplete announcement (On < Of, or On = 0) the version is due again soon, otherwise at its refresh.
// Announced ignores superseded versions and other providers.
func (r *Registry) Announced(n records.Name, sequence uint64, s records.Stored, now time.Time) {
	if n.Provider != r.self {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	v := version{id: n.ID, sequence: sequence}
	r.scheduler.announced(v, s.On > 0 && s.On >= s.Of, wall(now))
	r.scheduler.report(v, s.On)
}

// Unstored returns the ids of the live services whose newest version no keeper holds, in order. A version without
// an outcome so far is not among them.
func (r *Registry) Unstored() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.scheduler.unstored()
}

// Announcing counts the newest versions of services, withdrawals included, that some keeper has not taken. Another
// peer's complete answer may lack them.
func (r *Registry) Announcing() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.scheduler.announcing()
}

// NextDue is the time of Due's next result, false for an empty or suspended registry.
func (r *Registry) NextDue() (time.Time, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.evidence != nil {
		return time.Time{}, false
	}
	return r.scheduler.next()
}
