package registry

import (
	"time"

	"github.com/blackhole/blackhole/internal/platform/heap"
	"github.com/blackhole/blackhole/pkg/instance"
)

// entry is one instance.
type entry struct {
	*instance.Instance // as it is seen now
	state

	// wake is when to look at it again: never later than state.due, but earlier when it was heard of
	// meanwhile, so that a heartbeat need not touch the queue.
	wake time.Time
	slot int // in the queue
}

// newQueue makes a heap of entries by wake. The key breaks ties, so that the
// order is deterministic.
func newQueue() *heap.Heap[*entry] {
	return heap.New((*entry).before, func(e *entry) *int { return &e.slot })
}

func (e *entry) before(other *entry) bool {
	if c := e.wake.Compare(other.wake); c != 0 {
		return c < 0
	}
	return compare(e.Key, other.Key) < 0
}
