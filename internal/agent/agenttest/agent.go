// Package agenttest has an agent in memory, and the test suite for every implementation of the
// agent plane's contract, in process or over gRPC. Programs with package client can test
// against this agent.
package agenttest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Agent is an instance.Registrar and an instance.Catalog in memory. Only Pass advances its time.
// It is simple rather than fast: each answer is computed from the full history.
type Agent struct {
	mu      sync.Mutex // guards the fields below
	now     time.Time
	entries map[instance.Key]*entry
	gone    map[string]time.Time // by lease and by key
	log     []change             // ascending by revision
	floor   uint64               // lowest index for watches
	made    int                  // number of ids and leases
	contact instance.Contact
	lost    time.Time     // time of the loss of contact
	wake    chan struct{} // closed after a change
}

// entry is a registered instance.
type entry struct {
	*instance.Instance                 // nil until put
	stated             instance.Status // status set by the instance
	beat               time.Time       // last heartbeat, or the registration
	beaten             bool            // a heartbeat came
}

// change is the change of an instance at a revision.
type change struct {
	revision      uint64
	before, after *instance.Instance // nil: not registered
	last          *instance.Instance // after, or the last state of a removed instance
}

// New returns an empty agent. Its time is 2030-01-01 00:00 UTC.
func New() *Agent {
	return &Agent{
		now:     time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
		entries: make(map[instance.Key]*entry), gone: make(map[string]time.Time), wake: make(chan struct{}),
	}
}

// Pass advances the time: instances without heartbeats become unhealthy, and are then removed.
func (a *Agent) Pass(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now = a.now.Add(d)
	for _, k := range a.keys() {
		e := a.entries[k]
		switch silent := a.now.Sub(e.beat); {
		case silent >= e.Spec.RemoveAfter && e.Spec.RemoveAfter != instance.Never && (e.beaten || !e.Spec.Lasting):
			a.remove(e)
		case silent >= e.Spec.UnhealthyAfter:
			a.judge(e)
		}
	}
	a.notify()
}

// Lose reports a loss of contact with the group to readers.
func (a *Agent) Lose(reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.contact, a.lost = instance.Contact{Stale: true, Reason: reason}, a.now
	a.notify()
}

// Find ends the loss of contact.
func (a *Agent) Find() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.contact = instance.Contact{}
	a.notify()
}

// Forget drops the history, so that watches must start again.
func (a *Agent) Forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.floor = a.revision()
}

// Vanish drops an instance and its lease without a trace, like a peer that lost its disk.
func (a *Agent) Vanish(k instance.Key) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.entries[k]; e != nil {
		a.remove(e)
		delete(a.gone, e.Lease)
		delete(a.gone, k.String())
	}
}

