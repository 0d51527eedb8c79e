package client

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Bounds of the cache of answers.
const (
	cacheTTL      = 30 * time.Second // lifetime of an answer without a watch
	cacheIdle     = 5 * time.Minute  // time without a query until an entry is dropped
	maxCached     = 256              // queries, each with a watch
	retryInterval = time.Second      // timeout of an attempt, and time between attempts, while an old answer exists
)

// cache keeps the answers to recent queries. A watch updates each answer; if the peer refuses the
// watch, an answer is valid for cacheTTL. While the peer is unreachable, the cache returns the
// last answer with its age.
type cache struct {
	fetch  func(ctx context.Context, q instance.Query) (instance.Result, error)
	follow func(ctx context.Context, q instance.Query, give func(r instance.Result, lost error) bool) error
	clock  func() time.Duration

	ctx   context.Context
	stop  context.CancelFunc
	tasks sync.WaitGroup

	mu      sync.Mutex // guards entries, sweeps and entry.used
	entries map[cacheKey]*entry
	sweeps  bool
}

// cacheKey identifies a query.
type cacheKey struct {
	instance.Name
	selector string
}

// entry is the cached answer to one query.
type entry struct {
	query    instance.Query
	stop     context.CancelFunc
	used     time.Duration // time of the last query, guarded by the cache
	ready    chan struct{} // closed after the first result or failure of the watch
	fetching chan struct{} // capacity 1: full during a request to the peer

	mu          sync.Mutex // guards the fields below
	result      *instance.Result
	watched     bool          // a watch updates result
	at          time.Duration // arrival of result
	currentAt   time.Duration // last certain time of result; unused while watched
	unreachable error         // the last failure to reach the peer, nil after a success
	retryAt     time.Duration // next attempt to reach the peer
}

func newCache(fetch func(context.Context, instance.Query) (instance.Result, error),
	follow func(context.Context, instance.Query, func(instance.Result, error) bool) error, clock func() time.Duration,
) *cache {
	c := &cache{fetch: fetch, follow: follow, clock: clock, entries: make(map[cacheKey]*entry)}
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c
}

// Discover returns the instances of a service. It answers a repeated query from memory, where a
// watch updates the answer. For an unreachable peer, it returns the last answer, Stale and
// with its Age. A Linearizable query always goes to the peer.
//
// Errors: the errors of instance.Catalog; Unavailable if the peer is unreachable and has never
// answered the query.
func (s *Services) Discover(ctx context.Context, q instance.Query) (instance.Result, error) {
	if q.Consistency != instance.Local {
		return s.agent.Discover(ctx, q)
	}
	r, err := s.cache.get(ctx, q)
	return r, fault.Wrap("client.Services.Discover", err)
}

func (c *cache) get(ctx context.Context, q instance.Query) (instance.Result, error) {
	q.Namespace = cmp.Or(q.Namespace, instance.DefaultNamespace)
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

// entry returns the entry of a query. A new entry starts a watch.
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

// oldest returns the least recently used entry.
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

// sweep drops idle entries, and returns after the last entry.
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

// close ends all watches and waits for their end.
func (c *cache) close() {
	c.mu.Lock()
	c.stop()
	c.mu.Unlock()
	c.tasks.Wait()
}

// maintain updates an entry by a watch. It repeats a refused watch after cacheTTL, when the
// entry expires.
func (c *cache) maintain(ctx context.Context, e *entry) {
	ready := sync.OnceFunc(func() { close(e.ready) })
	defer ready()
	for {
		_ = c.follow(ctx, e.query, func(r instance.Result, lost error) bool {
			e.receive(r, lost, c.clock())
			ready()
			return true
		}) // a query of the peer returns the cause
		e.watchEnded(nil, c.clock())
		ready()
		if pause(ctx, cacheTTL) != nil {
			return
		}
	}
}

// receive stores a result of the watch, or the loss of the peer.
func (e *entry) receive(r instance.Result, lost error, now time.Duration) {
	if lost != nil {
		e.watchEnded(lost, now)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.result, e.watched, e.at, e.unreachable = &r, true, now, nil
}

// watchEnded notes the end of the watch.
func (e *entry) watchEnded(lost error, now time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.watched {
		e.currentAt = now
	}
	e.watched, e.unreachable, e.retryAt = false, lost, now+retryInterval
}

// fresh returns the result, and whether it is valid without a request to the peer.
func (e *entry) fresh(now time.Duration) (instance.Result, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.result == nil {
		return instance.Result{}, false
	}
	return e.withAge(now), e.watched || now-e.currentAt < cacheTTL || e.unreachable != nil && now < e.retryAt
}

// withAge returns the result with its current age.
func (e *entry) withAge(now time.Duration) instance.Result {
	r := *e.result
	if r.Stale { // the peer itself has lost its group
		r.Age += now - e.at
	}
	if !e.watched && e.unreachable != nil {
		r.Stale, r.Reason, r.Age = true, unreachableReason(e.unreachable), max(r.Age, now-e.currentAt)
	}
	return r
}

// refresh requests the answer from the peer, with one request at a time for each entry.
func (c *cache) refresh(ctx context.Context, e *entry) (instance.Result, error) {
	select {
	case e.fetching <- struct{}{}:
	case <-ctx.Done():
		return instance.Result{}, ctx.Err()
	}
	defer func() { <-e.fetching }()
	if r, ok := e.fresh(c.clock()); ok { // another caller has just refreshed it
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

// hasResult reports whether the entry has a result of any age.
func (e *entry) hasResult() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.result != nil
}

// fetched stores the answer of the peer. If the peer is unreachable, it returns the last result
// instead, unless the caller's context is over.
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
