package registry

import (
	"time"

	"github.com/blackhole/blackhole/internal/platform/heap"
	"github.com/blackhole/blackhole/pkg/instance"
)

// entry is one instance.
type entry struct {
	*instance.Instance // as shown to readers
	state
	client string // of Registration; after a restart the principal

	// wake is the time of the next review: at most state.due. A heartbeat moves
	// state.due and leaves wake, and with it the queue, unchanged.
	wake time.Time
	slot int // position in the queue
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
	return e.Key.Compare(other.Key) < 0
}
