// Package registry keeps the instances registered at this peer: their
// registrations on disk, their health in memory.
//
// A registration is durable before its caller or any reader sees it. So are
// deregistrations, removals and overrides. Heartbeats and check results stay in
// memory, and Suspend stores the status for a short orderly restart: after any
// other one an instance has status UNKNOWN until its next heartbeat or check.
// Time limits start again. The removal of a silent instance is visible at once;
// after a disk failure the instance returns with a restart and is removed again.
//
// Writers share fsyncs: the first one to get the disk commits for all waiting
// ones. Each change has a revision from a counter that never goes back, also
// over restarts with a working disk: the counter stays below a mark on disk,
// which moves long before the counter reaches it.
//
// Each call takes the time as an argument. Comparisons use the monotonic
// reading where available, so that a clock change expires no instance.
package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/platform/heap"
	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// floorStep is the number of revisions reserved by one write. After each commit
// more than half of them are left, so that a change in memory does not wait for
// the disk.
const floorStep = 1 << 24

// Registry holds the instances of this peer. It is safe for concurrent use.
// Reads and heartbeats never wait for the disk.
type Registry struct {
	self    string
	max     int
	stall   time.Duration
	changed func([]instances.Change)
	random  io.Reader // guarded by writing
	aside   []string  // set by Open
	log     *slog.Logger

	queueing sync.Mutex // guards waiting
	waiting  []*request // for a commit; the number of running calls bounds it

	// writing serialises commits, from the read of their initial state until
	// they are on disk and visible. Lock it before mu.
	writing sync.Mutex
	disk    *store.Store // guarded by writing, its failure and its floor excepted; the floor is never below revision
	closed  bool         // guarded by writing

	revision atomic.Uint64 // last one used; written with mu held

	// mu is held for steps in memory only. Writes of entries and leases also
	// need writing.
	mu         sync.RWMutex
	entries    map[instance.Key]*entry // mu guards the fields of an entry
	leases     map[string]*entry
	owned      map[string]int     // instances of each client
	queue      *heap.Heap[*entry] // guarded by mu, like the fields below
	tombstones tombstones
	changes    []instances.Change // of the present holder of mu, not delivered yet
	lastExpire time.Time
}

// Open opens or creates the registry in c.Dir. It delivers no changes: All
// returns the content. Errors:
//
//   - Conflict: the database belongs to another peer;
//   - Unsupported: a later version of this program wrote the database;
//   - Unavailable: the database does not open, for example while another process uses it;
//   - Internal: the database is damaged.
//
// A stored value that does not pass is set aside: it stays on disk unchanged, Aside names it, and a registration of
// its key replaces it.
func Open(c Config, now time.Time) (*Registry, error) {
	const op = "instances.Open"
	c = c.withDefaults()
	kept, err := store.Open(c.diskConfig())
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	r := &Registry{
		self:       c.Self,
		max:        c.MaxInstances,
		stall:      c.Stall,
		changed:    c.Changed,
		random:     c.Random,
		log:        c.Logger,
		disk:       kept,
		entries:    make(map[instance.Key]*entry),
		leases:     make(map[string]*entry),
		owned:      make(map[string]int),
		queue:      newQueue(),
		tombstones: newTombstones(),
		lastExpire: now,
	}
	r.revision.Store(max(kept.Floor(), 1)) // the empty registry has revision 1, as in etcd
	list, last, err := r.load()
	if err != nil {
		return nil, fault.Wrap(op, errors.Join(err, kept.Close()))
	}
	for _, i := range list {
		e := &entry{Instance: i, client: i.Principal, state: recovered(i, now).resumed(last.of(i.Key, now), now)}
		e.beaten = last.Beaten[i.Key.String()]
		i.Status = e.status(now)
		i.Revision = r.nextRevision()
		r.insert(e, now)
	}
	if err := kept.Commit(last.ended(), kept.Floor()+floorStep); err != nil {
		return nil, fault.Wrap(op, errors.Join(err, kept.Close()))
	}
	return r, nil
}

// load reads the instances, and their status before an orderly stop.
func (r *Registry) load() (list []*instance.Instance, last suspended, err error) {
	err = r.disk.All(func(name string, value []byte) error {
		if name == resumeName {
			if json.Unmarshal(value, &last) != nil {
				last = suspended{At: time.Unix(0, 0)} // too long ago, and removed with the next commit
			}
			return nil
		}
		i, err := restore(r.self, name, value)
		if err != nil {
			r.log.Error("a stored instance does not pass and is set aside: register it again", "key", name, "error", err)
			r.aside = append(r.aside, fmt.Sprintf("%q: %s", name, fault.Message(err)))
			return nil
		}
		list = append(list, i)
		return nil
	})
	return list, last, err
}

