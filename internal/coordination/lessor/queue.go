package lessor

import (
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/platform/heap"
)

// lease is a lease with its deadline.
type lease struct {
	id       coord.LeaseID
	granted  uint64 // as of coord.Lease
	ttl      time.Duration
	deadline time.Duration // only moves forward
	at       time.Duration // the queued deadline: deadline or an earlier one
	index    int           // in its queue
	state    state
}

// state is the expiry state of a lease.
type state int

const (
	living   state = iota
	awaited        // expired, and others wait for its end
	overdue        // expired
	expiring       // its end is proposed
	states
)

// queue orders leases by queued deadline, then by id, so that equal histories give equal batches.
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
	return e.id < other.id
}

func (q queue) push(e *lease) {
	e.at = e.deadline
	q.Push(e)
}

// sink moves a lease to its deadline's position.
func (q queue) sink(e *lease) {
	e.at = e.deadline
	q.Fix(e)
}
