package registry

import (
	"time"

	"github.com/blackhole/blackhole/pkg/instance"
)

// find gives the entry that ref names, or nil. The caller holds mu.
func (r *Registry) find(ref instance.Ref) *entry {
	if ref.Lease != "" {
		return r.leases[ref.Lease]
	}
	return r.entries[ref.Key.WithDefaults()]
}

// advance makes next the state of e and shows it where its status differs. The caller holds mu.
func (r *Registry) advance(e *entry, next state, reason string, now time.Time) {
	e.state = next
	if next.status(now) != e.Status {
		r.show(e, e.Instance, reason, now)
		return
	}
	r.hasten(e, now)
}

// show makes base, with the status that follows from e's state, what is seen of e, unless
// it is that already. The caller holds mu.
func (r *Registry) show(e *entry, base *instance.Instance, reason string, now time.Time) {
	if i := r.shown(e, base, reason, now); i != nil {
		e.Instance = i
	}
	r.hasten(e, now)
}

// shown makes the instance and its change, or gives nil when there is none.
func (r *Registry) shown(e *entry, base *instance.Instance, reason string, now time.Time) *instance.Instance {
	i := *base
	i.Status = e.status(now)
	if instance.Same(e.Instance, &i) {
		return nil
	}
	i.Revision = r.revise()
	r.changes = append(r.changes, Change{Key: i.Key, Instance: &i, Last: e.Instance, Revision: i.Revision, Reason: reason})
	return &i
}

// hasten has e looked at no later than it is due. The caller holds mu.
func (r *Registry) hasten(e *entry, now time.Time) {
	if due := e.due(now); due.Before(e.wake) {
		e.wake = due
		r.queue.Fix(e)
	}
}

// insert adds e. The caller holds writing and mu, or has r alone.
func (r *Registry) insert(e *entry, now time.Time) {
	r.entries[e.Key], r.leases[e.Lease] = e, e
	e.wake = e.due(now)
	r.queue.Push(e)
}

// drop removes e. The caller holds writing and mu.
func (r *Registry) drop(e *entry, reason string, now time.Time) {
	delete(r.entries, e.Key)
	delete(r.leases, e.Lease)
	r.queue.Remove(e)
	r.graves.add(e.Instance, wall(now))
	r.changes = append(r.changes, Change{Key: e.Key, Last: e.Instance, Revision: r.revise(), Reason: reason})
}

// revise gives the next revision. The caller holds mu, or has r alone.
func (r *Registry) revise() uint64 { return r.revision.Add(1) }

// unlock tells what changed while mu was held, and releases it.
func (r *Registry) unlock() {
	if len(r.changes) > 0 {
		changes := r.changes
		r.changes = nil
		r.changed(changes)
	}
	r.mu.Unlock()
}
