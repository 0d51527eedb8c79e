package audit

import (
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
)

// Leases checks L4 over a whole group: no lease ends by Expire before its time to live has passed
// since its grant, its last renewal, or a new leader. All times come from one clock outside the group,
// such as a simulation's. The zero Leases is ready.
type Leases struct {
	living map[coord.LeaseID]*living
}

type living struct {
	ttl   time.Duration
	until time.Duration
}

// Granted notes a lease when the grant was acknowledged.
func (l *Leases) Granted(lease coord.Lease, at time.Duration) {
	if l.living == nil {
		l.living = make(map[coord.LeaseID]*living)
	}
	ttl := time.Duration(lease.TTL) * time.Millisecond
	l.living[lease.ID] = &living{ttl: ttl, until: at + ttl}
}

// Renewed notes an acknowledged keepalive by the time at which the client sent it.
func (l *Leases) Renewed(id coord.LeaseID, sent time.Duration) {
	if lease := l.living[id]; lease != nil {
		lease.until = max(lease.until, sent+lease.ttl)
	}
}

// Led notes a new leader: every lease gets its full time again.
func (l *Leases) Led(at time.Duration) {
	for _, lease := range l.living {
		lease.until = max(lease.until, at+lease.ttl)
	}
}

// Revoked notes a lease that its owner ended.
func (l *Leases) Revoked(id coord.LeaseID) { delete(l.living, id) }

// Expired checks a lease that an Expire ended.
func (l *Leases) Expired(id coord.LeaseID, at time.Duration) error {
	lease := l.living[id]
	if lease == nil {
		return breach("L5", "lease %d expired and was not living", id)
	}
	if at < lease.until {
		return breach("L4", "lease %d expired at %v, %v before its time", id, at, lease.until-at)
	}
	delete(l.living, id)
	return nil
}
