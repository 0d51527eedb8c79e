package agenttest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// question is a valid query.
type question struct {
	instance.Query
	matcher instance.Matcher
}

func ask(op string, q instance.Query) (question, error) {
	if q.Namespace == "" {
		q.Namespace = instance.DefaultNamespace
	}
	if err := q.Name.Validate(); err != nil {
		return question{}, fault.Wrap(op, err)
	}
	m, err := q.Selector.Compile()
	return question{q, m}, fault.Wrap(op, err)
}

// askAll accepts a query without a service, for all services of its namespace.
func askAll(op string, q instance.Query) (question, error) {
	named := q
	if q.Service == "" {
		named.Service = "all"
	}
	asked, err := ask(op, named)
	asked.Service = q.Service
	return asked, err
}

func (q question) picks(i *instance.Instance) bool {
	return i != nil && i.Key.Namespace == q.Namespace && (q.Service == "" || i.Key.Service == q.Service) && q.matcher.Match(i)
}

// Discover implements instance.Catalog. A linearizable query needs contact.
func (a *Agent) Discover(_ context.Context, q instance.Query) (instance.Result, error) {
	const op = "agenttest.Discover"
	asked, err := ask(op, q)
	if err != nil {
		return instance.Result{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if q.Consistency == instance.Linearizable && a.contact.Stale {
		return instance.Result{}, fault.New(op, fault.Unavailable, "contact is lost: %s", a.contact.Reason)
	}
	return a.result(asked), nil
}

// Await implements instance.Catalog.
func (a *Agent) Await(ctx context.Context, q instance.Query, after uint64) (instance.Result, error) {
	asked, err := ask("agenttest.Await", q)
	if err != nil {
		return instance.Result{}, err
	}
	var stale bool
	for first := true; ; first = false {
		a.mu.Lock()
		r, wake := a.result(asked), a.wake
		a.mu.Unlock()
		if first {
			stale = r.Stale
		}
		if r.Index > after || r.Stale != stale {
			return r, nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return r, nil
			}
			return instance.Result{}, fault.Wrap("agenttest.Await", ctx.Err())
		}
	}
}

// List implements instance.Catalog.
func (a *Agent) List(_ context.Context, q instances.ListQuery) (instance.Result, error) {
	m, err := q.Selector.Compile()
	if err != nil {
		return instance.Result{}, fault.Wrap("agenttest.List", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var list []*instance.Instance
	for _, k := range a.keys() {
		if e := a.entries[k]; k.Namespace == q.Namespace && m.Match(e.Instance) {
			list = append(list, e.Instance)
		}
	}
	return instance.Result{View: &instance.View{Index: a.revision(), Instances: list}, Contact: a.reach()}, nil
}

// Removed returns the instances of a service, or of a namespace without a service, that ended and did not return, the last
// end first.
func (a *Agent) Removed(n instance.Name) (list []instances.Removal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range slices.Backward(a.log) {
		if i := c.before; c.after == nil && a.entries[i.Key] == nil && i.Namespace == n.Namespace && (n.Service == "" || i.Service == n.Service) {
			list = append(list, instances.Removal{Instance: i, At: a.gone[i.Key.String()], Cause: "deregistered"})
		}
	}
	return list
}

// Services implements instance.Catalog.
func (a *Agent) Services(_ context.Context, namespace string) (instance.Services, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := instance.Services{Index: a.revision(), Contact: a.reach()}
	for _, k := range a.keys() {
		if k.Namespace != namespace {
			continue
		}
		if n := len(s.Services); n == 0 || s.Services[n-1].Name != k.Service {
			s.Services = append(s.Services, instance.Summary{Name: k.Service})
		}
		e, sum := a.entries[k], &s.Services[len(s.Services)-1]
		sum.Instances++
		if e.Status == instance.StatusUp {
			sum.Up++
		}
		for _, tag := range e.Spec.Tags {
			if !slices.Contains(sum.Tags, tag) {
				sum.Tags = append(sum.Tags, tag)
			}
		}
		slices.Sort(sum.Tags)
	}
	return s, nil
}

// Watch implements instance.Catalog.
func (a *Agent) Watch(ctx context.Context, q instance.Query, after uint64, send func(instance.Batch) error) error {
	const op = "agenttest.Watch"
	asked, err := askAll(op, q)
	if err != nil {
		return err
	}
	var stale bool
	for first := true; ; first = false {
		a.mu.Lock()
		b, wake := a.since(asked, after), a.wake
		a.mu.Unlock()
		if first || len(b.Events) > 0 || b.Stale != stale {
			if err := send(b); err != nil {
				return err
			}
		}
		after, stale = b.Index, b.Stale
		select {
		case <-wake:
		case <-ctx.Done():
			return fault.Wrap(op, ctx.Err())
		}
	}
}

// LastBeat implements instance.Catalog.
func (a *Agent) LastBeat(k instance.Key) (time.Time, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.entries[k]; e != nil {
		return e.beat, true
	}
	return time.Time{}, false
}

// Expires implements instance.Catalog.
func (a *Agent) Expires(list []*instance.Instance) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	var first time.Time
	for _, i := range list {
		if e := a.entries[i.Key]; e != nil {
			if at := e.beat.Add(e.Spec.UnhealthyAfter); first.IsZero() || at.Before(first) {
				first = at
			}
		}
	}
	return first
}

// result computes a result. Its index is the index of the last change of the result, never 0.
func (a *Agent) result(q question) instance.Result {
	var list []*instance.Instance
	for _, e := range a.entries {
		if q.picks(e.Instance) {
			list = append(list, e.Instance)
		}
	}
	slices.SortFunc(list, q.matcher.Compare)
	index := uint64(coord.FirstRevision)
	for _, c := range a.log {
		if q.picks(c.before) || q.picks(c.after) {
			index = c.revision
		}
	}
	return instance.Result{View: &instance.View{Index: index, Instances: list}, Contact: a.reach()}
}

// since returns the changes of a result after an index.
func (a *Agent) since(q question, after uint64) instance.Batch {
	b := instance.Batch{Index: a.revision(), Contact: a.reach()}
	if after == 0 || after < a.floor || after > a.revision() {
		b.Reset = true
		for _, i := range a.result(q).Instances {
			b.Events = append(b.Events, instance.Event{Type: instance.Added, Instance: i, Revision: i.Revision})
		}
		return b
	}
	for _, c := range a.log[after-uint64(coord.FirstRevision):] {
		was, is := q.picks(c.before), q.picks(c.after)
		e := instance.Event{Instance: c.last, Revision: c.revision}
		switch {
		case was && is:
			e.Type = instance.Modified
		case is:
			e.Type = instance.Added
		case was:
			e.Type = instance.Removed
		default:
			continue
		}
		b.Events = append(b.Events, e)
	}
	return b
}

// reach is the current state of contact.
func (a *Agent) reach() instance.Contact {
	c := a.contact
	c.Revision = a.revision()
	if c.Stale {
		c.Age = a.now.Sub(a.lost)
	}
	return c
}

// Instances returns all instances, sorted by key.
func (a *Agent) Instances() map[instance.Key]*instance.Instance {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make(map[instance.Key]*instance.Instance, len(a.entries))
	for k := range maps.Keys(a.entries) {
		all[k] = a.entries[k].Instance
	}
	return all
}
