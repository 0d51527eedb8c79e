package protocol

import (
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/blackhole/blackhole/internal/platform/bounded"
)

// TimedSet is a bounded set whose members have a lifetime. It drops the least recently used members, and is safe for
// concurrent use.
type TimedSet[K comparable] struct{ until *lru.Cache[K, time.Time] }

// NewTimedSet returns an empty set of at most size members, size > 0.
func NewTimedSet[K comparable](size int) TimedSet[K] {
	return TimedSet[K]{bounded.Shared[K, time.Time](size)}
}

// Add adds a member until a time.
func (s TimedSet[K]) Add(k K, until time.Time) { s.until.Add(k, until) }

// Remove removes a member.
func (s TimedSet[K]) Remove(k K) { s.until.Remove(k) }

// Has reports whether a key is a member at a time.
func (s TimedSet[K]) Has(k K, now time.Time) bool {
	until, ok := s.until.Get(k)
	return ok && now.Before(until)
}
