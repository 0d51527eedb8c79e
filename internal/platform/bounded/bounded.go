// Package bounded has maps of strangers' keys with a bound: the least recently used key makes room.
package bounded

import (
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"
)

// Map returns an empty map of at most size entries, above 0, for one goroutine at a time. It calls dropped, which may be nil, with
// each entry that it drops.
func Map[K comparable, V any](size int, dropped func(K, V)) *simplelru.LRU[K, V] {
	m, err := simplelru.NewLRU(size, dropped)
	if err != nil {
		panic("bounded: " + err.Error()) // impossible: all sizes are above 0
	}
	return m
}

// Shared is a Map with a lock of its own.
func Shared[K comparable, V any](size int) *lru.Cache[K, V] {
	m, err := lru.New[K, V](size)
	if err != nil {
		panic("bounded: " + err.Error()) // impossible, as in Map
	}
	return m
}

// Buckets are token buckets by key. A key whose bucket was dropped has a full one again. Buckets are safe for concurrent use.
type Buckets[K comparable] struct {
	limit rate.Limit
	burst int

	mu    sync.Mutex // guards known
	known *simplelru.LRU[K, *rate.Limiter]
}

// NewBuckets returns at most size buckets, above 0, that each refill at limit up to burst.
func NewBuckets[K comparable](size int, limit rate.Limit, burst int) *Buckets[K] {
	return &Buckets[K]{limit: limit, burst: burst, known: Map[K, *rate.Limiter](size, nil)}
}

// Len returns the number of buckets.
func (b *Buckets[K]) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.known.Len()
}

// Of returns the bucket of a key.
func (b *Buckets[K]) Of(k K) *rate.Limiter {
	b.mu.Lock()
	defer b.mu.Unlock()
	bucket, ok := b.known.Get(k)
	if !ok {
		bucket = rate.NewLimiter(b.limit, b.burst)
		b.known.Add(k, bucket)
	}
	return bucket
}
