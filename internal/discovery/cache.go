package discovery

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/pkg/query"
)

// staleFor is how long past its time an answer is kept for the case that the network fails.
const staleFor = time.Hour

// cached is one answer and what would make it wrong. It is immutable but for epoch, which
// the cache's mutex guards.
type cached struct {
	plan     *query.Plan
	answer   *query.Answer
	at       time.Time
	fresh    time.Duration
	excluded []peer.ID // providers that the search left out as unreachable
	seq      uint64    // of the index, at or before the search
	epoch    uint64    // of the prober, when the answer was last seen to agree with it
	release  func()    // ends following the answer's topics
}

// cache holds answers under their whole canonical question. It is bounded by entries; an
// answer that a change would alter is dropped as the change arrives.
type cache struct {
	ttl     time.Duration // of an answer with results
	mu      sync.Mutex    // guards entries and cached.epoch
	entries *simplelru.LRU[string, *cached]
}

func newCache(size int, ttl time.Duration) *cache {
	c := &cache{ttl: ttl}
	entries, err := simplelru.NewLRU(size, func(_ string, e *cached) { e.release() })
	if err != nil {
		panic("discovery: " + err.Error()) // impossible: Config refuses a size below 1
	}
	c.entries = entries
	return c
}

// get gives a fresh answer that agrees with the prober, or nil. The key is not kept.
func (c *cache) get(key []byte, now time.Time, p Prober) *cached {
	epoch := p.Epoch()
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries.Get(string(key))
	if !ok || now.Sub(e.at) >= e.fresh {
		return nil
	}
	if e.epoch != epoch {
		if !e.agrees(p) {
			c.entries.Remove(string(key))
			return nil
		}
		e.epoch = epoch
	}
	return e
}

// stale gives an answer whose time has passed, for when nothing better can be had.
func (c *cache) stale(key string, now time.Time) *cached {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.entries.Peek(key); ok && now.Sub(e.at) < e.fresh+staleFor {
		return e
	}
	return nil
}

// put keeps an answer in place of an older one to the same question.
func (c *cache) put(e *cached) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries.Remove(e.plan.Key()) // Add alone would not release what it replaces
	c.entries.Add(e.plan.Key(), e)
}

// invalidate drops the answers that a change would alter.
func (c *cache) invalidate(ch index.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range c.entries.Keys() {
		e, _ := c.entries.Peek(key)
		if ch.Seq > e.seq && affects(e.plan, ch) {
			c.entries.Remove(key)
		}
	}
}

// remove drops one answer, if it is still the one kept.
func (c *cache) remove(e *cached) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now, ok := c.entries.Peek(e.plan.Key()); ok && now == e {
		c.entries.Remove(e.plan.Key())
	}
}

// clear drops everything.
func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries.Purge()
}

// agrees reports whether no provider of the answer was found unreachable since, and none
// that was left out for it came back.
func (e *cached) agrees(p Prober) bool {
	if e.plan.Query().Health == query.HealthAny {
		return true
	}
	for _, id := range e.excluded {
		if m, ok := p.Measured(id); !ok || m.Reachable {
			return false
		}
	}
	for _, r := range e.answer.Results {
		if m, ok := p.Measured(r.Record.Name().Provider); ok && !m.Reachable {
			return false
		}
	}
	return true
}
