package lessor

import (
	"container/heap"
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
)

// lease is a lease with its deadline.
type lease struct {
	ref      coord.LeaseRef
	ttl      time.Duration
	deadline time.Duration // only ever moves on
	at       time.Duration // deadline by which it is queued: deadline or an earlier one
	index    int           // in its queue
	state    state
}

// state is what is to become of a lease.
type state int

const (
	living   state = iota
	awaited        // its time has passed, and others wait for its end
	overdue        // its time has passed
	expiring       // its end is being agreed on
	states
)

// queue holds leases by the deadline they were queued with. Its methods keep it a heap; they are
// those of container/heap, to be used through push, remove and sink.
type queue []*lease

func (q *queue) push(e *lease) {
	e.at = e.deadline
	heap.Push(q, e)
}

func (q *queue) remove(e *lease) { heap.Remove(q, e.index) }

// sink moves a lease to where its deadline belongs.
func (q *queue) sink(e *lease) {
	e.at = e.deadline
	heap.Fix(q, e.index)
}

// Len implements heap.Interface.
func (q queue) Len() int { return len(q) }

// Less implements heap.Interface. Ids break ties, so that equal histories give equal batches.
func (q queue) Less(i, j int) bool {
	if q[i].at != q[j].at {
		return q[i].at < q[j].at
	}
	return q[i].ref.ID < q[j].ref.ID
}

// Swap implements heap.Interface.
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	e := x.(*lease)
	e.index = len(*q)
	*q = append(*q, e)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return e
}
