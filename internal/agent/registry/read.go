package registry

import (
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Get returns an instance.
func (r *Registry) Get(k instance.Key) (*instance.Instance, bool) {
	return r.Find(instances.Ref{Key: k})
}

// Find returns the instance that a reference names.
func (r *Registry) Find(ref instances.Ref) (*instance.Instance, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	e := r.find(ref)
	if e == nil {
		return nil, false
	}
	return e.Instance, true
}

// All returns all instances by key, and the revision of their last change.
func (r *Registry) All() ([]*instance.Instance, uint64) {
	r.mu.RLock()
	list := make([]*instance.Instance, 0, len(r.entries))
	for _, e := range r.entries {
		list = append(list, e.Instance)
	}
	revision := r.revision.Load()
	r.mu.RUnlock()
	slices.SortFunc(list, func(a, b *instance.Instance) int { return a.Key.Compare(b.Key) })
	return list, revision
}

// Storage returns the disk failure that ended writes until the next Open,
// Unavailable, or nil. It does not wait for the disk.
func (r *Registry) Storage() error { return fault.Wrap("instances.Storage", r.disk.Failure()) }

// LastBeat returns the time of the last sign of life of an instance since the
// start of this peer.
func (r *Registry) LastBeat(k instance.Key) (time.Time, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	e := r.entries[k.WithDefaults()]
	if e == nil || e.lastSeen.IsZero() {
		return time.Time{}, false
	}
	return withoutMonotonic(e.lastSeen), true
}

// Expires returns the first time at which a listed instance becomes unhealthy
// without a heartbeat. Zero means no such time: no instance is registered here,
// or none can become unhealthy.
func (r *Registry) Expires(list []*instance.Instance) (first time.Time) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, i := range list {
		e := r.entries[i.Key]
		if e == nil || e.override != instance.StatusUnknown || e.Status == instance.StatusUnhealthy || e.Status == instance.StatusDown {
			continue
		}
		if t := e.since.Add(e.unhealthyAfter); first.IsZero() || t.Before(first) {
			first = t
		}
	}
	return withoutMonotonic(first)
}
