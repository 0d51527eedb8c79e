package registry

import (
	"time"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/instance"
)

// find returns the entry named by ref, or nil. The caller holds mu.
func (r *Registry) find(ref instances.Ref) *entry {
	if ref.Lease != "" {
		return r.leases[ref.Lease]
	}
	return r.entries[ref.Key.WithDefaults()]
}

// advance sets the state of e and a new visible status. The caller holds mu.
func (r *Registry) advance(e *entry, next state, reason instances.Reason, now time.Time) {
	e.state = next
	if next.status(now) != e.Status {
		r.refresh(e, e.Instance, reason, now)
		return
	}
	r.schedule(e, now)
}

// refresh replaces the visible instance of e by base with the status of e's state,
// unless they are equal. The caller holds mu.
func (r *Registry) refresh(e *entry, base *instance.Instance, reason instances.Reason, now time.Time) {
	if i := r.revised(e, base, reason, now); i != nil {
		e.Instance = i
	}
	r.schedule(e, now)
}

// revised returns the new visible instance and records its change; nil without a
// difference.
func (r *Registry) revised(e *entry, base *instance.Instance, reason instances.Reason, now time.Time) *instance.Instance {
	i := *base
	i.Status = e.status(now)
	if e.Instance.Same(&i) {
		return nil
	}
	i.Revision = r.nextRevision()
	r.changes = append(r.changes, instances.Change{Key: i.Key, Instance: &i, Revision: i.Revision, Reason: reason})
	return &i
}

// schedule moves the next review of e forward to its due time if necessary. The
// caller holds mu.
func (r *Registry) schedule(e *entry, now time.Time) {
	if due := e.due(now); due.Before(e.wake) {
		e.wake = due
		r.queue.Fix(e)
	}
}

// insert adds e. The caller holds writing and mu, or is the only user of r.
func (r *Registry) insert(e *entry, now time.Time) {
	r.entries[e.Key], r.leases[e.Lease] = e, e
	r.owned[e.client]++
	e.wake = e.due(now)
	r.queue.Push(e)
}

// drop removes e. The caller holds writing and mu.
func (r *Registry) drop(e *entry, reason instances.Reason, now time.Time) {
	delete(r.entries, e.Key)
	delete(r.leases, e.Lease)
	if r.owned[e.client]--; r.owned[e.client] == 0 {
		delete(r.owned, e.client)
	}
	r.queue.Remove(e)
	r.tombstones.add(e.Instance, withoutMonotonic(now))
	r.changes = append(r.changes, instances.Change{Key: e.Key, Last: e.Instance, Revision: r.nextRevision(), Reason: reason})
}

// nextRevision returns the next revision. The caller holds mu, or is the only
// user of r.
func (r *Registry) nextRevision() uint64 { return r.revision.Add(1) }

// unlock delivers the changes of this holder of mu and unlocks mu.
func (r *Registry) unlock() {
	if len(r.changes) > 0 {
		changes := r.changes
		r.changes = nil
		r.changed(changes)
	}
	r.mu.Unlock()
}
