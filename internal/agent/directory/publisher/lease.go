package publisher

import (
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// granted goes on with a lease. When the id is in use, an earlier process of this peer mostly has it, and
// whether that is so shows with the first batch. It is not renewed before: were a later
// process at work, this one must not keep its lease alive.
func (p *Publisher) granted(e Granted) {
	asked := p.busy.(Grant)
	p.busy = nil
	switch {
	case e.Err == nil:
		p.done()
		p.own(e.Lease, p.began+e.TTL, e.TTL)
	case fault.KindOf(e.Err) == fault.Exists && asked.Lease != 0:
		p.done()
		p.lease, p.proven, p.until = asked.Lease, false, 0
	default:
		p.failed(e.Err)
		return
	}
	p.anew()
}

// own takes note of a lease that is this process's.
func (p *Publisher) own(lease coord.LeaseID, until, ttl time.Duration) {
	p.lease, p.proven, p.until = lease, true, until
	p.renew = p.began + ttl/3
}

// lose goes on without a lease, and so without anything in the directory.
func (p *Publisher) lose() {
	p.lease, p.proven, p.until = 0, false, 0
	p.pull, p.sweep = false, nil
	p.unknown()
}

// renewed compares what the group has with what it is known to have.
func (p *Publisher) renewed(e Renewed) {
	p.busy = nil
	if e.Err != nil {
		p.failed(e.Err)
		return
	}
	p.done()
	if e.Renewal.TTL <= 0 {
		p.lose()
		return
	}
	ttl := time.Duration(e.Renewal.TTL) * time.Millisecond
	p.own(p.lease, p.began+ttl, ttl)
	p.state.Verifications++
	var has coord.Publication
	if e.Renewal.Published != nil {
		has = *e.Renewal.Published
	}
	switch {
	case p.pull || p.sweep != nil: // it cannot be right yet
	case has != coord.Publication{Generation: p.accepted, Digest: p.have}:
		p.anew()
	default:
		p.state.Verified = p.now
	}
}

// supersede leaves the field to a later process of this peer for a while. It does not renew the lease: should that
// process end, all that it published must too.
func (p *Publisher) supersede(err error) {
	p.lose()
	p.state.Superseded = true
	p.backOff = p.config.Most
	p.failed(err)
}