// Examine reads the registry of a peer as Open does, and changes nothing. Errors: as Open.
func Examine(dir, self string) error {
	c := Config{Dir: dir, Self: self}.withDefaults()
	return store.Examine(c.diskConfig(), func(string, []byte) error { return nil }) // a value that does not pass is set aside
}

// Aside names the stored instances that did not pass when the registry opened, with the reasons.
func (r *Registry) Aside() []string { return r.aside }

// Close releases the database and keeps its content. Reads continue to work;
// durable changes fail. A second Close has no effect.
func (r *Registry) Close() error {
	r.writing.Lock()
	defer r.writing.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	return fault.Wrap("instances.Close", r.disk.Close())
}

// Register adds an instance or replaces the instance of the same key, which
// keeps its lease, its override and the time of its first registration. An
// unchanged registration counts as a heartbeat. An empty id is generated.
// Errors: as Registration.Normalize; Exists for a strict registration of
// an existing key; PoolExhausted; Unavailable after a disk failure.
func (r *Registry) Register(reg instance.Registration, now time.Time) (instances.Registered, error) {
	const op = "instances.Register"
	r.reserve()
	if err := reg.Normalize(); err != nil {
		return instances.Registered{}, fault.Wrap(op, err)
	}
	if i, ok := r.renew(reg, now); ok {
		return outcome(i, false), nil
	}
	var out instances.Registered
	err := r.write(func(c *commit) error {
		base, created, err := c.register(reg, now)
		if err != nil {
			return err
		}
		c.put(base, func() {
			out = outcome(r.install(base, reg.Client, reg.Status == instance.StatusStarting, now), created)
		})
		return nil
	})
	return out, fault.Wrap(op, err)
}

// renew handles an unchanged registration.
func (r *Registry) renew(reg instance.Registration, now time.Time) (*instance.Instance, bool) {
	r.mu.Lock()
	defer r.unlock()
	e := r.entries[reg.Key]
	if e == nil || reg.Strict || e.Principal != reg.Principal || !e.Spec.Equal(reg.Spec) {
		return nil, false
	}
	starting := reg.Status == instance.StatusStarting
	r.advance(e, e.registered(e.Instance, starting, true, now), instances.ReasonRegistered, now)
	return e.Instance, true
}

// install shows a registration that is on disk. The caller holds writing and
// mu.
func (r *Registry) install(base *instance.Instance, client string, starting bool, now time.Time) *instance.Instance {
	e := r.entries[base.Key]
	if e == nil {
		e = &entry{client: client}
		e.state = e.registered(base, starting, false, now)
		e.Instance = r.revised(e, base, instances.ReasonRegistered, now)
		r.insert(e, now)
		return e.Instance
	}
	e.beaten = false // an application that goes on with heartbeats sends the next one soon
	e.state = e.registered(base, starting, checkedAlike(e.Instance, base), now)
	r.refresh(e, base, instances.ReasonRegistered, now)
	return e.Instance
}

// checkedAlike reports whether the check results of a hold for b.
func checkedAlike(a, b *instance.Instance) bool {
	return a.Spec.Check != nil && b.Spec.Check != nil && *a.Spec.Check == *b.Spec.Check && a.Spec.Host == b.Spec.Host && a.Spec.Port == b.Spec.Port
}

func outcome(i *instance.Instance, created bool) instances.Registered {
	return instances.Registered{Instance: i, Created: created, TTL: i.Spec.UnhealthyAfter, Interval: i.Spec.UnhealthyAfter / 3}
}

// Deregister removes an instance. Errors: NotFound; Unavailable after a disk
// failure.
func (r *Registry) Deregister(k instance.Key, now time.Time) (instances.Removal, error) {
	const op = "instances.Deregister"
	r.reserve()
	k = k.WithDefaults()
	err := r.write(func(c *commit) error {
		if c.get(k) == nil {
			return notFound("id", k.String())
		}
		c.remove(k, func() { r.drop(r.entries[k], instances.ReasonDeregistered, now) })
		return nil
	})
	if err != nil {
		return instances.Removal{}, fault.Wrap(op, err)
	}
	return instances.Removal{At: withoutMonotonic(now)}, nil
}

// SetStatus overrides the status of an instance by StatusOutOfService,
// StatusDown or StatusStarting. StatusUp and StatusUnknown end the override.
// Errors: Invalid, field "status"; NotFound; Unavailable after a disk failure.
func (r *Registry) SetStatus(k instance.Key, s instance.Status, now time.Time) (*instance.Instance, error) {
	const op = "instances.SetStatus"
	r.reserve()
	switch s {
	case instance.StatusOutOfService, instance.StatusDown, instance.StatusStarting, instance.StatusUnknown:
	case instance.StatusUp:
		s = instance.StatusUnknown
	default:
		return nil, fault.Wrap(op, fault.Invalidf("status", s.String(), "must be OUT_OF_SERVICE, DOWN, STARTING, UP or UNKNOWN"))
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
			r.refresh(e, &base, instances.ReasonOverridden, now)
			out = e.Instance
		})
		return nil
	})
	return out, fault.Wrap(op, err)
}

