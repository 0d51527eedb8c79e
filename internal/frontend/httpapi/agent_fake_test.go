package httpapi

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// registry is an agent plane of one peer in memory: the dumbest that keeps the contract. Its
// time passes by hand. It remembers all changes and looks indexes up in them.
type registry struct {
	apart    bool // no leader is known
	mu       sync.Mutex
	now      time.Time
	revision uint64
	all      map[instance.Key]*instance.Instance
	beats    map[instance.Key]time.Time
	beaten   map[instance.Key]bool // by a heartbeat, not by a registration alone
	gone     map[string]time.Time  // by key and by lease
	log      []change
	contact  instance.Contact
	news     chan struct{} // closed at the next change
	waiting  chan struct{} // gets one for each wait that begins

	dependencies bool  // are validated
	most         int   // instances; 0: any number
	broken       error // of every call
	local        bool  // the last registration came from this host
}

// change is a change of one instance; either side may be nil.
type change struct {
	revision      uint64
	before, after *instance.Instance
}

func newRegistry() *registry {
	return &registry{
		now: time.Date(2025, 11, 12, 10, 0, 0, 0, time.UTC), revision: 1, all: map[instance.Key]*instance.Instance{},
		beats: map[instance.Key]time.Time{}, beaten: map[instance.Key]bool{}, gone: map[string]time.Time{}, news: make(chan struct{}), waiting: make(chan struct{}, 64),
	}
}

// put makes one change.
func (g *registry) put(k instance.Key, after *instance.Instance) {
	g.revision++
	before := g.all[k]
	if after != nil {
		after.Revision = g.revision
		g.all[k] = after
	} else {
		delete(g.all, k)
		at := g.now
		g.gone[k.String()], g.gone[before.Lease] = at, at
	}
	g.log = append(g.log, change{g.revision, before, after})
	g.tell()
}

// wait says that a wait begins.
func (g *registry) wait() {
	select {
	case g.waiting <- struct{}{}:
	default:
	}
}

// tell wakes all who wait.
func (g *registry) tell() {
	close(g.news)
	g.news = make(chan struct{})
}

func (g *registry) Register(_ context.Context, r instance.Registration) (instances.Registered, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.broken != nil {
		return instances.Registered{}, g.broken
	}
	if err := r.Normalize(); err != nil {
		return instances.Registered{}, err
	}
	g.local = r.Local
	if r.ID == "" {
		r.ID = fmt.Sprintf("%s-%08x", r.Service, g.revision)
	}
	old := g.all[r.Key]
	if err := g.refusal(r, old); err != nil {
		return instances.Registered{}, err
	}
	i := &instance.Instance{Key: r.Key, Spec: r.Spec, RegisteredAt: g.now, Lease: fmt.Sprintf("lease-%032x", g.revision), Status: instance.StatusUp, Peer: "12D3"}
	if old != nil {
		i.RegisteredAt, i.Lease = old.RegisteredAt, old.Lease
	}
	switch {
	case r.Status == instance.StatusStarting:
		i.Status = r.Status
	case r.Spec.Check != nil:
		i.Status = instance.StatusUnknown
	}
	g.beats[r.Key] = g.now
	g.put(r.Key, i)
	return instances.Registered{Instance: i, Created: old == nil, TTL: i.Spec.UnhealthyAfter, Interval: i.Spec.UnhealthyAfter / 3, Committed: !g.apart}, nil
}

// refusal is why a valid registration cannot be.
func (g *registry) refusal(r instance.Registration, old *instance.Instance) error {
	switch {
	case r.Strict && old != nil:
		return fault.New("", fault.Exists, "%s is registered already", r.ID)
	case r.RequireCommit:
		return fault.New("", fault.Unavailable, "there is no directory")
	case old == nil && g.most > 0 && len(g.all) >= g.most:
		return fault.Exhausted("", "instances", false, "there are %d instances already", len(g.all))
	case !g.dependencies:
		return nil
	}
	var missing []string
	for _, name := range r.Spec.Dependencies {
		if !slices.ContainsFunc(g.sorted(), func(i *instance.Instance) bool {
			return i.Name() == instance.Name{Namespace: r.Namespace, Service: name}
		}) {
			missing = append(missing, name)
		}
	}
	if missing == nil {
		return nil
	}
	return &fault.Error{Kind: fault.Unprocessable, Field: "metadata.dependencies", Value: missing, Err: fmt.Errorf("are not registered")}
}

