package discovery

import (
	"math"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/platform/bounded"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// staleFor is the further time for which an expired answer serves during a network failure.
const staleFor = time.Hour

// heardFor is the time for which an answer of other keepers serves without a new question to them. Live updates change
// it meanwhile, but gossip may lose one, such as a withdrawal. So no answer is wrong for longer.
const heardFor = 15 * time.Second

// cached is one answer with the state of its inputs. It is immutable except for renewed and outdated, guarded by the
// cache's mutex.
type cached struct {
	plan     *queries.Plan
	answer   *ranked
	at       time.Time
	fresh    time.Duration
	heard    bool   // the answer is from other keepers; else it serves only while this peer keeps the cells
	renewed  bool   // its early renewal has begun
	outdated bool   // it serves no more, and follows its topics until the next answer does
	seq      uint64 // of the index, at or before the search
	epoch    uint64 // of the measurements, at or before the search
	custody  uint64 // epoch of the keepers, at or before the search
	release  func() // unfollows the answer's topics
}

// cache holds a bounded number of answers by their canonical question. An answer that a change would alter serves no
// more, but its topics stay followed: a peer that leaves a topic for the moment of the next question misses the updates of
// that moment, and its neighbours refuse it a place in their mesh for a while.
type cache struct {
	ttl      time.Duration // of an answer with results
	searches *searches     // that fill it
	mu       sync.Mutex    // guards entries, cached.renewed and cached.outdated
	entries  *simplelru.LRU[string, *cached]
	keepers  dated // nil: their answers never become outdated
}

// dated are Keepers whose answers can become outdated.
type dated interface {
	// Epoch grows when earlier answers may lack changes: this peer was cut off, or keepers joined or returned.
	Epoch() uint64
	// Holds reports whether this peer now keeps all cells of the plan, and so receives their changes.
	Holds(p *queries.Plan) bool
}

// stands reports whether changes still reach an answer. This peer's own answers follow no topic.
func (c *cache) stands(e *cached) bool { return e.heard || c.keepers == nil || c.keepers.Holds(e.plan) }

// custody returns the epoch of the keepers.
func (c *cache) custody() uint64 {
	if c.keepers == nil {
		return 0
	}
	return c.keepers.Epoch()
}

func newCache(size int, ttl time.Duration, keepers Keepers) *cache {
	c := &cache{ttl: ttl}
	c.keepers, _ = keepers.(dated)
	entries := bounded.Map(size, func(_ string, e *cached) { e.release() })
	c.entries = entries
	return c
}

// get returns a fresh answer of the keepers' epoch, or nil. It does not retain key. An answer of an earlier epoch
// remains for network failures. With renew the caller asks the keepers again, so that a question in frequent use never
// waits for them: once for each answer, in the last third of its time.
func (c *cache) get(key []byte, now time.Time) (e *cached, renew bool) {
	custody := c.custody()
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries.Get(string(key))
	if !ok || e.outdated || now.Sub(e.at) >= e.fresh || e.custody != custody {
		return nil, false
	}
	renew = e.heard && !e.renewed && e.fresh > negativeTTL && now.Sub(e.at) >= e.fresh*2/3
	e.renewed = e.renewed || renew
	return e, renew
}

// stale returns an expired answer, for network failures.
func (c *cache) stale(key string, now time.Time) *cached {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.entries.Peek(key); ok && !e.outdated && now.Sub(e.at) < e.fresh+staleFor {
		return e
	}
	return nil
}

// put stores an answer, in place of an older one for the same question.
func (c *cache) put(e *cached) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries.Remove(e.plan.Key()) // Add alone would not call release for the old answer
	c.entries.Add(e.plan.Key(), e)
}

// invalidate ends the use of the answers that a change alters.
func (c *cache) invalidate(ch index.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries.Values() {
		e.outdated = e.outdated || ch.Seq > e.seq && ch.Concerns(e.plan)
	}
}

// forget ends the use of the answers that a record concerns: what peers know of it has changed.
func (c *cache) forget(r *records.Record) {
	c.invalidate(index.Change{Seq: math.MaxUint64, Old: r, New: r})
}

// drop ends the use of one answer.
func (c *cache) drop(e *cached) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.outdated = true
}

// dropAll ends the use of all answers.
func (c *cache) dropAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries.Values() {
		e.outdated = true
	}
}

// unfollow gives back the topics of answers that serve no more. Their next questions follow them again.
func (c *cache) unfollow(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries.Values() {
		if e.outdated || now.Sub(e.at) >= e.fresh {
			e.release()
		}
	}
}

// close gives back all topics.
func (c *cache) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries.Purge()
}
