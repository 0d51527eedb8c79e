// Package registry is what this peer answers for: the instances of applications that registered
// with it, on disk, with how each of them is.
//
// A registration is durable before anybody sees it or is told so, and survives a restart, as do
// deregistrations, removals and overrides. Heartbeats and the outcomes of checks are
// memory alone, however many there are: after a restart nothing is known of an instance until it is heard
// of or checked, and the time that it has for this begins with the restart. The one exception is the
// removal of an instance that fell silent: it is seen at once, and if the disk fails meanwhile the
// instance comes back with a restart, to be removed again.
//
// Whoever changes something waits for one fsync, shared by all who wait: the first to get hold
// of the disk commits for everybody behind it. Each change has a revision, in a counter that
// never goes back, not over restarts either, as long as the disk takes writes: it may run ahead of what is on disk
// only up to a mark that is, and is moved long before it is reached.
//
// Time is an argument of every call. The monotonic reading of a time.Time is used where there is
// one, so that a clock that is set does not expire anybody.
package registry

import (
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/internal/platform/heap"
	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// floorStep is how many revisions are set aside with one write. More than half of them are left
// after each commit, so that nobody who changes memory alone has to wait for the disk.
const floorStep = 1 << 24

// Registry holds the instances that are registered with this peer. It is safe for concurrent
// use; reading and heartbeats never wait for the disk.
type Registry struct {
	self    string
	max     int
	stall   time.Duration
	changed func([]Change)
	random  io.Reader // guarded by writing
	log     *slog.Logger

	queued line // of those that wait for a commit

	// writing serialises commits, from reading the state that they start from until they are on disk
	// and visible. It is taken before mu.
	writing sync.Mutex
	ledger  *store.Store // guarded by writing, but for its failure and its floor, which is never below revision
	closed  bool         // guarded by writing

	revision atomic.Uint64 // last given out; written with mu held

	// mu is held for steps in memory only. entries and leases are written with writing held too.
	mu      sync.RWMutex
	entries map[instance.Key]*entry // an entry's fields are guarded by mu
	leases  map[string]*entry
	queue   *heap.Heap[*entry] // guarded by mu, as all below
	graves  graves
	changes []Change // of this hold of mu, not told yet
	visited time.Time
}

// Open opens the registry in c.Dir, or makes it. It tells no changes: All has what is there. Errors are
//
//   - Invalid: a field of the configuration, which the error names;
//   - Conflict: the database is of another peer;
//   - Unsupported: it was written by a later version of this program;
//   - Unavailable: it does not open, for example because another process has it open;
//   - Internal: a value cannot be used. The error names its key, and nothing is deleted.
func Open(c Config, now time.Time) (*Registry, error) {
	const op = "instances.Open"
	if err := c.Validate(); err != nil {
		return nil, fault.Wrap(op, err)
	}
	c = c.withDefaults()
	kept, err := store.Open(c.ledger())
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	r := &Registry{
		self:    c.Self,
		max:     c.MaxInstances,
		stall:   c.Stall,
		changed: c.Changed,
		random:  c.Random,
		log:     c.Logger,
		ledger:  kept,
		entries: make(map[instance.Key]*entry),
		leases:  make(map[string]*entry),
		queue:   newQueue(),
		graves:  newGraves(),
		visited: now,
	}
	r.revision.Store(max(kept.Floor(), 1)) // an empty registry has one too, as in etcd
	if err := r.load(now); err != nil {
		return nil, fault.Wrap(op, errors.Join(err, kept.Close()))
	}
	return r, nil
}

func (r *Registry) load(now time.Time) error {
	err := r.ledger.All(func(name string, value []byte) error {
		i, err := r.restore(name, value)
		if err != nil {
			return err
		}
		e := &entry{Instance: i, state: recovered(i, now)}
		i.Status = e.status(now)
		i.Revision = r.revise()
		r.insert(e, now)
		return nil
	})
	if err != nil {
		return err
	}
	return r.ledger.Commit(nil, r.ledger.Floor()+floorStep)
}

// Close releases the database; what was registered stays. Reading goes on to work, every later
// change that is to be durable fails. Closing again does nothing.
func (r *Registry) Close() error {
	r.writing.Lock()
	defer r.writing.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	return fault.Wrap("instances.Close", r.ledger.Close())
}

// Register adds an instance, or replaces the one of the same key, which keeps its lease, its
// override and the time of its first registration. One that differs in nothing is only heard of. An
// empty id is made up. Errors: those of Registration.Normalize; Exists when it is strict and
// there is one; LimitReached; Unavailable when the disk failed.
func (r *Registry) Register(reg instance.Registration, now time.Time) (instance.Registered, error) {
	const op = "instances.Register"
	r.reserve()
	if err := reg.Normalize(); err != nil {
		return instance.Registered{}, fault.Wrap(op, err)
	}
	if i, ok := r.renew(reg, now); ok {
		return outcome(i, false), nil
	}
	var out instance.Registered
	err := r.write(func(c *commit) error {
		base, created, err := c.register(reg, now)
		if err != nil {
			return err
		}
		c.put(base, func() { out = outcome(r.install(base, reg.Status == instance.StatusStarting, now), created) })
		return nil
	})
	return out, fault.Wrap(op, err)
}

// renew takes a registration that differs in nothing from the one there is.
func (r *Registry) renew(reg instance.Registration, now time.Time) (*instance.Instance, bool) {
	r.mu.Lock()
	defer r.unlock()
	e := r.entries[reg.Key]
	if e == nil || reg.Strict || !e.Spec.Equal(reg.Spec) {
		return nil, false
	}
	starting := reg.Status == instance.StatusStarting
	r.advance(e, e.registered(e.Instance, starting, true, now), ReasonRegistered, now)
	return e.Instance, true
}

// install shows a registration that is on disk. The caller holds writing and mu.
func (r *Registry) install(base *instance.Instance, starting bool, now time.Time) *instance.Instance {
	e := r.entries[base.Key]
	if e == nil {
		e = &entry{}
		e.state = e.registered(base, starting, false, now)
		e.Instance = r.shown(e, base, ReasonRegistered, now)
		r.insert(e, now)
		return e.Instance
	}
	e.state = e.registered(base, starting, checkedAlike(e.Instance, base), now)
	r.show(e, base, ReasonRegistered, now)
	return e.Instance
}

// checkedAlike reports whether what a check found of a holds for b.
func checkedAlike(a, b *instance.Instance) bool {
	return a.Check != nil && b.Check != nil && *a.Check == *b.Check && a.Host == b.Host && a.Port == b.Port
}

func outcome(i *instance.Instance, created bool) instance.Registered {
	return instance.Registered{Instance: i, Created: created, TTL: i.UnhealthyAfter, Interval: i.UnhealthyAfter / 3}
}

// Deregister removes an instance. Errors: NotFound; Unavailable when the disk failed.
func (r *Registry) Deregister(k instance.Key, now time.Time) (instance.Deregistered, error) {
	const op = "instances.Deregister"
	r.reserve()
	k = k.WithDefaults()
	err := r.write(func(c *commit) error {
		if c.get(k) == nil {
			return notFound("id", k.String())
		}
		c.remove(k, func() { r.drop(r.entries[k], ReasonDeregistered, now) })
		return nil
	})
	if err != nil {
		return instance.Deregistered{}, fault.Wrap(op, err)
	}
	return instance.Deregistered{At: wall(now)}, nil
}

// SetStatus overrides the status of an instance by StatusOutOfService, StatusDown or
// StatusStarting; StatusUp and StatusUnknown end the override. Errors: Invalid, field "status";
// NotFound; Unavailable when the disk failed.
func (r *Registry) SetStatus(k instance.Key, s instance.Status, now time.Time) (*instance.Instance, error) {
	const op = "instances.SetStatus"
	r.reserve()
	switch s {
	case instance.StatusOutOfService, instance.StatusDown, instance.StatusStarting, instance.StatusUnknown:
	case instance.StatusUp:
		s = instance.StatusUnknown
	default:
		return nil, fault.Wrap(op, fault.Invalidf("status", s.String(), "cannot be set: only heartbeats tell"))
	}
	k = k.WithDefaults()
	var out *instance.Instance
	err := r.write(func(c *commit) error {
		last := c.get(k)
		if last == nil {
			return notFound("id", k.String())
		}
		if last.Override == s {
			c.effects = append(c.effects, func() { out = r.entries[k].Instance })
			return nil
		}
		base := *last
		base.Override = s
		c.put(&base, func() {
			e := r.entries[k]
			e.override = s
			r.show(e, &base, ReasonOverridden, now)
			out = e.Instance
		})
		return nil
	})
	return out, fault.Wrap(op, err)
}

// Heartbeat renews leases and answers each in order. Errors of each: NotFound; Gone, value the
// time.Time, for one that was removed within the last hour, unless 10,000 others were since.
func (r *Registry) Heartbeat(refs []instance.Ref, now time.Time) []instance.Beat {
	r.reserve()
	beats := make([]instance.Beat, len(refs))
	at := wall(now)
	r.mu.Lock()
	defer r.unlock()
	for n := range refs {
		e := r.find(refs[n])
		if e == nil {
			beats[n] = instance.Beat{Key: refs[n].Key, Lease: refs[n].Lease, At: at, Err: r.missing(refs[n], now)}
			continue
		}
		r.advance(e, e.beat(now), ReasonHeartbeat, now)
		beats[n] = instance.Beat{
			Key: e.Key, Lease: e.Lease, Status: e.Status,
			At: at, TTL: e.unhealthyAfter, Expires: at.Add(e.unhealthyAfter),
		}
	}
	return beats
}

// missing says why there is no such instance. The caller holds mu.
func (r *Registry) missing(ref instance.Ref, now time.Time) error {
	field, name := "lease_id", ref.Lease
	if ref.Lease == "" {
		field, name = "id", ref.Key.WithDefaults().String()
	}
	if at, ok := r.graves.find(ref, now); ok {
		return &fault.Error{Op: "instances.Heartbeat", Kind: fault.Gone, Field: field, Value: at, Err: errGone}
	}
	return fault.Wrap("instances.Heartbeat", notFound(field, name))
}

// Sentinels for what is told often.
var (
	errGone   = errors.New("the instance is gone: it was deregistered, or removed because it was silent for too long; register it again")
	errExists = errors.New("an instance of this id is registered")
)

func notFound(field, name string) error {
	return &fault.Error{Kind: fault.NotFound, Field: field, Value: name, Err: errors.New("no such instance is registered here")}
}

// Report takes what the check of an instance says, and reports whether there is an instance
// that has a check.
func (r *Registry) Report(k instance.Key, v Verdict, now time.Time) bool {
	r.reserve()
	r.mu.Lock()
	defer r.unlock()
	e := r.entries[k]
	if e == nil || !e.checked {
		return false
	}
	r.advance(e, e.judged(v, now), ReasonChecked, now)
	return true
}

// Expire makes those unhealthy that were silent for too long, and removes those that were for even longer. It gives
// the time at which the next may be due, the zero time for none. It costs little when nothing is
// due: call it at that time, or every second, and see Config.Stall.
func (r *Registry) Expire(now time.Time) (next time.Time) {
	r.reserve()
	if lost := r.review(now); len(lost) > 0 {
		err := r.write(func(c *commit) error {
			c.expire(lost, now)
			return nil
		})
		if err != nil {
			r.log.Error("instances that are removed may come back with a restart", "count", len(lost), "err", err)
		}
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if first, ok := r.queue.Min(); ok {
		next = first.wake
	}
	return next
}

// review looks at all that are due, and gives those that are to be removed.
func (r *Registry) review(now time.Time) (lost []instance.Key) {
	const again = time.Second // for those that cannot be removed
	r.mu.Lock()
	defer r.unlock()
	r.excuse(now)
	r.graves.forget(now)
	for {
		e, ok := r.queue.Min()
		if !ok || now.Before(e.wake) {
			return lost
		}
		if e.lost(now) {
			lost = append(lost, e.Key)
			e.wake = now.Add(again)
		} else {
			e.wake = e.due(now)
			r.advance(e, e.state, ReasonSilent, now)
		}
		r.queue.Fix(e)
	}
}

// excuse gives everybody the time back in which this process stood still.
func (r *Registry) excuse(now time.Time) {
	gap := now.Sub(r.visited)
	r.visited = now
	if r.stall == 0 || gap <= r.stall {
		return
	}
	r.log.Warn("stood still, and holds it against no instance", "for", gap)
	for _, e := range r.entries {
		e.state = e.excused(gap, now)
	}
}

// wall drops the monotonic reading of what leaves the registry. The zero time stays zero.
func wall(t time.Time) time.Time { return t.Round(0).UTC() }
