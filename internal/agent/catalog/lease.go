package catalog

import (
	"context"
	"sync"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// leases finds instances by lease. Of two instances with one lease the later
// one counts. The zero value is empty.
type leases struct {
	mu   sync.RWMutex // guards byID
	byID map[string]*instance.Instance
}

// replace applies a change of an instance; either state may be nil.
func (l *leases) replace(before, after *instance.Instance) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if before != nil && (after == nil || after.Lease != before.Lease) {
		if has := l.byID[before.Lease]; has != nil && has.Key == before.Key {
			delete(l.byID, before.Lease)
		}
	}
	if after != nil && after.Lease != "" {
		if l.byID == nil {
			l.byID = make(map[string]*instance.Instance)
		}
		l.byID[after.Lease] = after
	}
}

// reset replaces the content.
func (l *leases) reset(all map[instance.Key]*instance.Instance) {
	l.mu.Lock()
	clear(l.byID)
	l.mu.Unlock()
	for _, i := range all {
		l.replace(nil, i)
	}
}

// ByLease returns the instance of a lease. It may be ahead of results by the
// change in progress.
func (c *Catalog) ByLease(lease string) (*instance.Instance, bool) {
	c.leases.mu.RLock()
	defer c.leases.mu.RUnlock()
	i := c.leases.byID[lease]
	return i, i != nil
}

// Get returns the instance of a key, nil without one. It may be ahead of results by the change in progress.
func (c *Catalog) Get(k instance.Key) *instance.Instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.streams.get(k.Name()); s != nil {
		return s.byID[k.ID]
	}
	return nil
}

// Until calls done now and after each change of the revision or the link state,
// until done returns true. It does not count as a watch. Errors: Timeout,
// Canceled.
func (c *Catalog) Until(ctx context.Context, done func() bool) error {
	for {
		moved, turned := c.moved.Wait(), c.linkChanged.Wait()
		if done() {
			return nil
		}
		select {
		case <-moved:
		case <-turned:
		case <-ctx.Done():
			return fault.Wrap("catalog.Until", ctx.Err())
		}
	}
}
