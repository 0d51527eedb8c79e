package registry

import (
	"time"

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

// queue is a heap of entries by wake, for container/heap. Ties go by key, so that order is never chance.
type queue []*entry

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool {
	if c := q[i].wake.Compare(q[j].wake); c != 0 {
		return c < 0
	}
	return compare(q[i].Key, q[j].Key) < 0
}

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].slot, q[j].slot = i, j
}

func (q *queue) Push(x any) {
	e := x.(*entry)
	e.slot = len(*q)
	*q = append(*q, e)
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return e
}
