package registry

import (
	"encoding/hex"
	"io"
	"time"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/platform/share"
	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// request is a change waiting for a commit.
type request struct {
	stage func(*commit) error
	err   error // guarded by Registry.writing, like done
	done  bool
}

// commit is a batch of changes for one fsync. Each change sees the earlier
// ones.
type commit struct {
	r       *Registry
	edits   []store.Edit
	staged  map[instance.Key]*instance.Instance // state after the commit; nil: removed
	grown   int                                 // growth of the number of instances
	added   map[string]int                      // new instances of each client
	effects []func()                            // run after the fsync with mu held
}

// write runs stage in the next commit and returns as soon as that commit is on
// disk and visible. The first waiting caller to get writing commits for all.
func (r *Registry) write(stage func(*commit) error) error {
	q := &request{stage: stage}
	r.queueing.Lock()
	r.waiting = append(r.waiting, q)
	r.queueing.Unlock()
	r.writing.Lock()
	defer r.writing.Unlock()
	if !q.done {
		r.queueing.Lock()
		requests := r.waiting
		r.waiting = nil
		r.queueing.Unlock()
		r.commit(requests)
	}
	return q.err
}

// commit runs requests and writes their changes. The caller holds writing.
func (r *Registry) commit(requests []*request) {
	if r.closed {
		finish(requests, fault.New("", fault.Unavailable, "the registry is closed"))
		return
	}
	c := &commit{r: r, staged: make(map[instance.Key]*instance.Instance), added: make(map[string]int)}
	for _, q := range requests {
		q.err = q.stage(c)
	}
	err := c.flush()
	finish(requests, err)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.unlock()
	for _, effect := range c.effects {
		effect()
	}
}

func finish(requests []*request, err error) {
	for _, q := range requests {
		q.done = true
		if q.err == nil {
			q.err = err
		}
	}
}

// flush writes the staged changes, and moves the floor in time.
func (c *commit) flush() error {
	r := c.r
	floor, now := r.disk.Floor(), r.revision.Load()
	if floor-now < floorStep/2 {
		floor = now + floorStep
	}
	return r.disk.Commit(c.edits, floor)
}

// reserve keeps revisions available for changes without a disk write.
func (r *Registry) reserve() {
	if r.disk.Floor()-r.revision.Load() < floorStep/2 {
		_ = r.write(func(*commit) error { return nil }) // without a disk neither changes nor the counter are durable
	}
}

// get returns an instance in its state after the staged changes, or nil.
func (c *commit) get(k instance.Key) *instance.Instance {
	if i, ok := c.staged[k]; ok {
		return i
	}
	c.r.mu.RLock()
	defer c.r.mu.RUnlock()
	if e := c.r.entries[k]; e != nil {
		return e.Instance
	}
	return nil
}

func (c *commit) put(i *instance.Instance, effect func()) {
	if c.get(i.Key) == nil {
		c.grown++
	}
	c.staged[i.Key] = i
	c.edits = append(c.edits, putEdit(i))
	c.effects = append(c.effects, effect)
}

func (c *commit) remove(k instance.Key, effect func()) {
	c.grown--
	c.staged[k] = nil
	c.edits = append(c.edits, removeEdit(k))
	c.effects = append(c.effects, effect)
}

// register returns the result of a registration on the present instance, if
// any.
func (c *commit) register(reg instance.Registration, now time.Time) (i *instance.Instance, created bool, err error) {
	if reg.ID == "" {
		if reg.ID, err = c.newID(reg.Key); err != nil {
			return nil, false, err
		}
	}
	last := c.get(reg.Key)
	switch {
	case last != nil && reg.Strict:
		return nil, false, &fault.Error{Kind: fault.Exists, Field: "id", Value: reg.ID, Err: errExists}
	case last != nil:
		next := *last
		next.Spec, next.Principal = reg.Spec, reg.Principal
		return &next, false, nil
	}
	own, free := c.r.owned[reg.Client]+c.added[reg.Client], c.r.max-len(c.r.entries)-c.grown
	switch {
	case free <= 0:
		return nil, false, fault.Exhausted("", "instances", false, "this peer has %d instances, its limit: deregister one or raise agent.limits.instances", c.r.max)
	case reg.Client != "" && !share.Fits(uint64(own), 1, uint64(free)):
		return nil, false, fault.Exhausted("", "instances", true, "this client has %d of the %d instances of this peer, and the rest is for others: deregister one or raise agent.limits.instances", own, c.r.max)
	}
	c.added[reg.Client]++
	lease, err := newName(c.r.random, "lease-", 16)
	if err != nil {
		return nil, false, err
	}
	return &instance.Instance{
		Key: reg.Key, Spec: reg.Spec, RegisteredAt: withoutMonotonic(now), Lease: lease, Peer: c.r.self, Principal: reg.Principal,
	}, true, nil
}

// newID generates a free id.
func (c *commit) newID(k instance.Key) (string, error) {
	for range 16 {
		id, err := newName(c.r.random, k.Service+"-", 4)
		if err != nil {
			return "", err
		}
		k.ID = id
		if c.get(k) == nil {
			return id, nil
		}
	}
	return "", fault.New("", fault.Internal, "the random source repeats itself")
}

// newName returns prefix and n random bytes in hexadecimal.
func newName(random io.Reader, prefix string, n int) (string, error) {
	b := make([]byte, n)
	if _, err := io.ReadFull(random, b); err != nil {
		return "", fault.As("", fault.Internal, err)
	}
	return prefix + hex.EncodeToString(b), nil
}

// expire removes instances from memory at once, and from disk with the commit.
// An instance with a staged change or a recent heartbeat stays.
func (c *commit) expire(keys []instance.Key, now time.Time) {
	r := c.r
	r.mu.Lock()
	defer r.unlock()
	for _, k := range keys {
		e := r.entries[k]
		if _, staged := c.staged[k]; staged || e == nil || !e.lost(now) {
			continue
		}
		r.drop(e, instances.ReasonLost, now)
		c.edits = append(c.edits, removeEdit(k))
	}
}