// Heartbeat renews leases and returns one Beat for each ref, in order. Errors
// of a Beat: NotFound; Gone, value the time.Time, for an instance removed
// within the last hour and among the last 10,000 removals.
func (r *Registry) Heartbeat(refs []instances.Ref, now time.Time) []instances.Beat {
	r.reserve()
	beats := make([]instances.Beat, len(refs))
	at := withoutMonotonic(now)
	r.mu.Lock()
	defer r.unlock()
	for n := range refs {
		e := r.find(refs[n])
		if e == nil {
			beats[n] = instances.Beat{Key: refs[n].Key, Lease: refs[n].Lease, At: at, Err: r.tombstones.missing(refs[n], now)}
			continue
		}
		r.advance(e, e.heartbeat(now), instances.ReasonHeartbeat, now)
		beats[n] = instances.Beat{
			Key: e.Key, Lease: e.Lease, Status: e.Status,
			At: at, TTL: e.unhealthyAfter, Expires: at.Add(e.unhealthyAfter),
		}
	}
	return beats
}

// Deregistered notes that the peer of an instance removed it at the request of
// this peer. Later heartbeats of the instance here fail with Gone.
func (r *Registry) Deregistered(i *instance.Instance, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tombstones.add(i, withoutMonotonic(now))
}

// missing explains the absence of an instance. The caller holds mu.
func (g tombstones) missing(ref instances.Ref, now time.Time) error {
	field, name := "lease_id", ref.Lease
	if ref.Lease == "" {
		field, name = "id", ref.Key.WithDefaults().String()
	}
	if at, ok := g.find(ref, now); ok {
		return &fault.Error{Op: "instances.Heartbeat", Kind: fault.Gone, Field: field, Value: at, Err: errGone}
	}
	return fault.Wrap("instances.Heartbeat", notFound(field, name))
}

// Sentinels of frequent errors.
var (
	errGone   = errors.New("the instance was deregistered, or removed after missed heartbeats: register it again")
	errExists = errors.New("an instance with this id is registered")
)

func notFound(field, name string) error {
	return &fault.Error{Kind: fault.NotFound, Field: field, Value: name, Err: errors.New("no instance with this name is registered at this peer")}
}

// Report notes the result of a check, and the state that follows from it: UP,
// DOWN, or StatusUnknown, which changes nothing. It reports whether an instance with a
// check has this key.
func (r *Registry) Report(k instance.Key, passing bool, found instance.Status, now time.Time) bool {
	r.reserve()
	r.mu.Lock()
	defer r.unlock()
	e := r.entries[k]
	if e == nil || !e.checked {
		return false
	}
	r.advance(e, e.withCheck(passing, found, now), instances.ReasonChecked, now)
	return true
}

// Expire marks silent instances as unhealthy and removes those silent for
// longer. It returns the time of the next such change, zero for none. Call it
// at that time or every second; an early call is cheap. See Config.Stall.
func (r *Registry) Expire(now time.Time) (next time.Time) {
	r.reserve()
	if lost := r.review(now); len(lost) > 0 {
		err := r.write(func(c *commit) error {
			c.expire(lost, now)
			return nil
		})
		if err != nil {
			r.log.Error("the disk did not accept the removal of silent instances; they return with a restart", "count", len(lost), "err", err)
		}
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if first, ok := r.queue.Min(); ok {
		next = first.wake
	}
	return next
}

// review updates all due instances and returns those to remove.
func (r *Registry) review(now time.Time) (lost []instance.Key) {
	const again = time.Second // retry of a failed removal
	r.mu.Lock()
	defer r.unlock()
	r.forgiveStall(now)
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
			r.advance(e, e.state, instances.ReasonSilent, now)
		}
		r.queue.Fix(e)
	}
}

// forgiveStall returns to all instances the time of a suspended process.
func (r *Registry) forgiveStall(now time.Time) {
	gap := now.Sub(r.lastExpire)
	r.lastExpire = now
	if r.stall == 0 || gap <= r.stall {
		return
	}
	r.log.Warn("this process was suspended; the silence of instances during that time does not count", "duration", gap)
	for _, e := range r.entries {
		e.state = e.shifted(gap, now)
	}
}

// withoutMonotonic drops the monotonic reading of a time that leaves the
// registry. The zero time stays zero.
func withoutMonotonic(t time.Time) time.Time { return t.Round(0).UTC() }
