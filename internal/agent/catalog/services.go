package catalog

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// serviceList caches the services of a namespace. The first reader after a
// change renews it. The zero value is ready.
type serviceList struct {
	mu      sync.Mutex // held during a renewal
	current atomic.Pointer[summaries]
}

// summaries is the service list of one View. The index is a revision at which a
// reader saw a difference.
type summaries struct {
	of    *instance.View
	index uint64
	list  []instance.Summary
}

// Services implements instance.Catalog. The list is shared and read-only.
func (c *Catalog) Services(_ context.Context, namespace string) (instance.Services, error) {
	known := c.current()
	s := c.streams.get(instance.Name{Namespace: namespace})
	if s == nil {
		return instance.Services{Index: c.forgotten.Load(), Contact: known}, nil
	}
	all, err := c.result(s, instance.Selector{AnyStatus: true})
	if err != nil {
		return instance.Services{}, fault.Wrap("catalog.Services", err)
	}
	o := s.services.read(all, s)
	return instance.Services{Index: o.index, Services: o.list, Contact: known}, nil
}

// Spellings returns the known services of the namespace whose names differ from n's by letter case alone.
func (c *Catalog) Spellings(n instance.Name) (others []instance.Name) {
	for _, s := range c.streams.alike(n) {
		if s.name != n {
			others = append(others, s.name)
		}
	}
	return others
}

func (o *serviceList) read(all *result, s *stream) *summaries {
	view := all.read(s).view
	if cur := o.current.Load(); cur != nil && cur.of == view {
		return cur
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	view = all.read(s).view
	cur := o.current.Load()
	if cur != nil && cur.of == view {
		return cur
	}
	if cur == nil {
		cur = &summaries{of: &instance.View{}, index: view.Index}
	}
	next := &summaries{of: view, index: view.Index, list: summarize(view.Instances, cur)}
	if slices.EqualFunc(cur.list, next.list, sameSummary) {
		next.index, next.list = cur.index, cur.list
	}
	o.current.Store(next)
	return next
}

// summarize summarises instances sorted by service. It reuses the summaries of
// unchanged services.
func summarize(all []*instance.Instance, old *summaries) []instance.Summary {
	list := make([]instance.Summary, 0, len(old.list))
	had, were := old.of.Instances, old.list
	for len(all) > 0 {
		name := all[0].Service
		n := slices.IndexFunc(all, func(i *instance.Instance) bool { return i.Service != name })
		if n < 0 {
			n = len(all)
		}
		for len(were) > 0 && were[0].Name < name {
			had, were = had[were[0].Instances:], were[1:]
		}
		if len(were) > 0 && were[0].Name == name && slices.Equal(had[:were[0].Instances], all[:n]) {
			list = append(list, were[0])
		} else {
			list = append(list, summary(name, all[:n]))
		}
		all = all[n:]
	}
	return list
}

func summary(name string, of []*instance.Instance) instance.Summary {
	sum := instance.Summary{Name: name, Instances: len(of)}
	tags := make(map[string]struct{})
	for _, i := range of {
		if i.Status == instance.StatusUp {
			sum.Up++
		}
		for _, tag := range i.Spec.Tags {
			tags[tag] = struct{}{}
		}
	}
	sum.Tags = slices.Sorted(maps.Keys(tags))
	return sum
}

func sameSummary(a, b instance.Summary) bool {
	return a.Name == b.Name && a.Instances == b.Instances && a.Up == b.Up && slices.Equal(a.Tags, b.Tags)
}
