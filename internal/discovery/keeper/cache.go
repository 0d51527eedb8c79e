package keeper

import (
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

// newCache returns a cache of at most size values, size > 0. It drops the least recently used ones, and has its own lock.
func newCache[K comparable, V any](size int) *lru.Cache[K, V] {
	c, err := lru.New[K, V](size)
	if err != nil {
		panic("keeper: " + err.Error()) // impossible: all sizes are positive constants
	}
	return c
}

// timedSet is a bounded set whose members have a lifetime. It drops the least recently used members, and is safe for
// concurrent use.
type timedSet[K comparable] struct{ until *lru.Cache[K, time.Time] }

func newTimedSet[K comparable](size int) timedSet[K] {
	return timedSet[K]{newCache[K, time.Time](size)}
}

func (s timedSet[K]) add(k K, until time.Time) { s.until.Add(k, until) }

func (s timedSet[K]) remove(k K) { s.until.Remove(k) }

func (s timedSet[K]) has(k K, now time.Time) bool {
	until, ok := s.until.Get(k)
	return ok && now.Before(until)
}
