package lessor

import (
	"time"

	"github.com/blackhole/blackhole/internal/platform/heap"
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

// queue holds leases by the deadline they were queued with. Ids break ties, so
// that equal histories give equal batches.
type queue struct{ *heap.Heap[*lease] }

func newQueues() (all [states]queue) {
	for s := range all {
		all[s] = queue{heap.New((*lease).before, func(e *lease) *int { return &e.index })}
	}
	return all
}

func (e *lease) before(other *lease) bool {
	if e.at != other.at {
		return e.at < other.at
	}
	return e.ref.ID < other.ref.ID
}

func (q queue) push(e *lease) {
	e.at = e.deadline
	q.Push(e)
}

// sink moves a lease to where its deadline belongs.
func (q queue) sink(e *lease) {
	e.at = e.deadline
	q.Fix(e)
}
