package registry

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Get gives an instance.
func (r *Registry) Get(k instance.Key) (*instance.Instance, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	e := r.entries[k.WithDefaults()]
	if e == nil {
		return nil, false
	}
	return e.Instance, true
}

// Find gives the key of the instance with a lease.
func (r *Registry) Find(lease string) (instance.Key, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	e := r.leases[lease]
	if e == nil {
		return instance.Key{}, false
	}
	return e.Key, true
}

// All gives every instance, by key, and the revision of the last change that they contain.
func (r *Registry) All() ([]*instance.Instance, uint64) {
	r.mu.RLock()
	list := make([]*instance.Instance, 0, len(r.entries))
	for _, e := range r.entries {
		list = append(list, e.Instance)
	}
	revision := r.revision.Load()
	r.mu.RUnlock()
	slices.SortFunc(list, func(a, b *instance.Instance) int { return compare(a.Key, b.Key) })
	return list, revision
}

// Storage gives why the disk takes no more writes until the registry is opened again,
// Unavailable; nil when it does take them. It does not wait for the disk.
func (r *Registry) Storage() error { return fault.Wrap("instances.Storage", r.ledger.Failure()) }

// Len counts the instances.
func (r *Registry) Len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.entries)
}

// LastBeat gives when an instance was last heard of, if it was since this peer started.
func (r *Registry) LastBeat(k instance.Key) (time.Time, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	e := r.entries[k.WithDefaults()]
	if e == nil || e.heard.IsZero() {
		return time.Time{}, false
	}
	return wall(e.heard), true
}

// Expires gives the first moment at which one of the list becomes unhealthy unless it is heard
// of. The zero time: none of them is registered here, or they are not what they would cease to be.
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
	return wall(first)
}

func compare(a, b instance.Key) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Service, b.Service), strings.Compare(a.ID, b.ID))
}