// sorted returns all instances by namespace, service and id.
func (g *registry) sorted() []*instance.Instance {
	list := make([]*instance.Instance, 0, len(g.all))
	for _, i := range g.all {
		list = append(list, i)
	}
	slices.SortFunc(list, func(a, b *instance.Instance) int { return compare(a.Key.String(), b.Key.String()) })
	return list
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// known returns an instance or an error.
func (g *registry) known(k instance.Key) (*instance.Instance, error) {
	if i := g.all[k]; i != nil {
		return i, nil
	}
	return nil, fault.New("", fault.NotFound, "%s is not registered", k)
}

func (g *registry) Deregister(_ context.Context, k instance.Key) (instances.Removal, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.broken != nil {
		return instances.Removal{}, g.broken
	}
	if _, err := g.known(k); err != nil {
		return instances.Removal{}, err
	}
	g.put(k, nil)
	return instances.Removal{At: g.now}, nil
}

func (g *registry) Heartbeat(_ context.Context, refs []instances.Ref) ([]instances.Beat, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.broken != nil {
		return nil, g.broken
	}
	beats := make([]instances.Beat, len(refs))
	for n, ref := range refs {
		beats[n] = g.beat(ref)
	}
	return beats, nil
}

func (g *registry) beat(ref instances.Ref) instances.Beat {
	name := ref.Lease
	for k, i := range g.all {
		if ref.Lease != "" && i.Lease == ref.Lease {
			ref.Key = k
		}
	}
	if name == "" {
		name = ref.Key.String()
	}
	i, err := g.known(ref.Key)
	if at, ok := g.gone[name]; ok && err != nil {
		err = &fault.Error{Kind: fault.Gone, Field: "id", Value: at, Err: fmt.Errorf("is gone")}
	}
	if err != nil {
		return instances.Beat{Err: err}
	}
	g.beats[ref.Key], g.beaten[ref.Key] = g.now, true
	if i.Spec.Check == nil && i.Override == instance.StatusUnknown && i.Status != instance.StatusUp {
		i = g.with(i, instance.StatusUp)
	}
	return instances.Beat{Key: i.Key, Lease: i.Lease, Status: i.Status, At: g.now, TTL: i.Spec.UnhealthyAfter, Expires: g.now.Add(i.Spec.UnhealthyAfter)}
}

// with gives an instance another status.
func (g *registry) with(i *instance.Instance, s instance.Status) *instance.Instance {
	next := *i
	next.Status = s
	g.put(i.Key, &next)
	return &next
}

func (g *registry) SetStatus(_ context.Context, k instance.Key, s instance.Status) (*instance.Instance, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	i, err := g.known(k)
	if err != nil || g.broken != nil {
		return nil, orErr(g.broken, err)
	}
	next := *i
	if next.Status, next.Override = s, s; s == instance.StatusUp || s == instance.StatusUnknown {
		next.Status, next.Override = instance.StatusUp, instance.StatusUnknown
	}
	g.put(k, &next)
	return &next, nil
}

func orErr(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

// report sets the result of a check.
func (g *registry) report(k instance.Key, s instance.Status) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.with(g.all[k], s)
}

// pass advances the clock: instances without heartbeats become unhealthy, then removed.
func (g *registry) pass(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now = g.now.Add(d)
	for _, i := range g.sorted() {
		switch silent := g.now.Sub(g.beats[i.Key]); {
		case silent >= i.Spec.RemoveAfter && i.Spec.RemoveAfter != instance.Never && (!i.Spec.Lasting || g.beaten[i.Key]):
			g.put(i.Key, nil)
		case silent >= i.Spec.UnhealthyAfter && i.Status != instance.StatusUnhealthy:
			g.with(i, instance.StatusUnhealthy)
		}
	}
}

// lose loses contact, or finds it again for no reason.
func (g *registry) lose(reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.contact = instance.Contact{Stale: reason != "", Reason: reason}
	if reason != "" {
		g.contact.Age = 1500 * time.Millisecond
	}
	g.tell()
}

// view answers a question: namespace, service or "" for all, and what to pick.
func (g *registry) view(n instance.Name, s instance.Selector) (*instance.View, error) {
	m, err := s.Compile()
	if err != nil {
		return nil, err
	}
	in := func(i *instance.Instance) bool {
		return i != nil && i.Namespace == n.Namespace && (n.Service == "" || i.Service == n.Service) && m.Match(i)
	}
	var list []*instance.Instance
	for _, i := range g.sorted() {
		if in(i) {
			list = append(list, i)
		}
	}
	slices.SortFunc(list, m.Compare)
	index := uint64(1)
	for _, c := range g.log {
		if in(c.before) || in(c.after) {
			index = c.revision
		}
	}
	return &instance.View{Index: index, Instances: list}, nil
}

func (g *registry) result(n instance.Name, s instance.Selector) (instance.Result, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.broken != nil {
		return instance.Result{}, g.broken
	}
	v, err := g.view(n, s)
	c := g.contact
	c.Revision = g.revision
	return instance.Result{View: v, Contact: c}, err
}

func (g *registry) Discover(_ context.Context, q instance.Query) (instance.Result, error) {
	if err := q.Name.Validate(); err != nil {
		return instance.Result{}, err
	}
	if q.Consistency == instance.Linearizable {
		return instance.Result{}, fault.New("", fault.Unavailable, "there is no directory")
	}
	return g.result(q.Name, q.Selector)
}

func (g *registry) List(_ context.Context, q instances.ListQuery) (instance.Result, error) {
	if err := (instance.Name{Namespace: q.Namespace, Service: "any"}).Validate(); err != nil {
		return instance.Result{}, err
	}
	if q.Consistency == instance.Linearizable {
		return instance.Result{}, fault.New("", fault.Unavailable, "there is no directory")
	}
	return g.result(instance.Name{Namespace: q.Namespace}, q.Selector)
}

func (g *registry) Await(ctx context.Context, q instance.Query, after uint64) (instance.Result, error) {
	r, err := g.Discover(ctx, q)
	if err != nil {
		return r, err
	}
	stale := r.Stale
	for {
		g.mu.Lock()
		news := g.news
		g.mu.Unlock()
		if r, err = g.Discover(ctx, q); err != nil || r.Index > after || r.Stale != stale {
			return r, err
		}
		g.wait()
		select {
		case <-news:
		case <-ctx.Done():
			if context.Cause(ctx) == context.DeadlineExceeded {
				return r, nil
			}
			return r, fault.Wrap("test.Await", ctx.Err())
		}
	}
}

// Services is unused by this front end.
func (g *registry) Services(context.Context, string) (instance.Services, error) {
	return instance.Services{}, fault.New("", fault.Internal, "is not asked for")
}

func (g *registry) Watch(ctx context.Context, q instance.Query, after uint64, send func(instance.Batch) error) error {
	r, err := g.List(ctx, instances.ListQuery{Namespace: q.Namespace, Selector: q.Selector, Consistency: q.Consistency})
	if q.Service != "" {
		r, err = g.Discover(ctx, q)
	}
	if err != nil {
		return err
	}
	m, _ := q.Compile()
	if after == 0 || after > r.Revision {
		b := instance.Batch{Reset: true, Index: r.Revision, Contact: r.Contact}
		for _, i := range r.Instances {
			b.Events = append(b.Events, instance.Event{Type: instance.Added, Instance: i, Revision: i.Revision})
		}
		if err := send(b); err != nil {
			return err
		}
		after = r.Revision
	}
	for {
		g.mu.Lock()
		news, b := g.news, instance.Batch{Index: g.revision, Contact: g.contact}
		for _, c := range g.log {
			if e, ok := eventOf(c, q.Name, m); ok && c.revision > after {
				b.Events = append(b.Events, e)
			}
		}
		g.mu.Unlock()
		if err := send(b); err != nil {
			return err
		}
		after = b.Index
		g.wait()
		select {
		case <-news:
		case <-ctx.Done():
			return fault.Wrap("test.Watch", ctx.Err())
		}
	}
}

// eventOf is what a change is to a result.
func eventOf(c change, n instance.Name, m instance.Matcher) (instance.Event, bool) {
	in := func(i *instance.Instance) bool {
		return i != nil && i.Namespace == n.Namespace && (n.Service == "" || i.Service == n.Service) && m.Match(i)
	}
	was, is := in(c.before), in(c.after)
	switch {
	case is && was:
		return instance.Event{Type: instance.Modified, Instance: c.after, Revision: c.revision}, true
	case is:
		return instance.Event{Type: instance.Added, Instance: c.after, Revision: c.revision}, true
	case was && c.after != nil:
		return instance.Event{Type: instance.Removed, Instance: c.after, Revision: c.revision}, true
	case was:
		last := *c.before
		last.Status = instance.StatusDown
		return instance.Event{Type: instance.Removed, Instance: &last, Revision: c.revision}, true
	}
	return instance.Event{}, false
}

func (g *registry) LastBeat(k instance.Key) (time.Time, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at, ok := g.beats[k]
	return at, ok
}

func (g *registry) Expires([]*instance.Instance) time.Time { return time.Time{} }

func (g *registry) census() map[instance.Status]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := map[instance.Status]int{}
	for _, i := range g.all {
		n[i.Status]++
	}
	return n
}
