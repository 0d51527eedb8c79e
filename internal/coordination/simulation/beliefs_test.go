package simulation

import (
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
)

// session is a lease from its client's view.
type session struct {
	id       coord.LeaseID
	ttl      time.Duration
	rate     float64       // of the client's clock
	deadline time.Duration // on the client's clock: afterwards the client does not count on the lease
	closed   bool          // revoked or abandoned

	published uint64 // generation of its last accepted batch
}

// margin is the client's allowance for clock differences.
func margin(ttl time.Duration) time.Duration { return max(50*time.Millisecond, ttl/20) }

// sent extends the deadline after the acknowledgement of a keepalive sent at an instant.
func (s *session) sent(local time.Duration) {
	s.deadline = max(s.deadline, local+s.ttl-margin(s.ttl))
}

// until returns the deadline in true time.
func (s *session) until() time.Duration { return time.Duration(float64(s.deadline) / s.rate) }

// lives reports whether the client counts on its lease.
func (s *session) lives(now time.Duration) bool { return !s.closed && now < s.until() }

// belief is a client's belief to hold a lock.
type belief struct {
	*session
	token    coord.Token
	mode     coord.Mode
	permits  int
	holding  bool // an answer said so
	released bool
}

// beliefs checks clients' beliefs against each other (B1), and against the ends of leases (L4).
type beliefs struct {
	*scheduler
	sessions map[coord.LeaseID]*session
	locks    map[string][]*belief
	held     int // in all
}

func newBeliefs(w *scheduler) *beliefs {
	return &beliefs{scheduler: w, sessions: make(map[coord.LeaseID]*session), locks: make(map[string][]*belief)}
}

// expired records the timeout of a lease.
func (b *beliefs) expired(id coord.LeaseID) {
	if s := b.sessions[id]; s != nil && s.lives(b.now) {
		b.breach("L4", "lease %d expired %v before its client's deadline", id, s.until()-b.now)
	}
	delete(b.sessions, id)
}

// over ends all sessions: their group was dissolved.
func (b *beliefs) over() {
	for id, s := range b.sessions {
		s.closed = true
		delete(b.sessions, id)
	}
}

// holds records a client's belief to hold a lock from now on.
func (b *beliefs) holds(lock string, new *belief) {
	b.held++
	beside := 0
	var still []*belief
	for _, old := range b.locks[lock] {
		if old.released || !old.lives(b.now) || old.session == new.session {
			continue
		}
		still = append(still, old)
		if beside++; old.mode == coord.Exclusive || old.mode != new.mode || old.mode == coord.Permit && beside >= new.permits {
			b.breach("B1", "%q is held with token %d until %v and with token %d", lock, old.token, old.until(), new.token)
		}
	}
	b.locks[lock] = append(still, new)
}
