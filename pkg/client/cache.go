package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Bounds of the cache.
const (
	cacheTTL      = 30 * time.Second // how long an answer holds that no watch keeps up to date
	cacheIdle     = 5 * time.Minute  // after which nobody is thought to ask again
	maxCached     = 256              // questions, each with a watch
	retryInterval = time.Second      // longest time to wait, and least time between attempts, when there is an old answer
)

// cache has the answers that were asked for at hand. A watch keeps each up to date; where the peer
// lets none be, an answer holds for cacheTTL. While the peer cannot be reached the last answer
// is given, with its age.
type cache struct {
	fetch  func(ctx context.Context, q instance.Query) (instance.Result, error)
	follow func(ctx context.Context, q instance.Query, give func(r instance.Result, lost error) bool) error
	clock  Clock

	ctx   context.Context
	stop  context.CancelFunc
	tasks sync.WaitGroup

	mu      sync.Mutex // guards entries, and what entries say they are used
	entries map[cacheKey]*entry
	sweeps  bool
}

// cacheKey tells queries apart.
type cacheKey struct {
	instance.Name
	selector string
}

// entry is what is known of one question.
type entry struct {
	query    instance.Query
	stop     context.CancelFunc
	used     time.Duration // guarded by the cache
	ready    chan struct{} // closed when the watch has said something, or that it will not
	fetching chan struct{} // capacity 1: full while somebody asks the peer

	mu          sync.Mutex // guards what follows
	result      *instance.Result
	watched     bool          // a watch keeps it up to date
	at          time.Duration // when known came
	currentAt   time.Duration // when known was the present for the last time, unless it is watched
	unreachable error         // why the peer cannot be reached; nil: it can, as far as anybody knows
	retryAt     time.Duration // when to ask a peer that is lost again
}

func newCache(fetch func(context.Context, instance.Query) (instance.Result, error),
	follow func(context.Context, instance.Query, func(instance.Result, error) bool) error, clock Clock,
) *cache {
	c := &cache{fetch: fetch, follow: follow, clock: clock, entries: make(map[cacheKey]*entry)}
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c
}

// Discover gives the instances of a service, out of memory if it was asked for lately: a watch keeps
// the answer up to date. When the peer cannot be reached the answer is the last one, Stale and
// with its Age. A Linearizable query always goes to the peer.
//
// Errors: those of instance.Catalog; Unavailable when the peer cannot be reached and has never answered.
func (s *Services) Discover(ctx context.Context, q instance.Query) (instance.Result, error) {
	if q.Consistency != instance.Local {
		return s.agent.Discover(ctx, q)
	}
	r, err := s.cache.get(ctx, q)
	return r, fault.Wrap("client.Services.Discover", err)
}

func (c *cache) get(ctx context.Context, q instance.Query) (instance.Result, error) {
	if q.Namespace == "" {
		q.Namespace = instance.DefaultNamespace
	}
	now := c.clock()
	e, err := c.entry(q, now)
	if err != nil {
		return instance.Result{}, err
	}
	if r, ok := e.fresh(now); ok {
		return r, nil
	}
	select {
	case <-e.ready:
	case <-ctx.Done():
		return instance.Result{}, ctx.Err()
	}
	now = c.clock()
	if r, ok := e.fresh(now); ok {
		return r, nil
	}
	return c.refresh(ctx, e)
}

// entry finds or begins an entry.
func (c *cache) entry(q instance.Query, now time.Duration) (*entry, error) {
	key := cacheKey{q.Name, q.Canonical()}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[key]; e != nil {
		e.used = now
		return e, nil
	}
	if err := q.Name.Validate(); err != nil {
		return nil, err
	}
	if _, err := q.Compile(); err != nil {
		return nil, err
	}
	if c.ctx.Err() != nil {
		return nil, errClosed()
	}
	if len(c.entries) >= maxCached {
		c.drop(c.oldest())
	}
	e := &entry{query: q, used: now, ready: make(chan struct{}), fetching: make(chan struct{}, 1)}
	var watching context.Context
	watching, e.stop = context.WithCancel(c.ctx)
	c.entries[key] = e
	c.tasks.Go(func() { c.maintain(watching, e) })
	if !c.sweeps {
		c.sweeps = true
		c.tasks.Go(c.sweep)
	}
	return e, nil
}