// Register implements instance.Registrar. It does not check dependencies.
func (a *Agent) Register(_ context.Context, r instance.Registration) (instances.Registered, error) {
	const op = "agenttest.Register"
	if err := r.Normalize(); err != nil {
		return instances.Registered{}, fault.Wrap(op, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.RequireCommit {
		return instances.Registered{}, fault.New(op, fault.Unavailable, "there is no directory")
	}
	if r.ID == "" {
		r.ID = fmt.Sprintf("%s-%d", r.Service, a.number())
	}
	e := a.entries[r.Key]
	if e != nil && r.Strict {
		return instances.Registered{}, fault.As(op, fault.Exists, &fault.Error{
			Kind: fault.Exists, Field: "id", Err: fmt.Errorf("%s is registered already", r.ID),
		})
	}
	created := e == nil
	next := instance.Instance{Key: r.Key, RegisteredAt: a.now, Lease: fmt.Sprintf("lease-%032x", a.number()), Peer: "peer"}
	if created {
		e = &entry{}
		a.entries[r.Key] = e
	} else {
		next = *e.Instance
	}
	next.Spec = r.Spec
	e.stated, e.beat = r.Status, a.now
	a.put(e, &next)
	return instances.Registered{Instance: e.Instance, Created: created, TTL: e.Spec.UnhealthyAfter, Interval: e.Spec.UnhealthyAfter / 3}, nil
}

// Deregister implements instance.Registrar.
func (a *Agent) Deregister(_ context.Context, k instance.Key) (instances.Removal, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.entries[k]
	if e == nil {
		return instances.Removal{}, absent("agenttest.Deregister", k)
	}
	a.remove(e)
	return instances.Removal{At: a.now}, nil
}

// Heartbeat implements instance.Registrar.
func (a *Agent) Heartbeat(_ context.Context, refs []instances.Ref) ([]instances.Beat, error) {
	const op = "agenttest.Heartbeat"
	if len(refs) > instances.MaxBeats {
		return nil, fault.Wrap(op, fault.Invalidf("lease_ids", len(refs), "at most %d at a time", instances.MaxBeats))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	beats := make([]instances.Beat, len(refs))
	byLease := make(map[string]*entry, len(a.entries))
	for _, e := range a.entries {
		byLease[e.Lease] = e
	}
	for i, ref := range refs {
		e, name := byLease[ref.Lease], ref.Lease
		if ref.Lease == "" {
			e, name = a.entries[ref.Key], ref.Key.String()
		}
		if e == nil {
			beats[i] = instances.Beat{Lease: ref.Lease, Key: ref.Key, Err: a.missing(op, name)}
			continue
		}
		e.beat, e.beaten, e.stated = a.now, true, instance.StatusUnknown
		a.judge(e)
		beats[i] = instances.Beat{
			Key: e.Key, Lease: e.Lease, Status: e.Status, At: a.now, TTL: e.Spec.UnhealthyAfter, Expires: a.now.Add(e.Spec.UnhealthyAfter),
		}
	}
	return beats, nil
}

// SetStatus implements instance.Registrar.
func (a *Agent) SetStatus(_ context.Context, k instance.Key, s instance.Status) (*instance.Instance, error) {
	const op = "agenttest.SetStatus"
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.entries[k]
	switch {
	case e == nil:
		return nil, absent(op, k)
	case s == instance.StatusUnhealthy:
		return nil, fault.Wrap(op, fault.Invalidf("status", s.String(), "is not set by hand"))
	}
	next := *e.Instance
	if next.Override = s; s == instance.StatusUp {
		next.Override = instance.StatusUnknown
	}
	a.put(e, &next)
	return e.Instance, nil
}

func (a *Agent) keys() []instance.Key {
	keys := make([]instance.Key, 0, len(a.entries))
	for k := range a.entries {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(x, y instance.Key) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Service, y.Service), cmp.Compare(x.ID, y.ID))
	})
	return keys
}

// put stores the next state of an instance and derives its status.
func (a *Agent) put(e *entry, next *instance.Instance) {
	switch {
	case next.Override != instance.StatusUnknown:
		next.Status = next.Override
	case a.now.Sub(e.beat) >= next.Spec.UnhealthyAfter:
		next.Status = instance.StatusUnhealthy
	case e.stated == instance.StatusStarting:
		next.Status = instance.StatusStarting
	default:
		next.Status = instance.StatusUp
	}
	if e.Instance.Same(next) {
		return
	}
	a.record(e.Instance, next)
	e.Instance = next
}

// judge derives the status of an instance.
func (a *Agent) judge(e *entry) {
	next := *e.Instance
	a.put(e, &next)
}

func (a *Agent) remove(e *entry) {
	delete(a.entries, e.Key)
	a.gone[e.Lease], a.gone[e.Key.String()] = a.now, a.now
	last := *e.Instance
	last.Status = instance.StatusDown
	a.record(e.Instance, nil)
	a.log[len(a.log)-1].last = &last
}

func (a *Agent) record(before, after *instance.Instance) {
	r := a.revision() + 1
	if after != nil {
		after.Revision = r
	}
	a.log = append(a.log, change{revision: r, before: before, after: after, last: after})
	a.notify()
}

// revision is the revision of the last change.
func (a *Agent) revision() uint64 { return uint64(coord.FirstRevision) + uint64(len(a.log)) }

func (a *Agent) notify() {
	close(a.wake)
	a.wake = make(chan struct{})
}

func (a *Agent) number() int {
	a.made++
	return a.made
}

// missing returns Gone for a removed instance, and NotFound for an unknown one.
func (a *Agent) missing(op, name string) error {
	if at, ok := a.gone[name]; ok {
		return &fault.Error{Op: op, Kind: fault.Gone, Field: "lease_id", Value: at, Err: fmt.Errorf("%s is gone", name)}
	}
	return &fault.Error{Op: op, Kind: fault.NotFound, Field: "lease_id", Err: fmt.Errorf("there is no %s", name)}
}

func absent(op string, k instance.Key) error {
	return &fault.Error{Op: op, Kind: fault.NotFound, Field: "id", Err: fmt.Errorf("%s is not registered", k)}
}
