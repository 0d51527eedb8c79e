package publisher

import (
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// leaseState is the lease of the published entries.
type leaseState struct {
	id     coord.LeaseID // 0: none
	proven bool          // the lease belongs to this process
	chosen bool          // the group chooses the next id
	renew  time.Duration // time of the next renewal
}

// granted continues with a lease. An id in use mostly belongs to an earlier
// process of this peer, which the first batch proves. No renewal happens before:
// with a later process at work, this one must not keep that lease alive.
func (p *Publisher) granted(e LeaseGranted) {
	asked := p.inFlight.(Grant)
	p.inFlight = nil
	switch {
	case e.Err == nil:
		p.succeeded()
		p.own(e.Lease, e.TTL)
	case fault.KindOf(e.Err) == fault.Exists && asked.Lease != 0:
		p.succeeded()
		p.lease.id, p.lease.proven = asked.Lease, false
	default:
		p.failed(e.Err)
		return
	}
	p.resync()
}

// own notes a lease of this process.
func (p *Publisher) own(id coord.LeaseID, ttl time.Duration) {
	p.lease.id, p.lease.proven = id, true
	p.lease.renew = p.began + ttl/3
}

// loseLease forgets the lease, and with it all entries of the group.
func (p *Publisher) loseLease() {
	p.lease.id, p.lease.proven = 0, false
	p.list, p.sweep = false, nil
	p.entries.forgetCommitted()
}

// renewed compares the digest of the group with the acknowledged entries.
func (p *Publisher) renewed(e Renewed) {
	p.inFlight = nil
	if e.Err != nil {
		p.failed(e.Err)
		return
	}
	p.succeeded()
	ttl := time.Duration(e.Answer.GetTtlMs()) * time.Millisecond
	if ttl <= 0 {
		p.loseLease()
		return
	}
	p.own(p.lease.id, ttl)
	has, mine := publicationOf(e.Answer, p.lease.id), p.entries.digest
	switch {
	case p.list || p.sweep != nil: // digests differ during a resync
	case has.GetGeneration() != p.accepted || int(has.GetCount()) != mine.Count || has.GetHigh() != mine.High || has.GetLow() != mine.Low:
		p.resync()
	default:
		p.state.Verified = p.now
	}
}

// publicationOf returns what the owner has published under a lease; nil for nothing.
func publicationOf(r *apiv1.LeaseKeepAliveResponse, id coord.LeaseID) *apiv1.Publication {
	for _, p := range r.GetPublished() {
		if p.GetLeaseId() == int64(id) {
			return p
		}
	}
	return nil
}

// supersede pauses for a later process of this peer. The lease stays without
// renewal, so that the entries of that process end with it.
func (p *Publisher) supersede(err error) {
	p.loseLease()
	p.state.Superseded = true
	p.backOff = mostBackOff
	p.failed(err)
}
