package coordtest

import (
	"container/heap"
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
)

// lessor keeps the deadlines of leases.
type lessor struct {
	known map[coord.LeaseID]*deadline
	queue deadlines
}

type deadline struct {
	lease coord.Lease
	at    time.Time // renewing moves it on
	due   time.Time // by which it is queued: at or earlier
	index int
}

func (l *lessor) granted(now time.Time, lease coord.Lease) {
	l.ended(lease.ID)
	d := &deadline{lease: lease}
	d.at = now.Add(d.ttl())
	d.due = d.at
	l.known[lease.ID] = d
	heap.Push(&l.queue, d)
}

func (l *lessor) ended(id coord.LeaseID) {
	if d := l.known[id]; d != nil {
		heap.Remove(&l.queue, d.index)
		delete(l.known, id)
	}
}

// renew gives the milliseconds that a lease lives from now on; 0 for one that is not owner's.
func (l *lessor) renew(now time.Time, owner string, id coord.LeaseID) int64 {
	d := l.known[id]
	if d == nil || d.lease.Owner != owner {
		return 0
	}
	d.at = now.Add(d.ttl())
	return d.lease.TTL
}

// due gives leases whose time has passed, as many as one Expire takes.
func (l *lessor) due(now time.Time) []coord.LeaseRef {
	const most = 512
	var refs []coord.LeaseRef
	for d := l.first(); d != nil && !d.at.After(now) && len(refs) < most; d = l.first() {
		l.ended(d.lease.ID)
		refs = append(refs, coord.LeaseRef{ID: d.lease.ID, Granted: d.lease.Granted})
	}
	return refs
}

// first gives the lease that ends first; nil when there is none.
func (l *lessor) first() *deadline {
	for len(l.queue) > 0 {
		d := l.queue[0]
		if d.due.Equal(d.at) {
			return d
		}
		d.due = d.at
		heap.Fix(&l.queue, 0)
	}
	return nil
}

func (l *lessor) remaining(now time.Time, id coord.LeaseID) int64 {
	if d := l.known[id]; d != nil {
		return max(0, d.at.Sub(now).Milliseconds())
	}
	return 0
}

func (d *deadline) ttl() time.Duration { return time.Duration(d.lease.TTL) * time.Millisecond }

// deadlines is a heap.
type deadlines []*deadline

// Len implements heap.Interface.
func (q deadlines) Len() int { return len(q) }

// Less implements heap.Interface.
func (q deadlines) Less(i, j int) bool {
	if !q[i].due.Equal(q[j].due) {
		return q[i].due.Before(q[j].due)
	}
	return q[i].lease.ID < q[j].lease.ID
}

// Swap implements heap.Interface.
func (q deadlines) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push implements heap.Interface.
func (q *deadlines) Push(x any) {
	d := x.(*deadline)
	d.index = len(*q)
	*q = append(*q, d)
}

// Pop implements heap.Interface.
func (q *deadlines) Pop() any {
	last := len(*q) - 1
	d := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return d
}
