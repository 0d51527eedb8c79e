package registry

import (
	"encoding/hex"
	"io"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// request is a change that waits for a commit.
type request struct {
	stage func(*commit) error
	err   error // guarded by Registry.writing, as done
	done  bool
}

// line is those who wait. Each of them is a call that has not returned, which bounds it.
type line struct {
	mu   sync.Mutex
	list []*request
}

func (l *line) add(q *request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, q)
}

func (l *line) take() []*request {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.list
	l.list = nil
	return list
}

// commit is what is written with one fsync: changes in order, each of which sees those before it.
type commit struct {
	r       *Registry
	edits   []store.Edit
	staged  map[instance.Key]*instance.Instance // as it will be; nil: gone
	grown   int                                 // by how many there will be more
	effects []func()                            // once it is on disk, with mu held
}

// write has stage executed in the next commit, and returns when that is on disk and visible. Of
// those who wait, whoever gets hold of writing first commits for all.
func (r *Registry) write(stage func(*commit) error) error {
	q := &request{stage: stage}
	r.queued.add(q)
	r.writing.Lock()
	defer r.writing.Unlock()
	if !q.done {
		r.commit(r.queued.take())
	}
	return q.err
}

// commit executes requests and writes them. The caller holds writing.
func (r *Registry) commit(requests []*request) {
	if r.closed {
		finish(requests, fault.New("", fault.Unavailable, "the registry is closed"))
		return
	}
	c := &commit{r: r, staged: make(map[instance.Key]*instance.Instance)}
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

// flush writes what is staged, and moves the floor when it is time.
func (c *commit) flush() error {
	r := c.r
	floor, now := r.ledger.Floor(), r.revision.Load()
	if floor-now < floorStep/2 {
		floor = now + floorStep
	}
	return r.ledger.Commit(c.edits, floor)
}

// reserve sees to it that there are revisions left to give out without the disk.
func (r *Registry) reserve() {
	if r.ledger.Floor()-r.revision.Load() < floorStep/2 {
		_ = r.write(func(*commit) error { return nil }) // without a disk nothing is durable, nor is the counter
	}
}

// get gives an instance as it will be after what is staged so far, or nil.
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
	c.edits = append(c.edits, keep(i))
	c.effects = append(c.effects, effect)
}

func (c *commit) remove(k instance.Key, effect func()) {
	c.grown--
	c.staged[k] = nil
	c.edits = append(c.edits, forget(k))
	c.effects = append(c.effects, effect)
}

// register gives what a registration makes of the instance there is, if any.
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
		next.Spec = reg.Spec
		return &next, false, nil
	case len(c.r.entries)+c.grown >= c.r.max:
		return nil, false, fault.New("", fault.LimitReached, "%d instances are registered with this peer, which is all it takes", c.r.max)
	}
	lease, err := c.r.newName("lease-", 16)
	if err != nil {
		return nil, false, err
	}
	return &instance.Instance{Key: reg.Key, Spec: reg.Spec, RegisteredAt: wall(now), Lease: lease, Peer: c.r.self}, true, nil
}

// newID makes up an id that is free.
func (c *commit) newID(k instance.Key) (string, error) {
	for range 16 {
		id, err := c.r.newName(k.Service+"-", 4)
		if err != nil {
			return "", err
		}
		k.ID = id
		if c.get(k) == nil {
			return id, nil
		}
	}
	return "", fault.New("", fault.Internal, "the source of randomness repeats itself")
}

// newName gives prefix and n random bytes in hexadecimal. The caller holds writing.
func (r *Registry) newName(prefix string, n int) (string, error) {
	b := make([]byte, n)
	if _, err := io.ReadFull(r.random, b); err != nil {
		return "", fault.As("", fault.Internal, err)
	}
	return prefix + hex.EncodeToString(b), nil
}

// expire removes instances at once, and from disk with the commit. One that a change before this
// one is about, or that was heard of since, lives.
func (c *commit) expire(keys []instance.Key, now time.Time) {
	r := c.r
	r.mu.Lock()
	defer r.unlock()
	for _, k := range keys {
		e := r.entries[k]
		if _, staged := c.staged[k]; staged || e == nil || !e.lost(now) {
			continue
		}
		r.drop(e, ReasonLost, now)
		c.edits = append(c.edits, forget(k))
	}
}
