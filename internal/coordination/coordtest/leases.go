package coordtest

import (
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/internal/platform/heap"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// lessor keeps the deadlines of leases.
type lessor struct {
	known map[coord.LeaseID]*deadline
	queue *heap.Heap[*deadline]
}

func newLessor() lessor {
	queue := heap.New((*deadline).before, func(d *deadline) *int { return &d.index })
	return lessor{known: map[coord.LeaseID]*deadline{}, queue: queue}
}

type deadline struct {
	lease coord.Lease
	at    time.Time // renewing moves it on
	due   time.Time // position in the queue: at, or earlier
	index int
}

func (l *lessor) granted(now time.Time, lease coord.Lease) {
	l.ended(lease.ID)
	d := &deadline{lease: lease}
	d.at = now.Add(d.ttl())
	d.due = d.at
	l.known[lease.ID] = d
	l.queue.Push(d)
}

func (l *lessor) ended(id coord.LeaseID) {
	if d := l.known[id]; d != nil {
		l.queue.Remove(d)
		delete(l.known, id)
	}
}

// renew returns the new time to live of an owner's lease in milliseconds, or 0.
func (l *lessor) renew(now time.Time, owner string, id coord.LeaseID) int64 {
	d := l.known[id]
	if d == nil || !principals.MayUse(d.lease.Owner, owner) {
		return 0
	}
	d.at = now.Add(d.ttl())
	return d.lease.TTL
}

// due returns leases past their deadline, at most one Expire's worth.
func (l *lessor) due(now time.Time) []*coordv1.LeaseRef {
	const most = 512
	var refs []*coordv1.LeaseRef
	for d := l.first(); d != nil && !d.at.After(now) && len(refs) < most; d = l.first() {
		l.ended(d.lease.ID)
		refs = append(refs, &coordv1.LeaseRef{Id: int64(d.lease.ID), Granted: d.lease.Granted})
	}
	return refs
}

// first returns the lease with the earliest deadline, or nil.
func (l *lessor) first() *deadline {
	for {
		d, ok := l.queue.Min()
		if !ok || d.due.Equal(d.at) {
			return d
		}
		d.due = d.at
		l.queue.Fix(d)
	}
}

func (l *lessor) remaining(now time.Time, id coord.LeaseID) int64 {
	if d := l.known[id]; d != nil {
		return max(0, d.at.Sub(now).Milliseconds())
	}
	return 0
}

func (d *deadline) ttl() time.Duration { return time.Duration(d.lease.TTL) * time.Millisecond }

func (d *deadline) before(other *deadline) bool {
	if !d.due.Equal(other.due) {
		return d.due.Before(other.due)
	}
	return d.lease.ID < other.lease.ID
}