// mergeContacts is the entry that nobody asked for the longest.
func (c *cache) oldest() (oldest cacheKey) {
	first := true
	for k, e := range c.entries {
		if first || e.used < c.entries[oldest].used {
			oldest, first = k, false
		}
	}
	return oldest
}

func (c *cache) drop(k cacheKey) {
	c.entries[k].stop()
	delete(c.entries, k)
}

// sweep drops entries that nobody asks for, until there are none.
func (c *cache) sweep() {
	for {
		err := pause(c.ctx, cacheIdle/5)
		now := c.clock()
		c.mu.Lock()
		for k, e := range c.entries {
			if err != nil || now-e.used >= cacheIdle {
				c.drop(k)
			}
		}
		if len(c.entries) == 0 {
			c.sweeps = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
	}
}

// close ends all watches and waits for them.
func (c *cache) close() {
	c.mu.Lock()
	c.stop()
	c.mu.Unlock()
	c.tasks.Wait()
}

// maintain keeps an entry up to date. A watch that the peer refuses is tried again when its answers do
// not hold any more.
func (c *cache) maintain(ctx context.Context, e *entry) {
	tried := sync.OnceFunc(func() { close(e.ready) })
	defer tried()
	for {
		_ = c.follow(ctx, e.query, func(r instance.Result, lost error) bool {
			e.receive(r, lost, c.clock())
			tried()
			return true
		}) // whoever asks the peer hears why
		e.watchEnded(nil, c.clock())
		tried()
		if pause(ctx, cacheTTL) != nil {
			return
		}
	}
}

// receive takes what a watch gives.
func (e *entry) receive(r instance.Result, lost error, now time.Duration) {
	if lost != nil {
		e.watchEnded(lost, now)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.result, e.watched, e.at, e.unreachable = &r, true, now, nil
}

// watchEnded notes that nothing keeps an entry up to date any more.
func (e *entry) watchEnded(lost error, now time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.watched {
		e.currentAt = now
	}
	e.watched, e.unreachable, e.retryAt = false, lost, now+retryInterval
}

// fresh gives the answer if the peer need not be asked.
func (e *entry) fresh(now time.Duration) (instance.Result, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.result == nil {
		return instance.Result{}, false
	}
	return e.withAge(now), e.watched || now-e.currentAt < cacheTTL || e.unreachable != nil && now < e.retryAt
}

// withAge is what is known, and how old it is by now.
func (e *entry) withAge(now time.Duration) instance.Result {
	r := *e.result
	if r.Stale { // the peer has lost contact
		r.Age += now - e.at
	}
	if !e.watched && e.unreachable != nil {
		r.Stale, r.Reason, r.Age = true, unreachableReason(e.unreachable), max(r.Age, now-e.currentAt)
	}
	return r
}

// refresh asks the peer, one at a time for each entry.
func (c *cache) refresh(ctx context.Context, e *entry) (instance.Result, error) {
	select {
	case e.fetching <- struct{}{}:
	case <-ctx.Done():
		return instance.Result{}, ctx.Err()
	}
	defer func() { <-e.fetching }()
	if r, ok := e.fresh(c.clock()); ok { // whoever was before has asked
		return r, nil
	}
	asking, cancel := ctx, context.CancelFunc(func() {})
	if e.hasResult() {
		asking, cancel = context.WithTimeout(ctx, retryInterval)
	}
	defer cancel()
	r, err := c.fetch(asking, e.query)
	return e.fetched(r, err, ctx.Err() != nil, c.clock())
}

// hasResult reports whether there is an answer, however old.
func (e *entry) hasResult() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.result != nil
}

// fetched takes the peer's answer. Where there is none because it cannot be reached, the last one is
// given to who still waits.
func (e *entry) fetched(r instance.Result, err error, over bool, now time.Duration) (instance.Result, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case err == nil && !e.watched:
		e.result, e.at, e.currentAt, e.unreachable = &r, now, now, nil
		return r, nil
	case err == nil, over:
		return r, err
	case errors.Is(err, fault.Unavailable) || errors.Is(err, fault.Timeout):
		e.unreachable, e.retryAt = err, now+retryInterval
		if e.result != nil {
			return e.withAge(now), nil
		}
	}
	return r, err
}
