// Package lessor keeps the deadlines of leases at the leader of the coordination group.
//
// The replicated state holds each lease with its time to live, without a deadline. Deadlines are in the
// leader's memory, on its own monotonic clock. An expiry takes effect only as a log entry, coordv1.Expire with
// the term of the measurement, so that a deposed leader ends nothing.
//
// A Lessor only computes: time is an argument, a duration since any fixed origin. The member reports applied
// commands (Granted, Ended) and keepalives confirmed by a quorum (Renew), and asks for expired leases (Due)
// and the next deadline (Next).
//
// # Why clients may trust it
//
// A client counts from the sending of its last acknowledged keepalive. The leader renews only after a
// read-index round that began after the keepalive's arrival; any later leader is promoted after this round,
// and starts with the whole time to live again. So no member's deadline precedes the client's, provided that
// clocks run at the same rate; the client subtracts a margin for the difference.
//
// # Mass expiry
//
// Leases granted together expire together with their clients. The end of a lease costs the group about one
// event for each bound key, and delays other writers. Due therefore returns leases at Config.Rate, awaited
// ones first: a lock does not wait behind a crowd of forgotten leases. A promotion spreads deadlines in the
// same way, so that clients find the new leader before the expiries load it.
package lessor

import (
	"cmp"
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

const (
	// Batch bounds the leases of one Due, and so of one coordv1.Expire.
	Batch = 512
	// batchKeys ends a batch, to bound the size of one command. The first lease may exceed it, because a lease
	// ends as a whole.
	batchKeys = 1000
	// sorting bounds the expired leases that one Due inspects.
	sorting = 32 * Batch
	// burst bounds the part of the rate that a late caller may catch up.
	burst = 100 * time.Millisecond
	// longest bounds the time to live in calculations, some 70 years, against overflow.
	longest = 1 << 61 * time.Nanosecond
)

// Config configures a Lessor.
type Config struct {
	// Grace extends every lease at a promotion: the election timeout, about the time that clients had no
	// leader.
	Grace time.Duration
	// Rate bounds the keys deleted in a second; a lease without keys counts as one. 0 is 20,000.
	Rate int
	// Keys returns the number of keys bound to a due lease; nil means none.
	Keys func(coord.LeaseID) int
	// Awaited reports whether others wait for the end of a due lease; nil means never.
	Awaited func(coord.LeaseID) bool
}

// Lessor keeps deadlines while its member leads; otherwise it knows no lease. It is for one goroutine. Renew
// costs a look-up, all else the logarithm of the leases.
type Lessor struct {
	config Config
	term   uint64 // 0: not leading
	leases map[coord.LeaseID]*lease
	// queues hold the leases by state.
	queues [states]queue
	// free is the time of the next batch under the rate.
	free time.Duration
}

// New returns a Lessor that does not lead.
func New(config Config) *Lessor {
	if config.Rate <= 0 {
		config.Rate = 20_000
	}
	if config.Keys == nil {
		config.Keys = func(coord.LeaseID) int { return 0 }
	}
	if config.Awaited == nil {
		config.Awaited = func(coord.LeaseID) bool { return false }
	}
	return &Lessor{config: config, queues: newQueues()}
}

// Promote starts the measurements of the leader of term, above 0, with the living leases. Call it after the
// leader has applied an entry of its own term: only then does it know all leases that earlier leaders granted
// or acknowledged. Each lease gets its whole time to live and the grace; crowded deadlines are delayed
// further, to three quarters of the rate.
func (l *Lessor) Promote(now time.Duration, term uint64, leases []coord.Lease) {
	l.Demote()
	l.term, l.free = term, now-burst
	l.leases = make(map[coord.LeaseID]*lease, len(leases))
	all := make([]*lease, 0, len(leases))
	for _, granted := range leases {
		all = append(all, l.add(now+l.config.Grace, granted))
	}
	l.spread(all)
	l.queues[living].Init(all)
}

// spread spreads crowded deadlines.
func (l *Lessor) spread(all []*lease) {
	slices.SortFunc(all, func(a, b *lease) int {
		return cmp.Or(cmp.Compare(a.deadline, b.deadline), cmp.Compare(a.id, b.id))
	})
	apart, earliest := l.cost(4)/3, time.Duration(0)
	for _, e := range all {
		e.deadline = max(e.deadline, earliest)
		e.at = e.deadline
		earliest = e.deadline + apart
	}
}

// Demote forgets all deadlines at the end of a leadership.
func (l *Lessor) Demote() {
	l.term, l.leases, l.queues = 0, nil, newQueues()
}

// Term returns the term of Promote, for coordv1.Expire; 0 while not leading.
func (l *Lessor) Term() uint64 { return l.term }

// Len returns the number of known leases.
func (l *Lessor) Len() int { return len(l.leases) }

// Granted adds the leases that an applied entry granted. Without leadership it does nothing: Promote adds
// them.
func (l *Lessor) Granted(now time.Duration, leases []coord.Lease) {
	if l.term == 0 {
		return
	}
	for _, granted := range leases {
		l.forget(granted.ID)
		l.queues[living].push(l.add(now, granted))
	}
}

// add adds a lease without a queue.
func (l *Lessor) add(now time.Duration, granted coord.Lease) *lease {
	ttl := time.Duration(min(granted.TTL, longest.Milliseconds())) * time.Millisecond
	e := &lease{id: granted.ID, granted: granted.Granted, ttl: ttl, deadline: now + ttl}
	l.leases[granted.ID] = e
	return e
}

// Ended removes the leases that an applied entry ended, whoever proposed it.
func (l *Lessor) Ended(ids []coord.LeaseID) {
	for _, id := range ids {
		l.forget(id)
	}
}

func (l *Lessor) forget(id coord.LeaseID) {
	if e := l.leases[id]; e != nil {
		l.queues[e.state].Remove(e)
		delete(l.leases, id)
	}
}

// move gives a lease another state.
func (l *Lessor) move(e *lease, to state) {
	l.queues[e.state].Remove(e)
	e.state = to
	l.queues[to].push(e)
}

// KeepAliveResult is the result of a keepalive.
type KeepAliveResult uint8

const (
	// Unknown: the lease ended or was never granted, or the member does not lead.
	Unknown KeepAliveResult = iota
	// Renewed: the lease has its whole time to live again.
	Renewed
	// Expiring: the lease's end is proposed, so the keepalive must wait for the outcome: after Ended it is
	// Unknown, after Again it can be repeated. An acknowledgement could contradict the log.
	Expiring
)

// Renew gives a lease its whole time to live from now on. A quorum must have confirmed the leadership after
// the keepalive's arrival. The returned time to live is for the client, even if the lease has more time left;
// it is 0 unless Renewed.
func (l *Lessor) Renew(now time.Duration, id coord.LeaseID) (time.Duration, KeepAliveResult) {
	e := l.leases[id]
	switch {
	case e == nil:
		return 0, Unknown
	case e.state == expiring:
		return 0, Expiring
	}
	e.deadline = max(e.deadline, now+e.ttl)
	return e.ttl, Renewed
}

// Due returns expired leases for one coordv1.Expire with Term; none if no lease is expired, or the rate forbids
// more. Awaited leases come first, then the longest overdue. They are expiring afterwards. Call it until it
// returns none. If the proposal is refused, or applied without ending all of them, call Again.
func (l *Lessor) Due(now time.Duration) []*coordv1.LeaseRef {
	l.sort(now)
	order := []state{awaited, overdue}
	if now < l.free {
		order = order[:1] // slightly ahead of the rate
	}
	if now < l.free-burst {
		return nil
	}
	var refs []*coordv1.LeaseRef
	keys := 0
	for e := l.next(now, order); e != nil && len(refs) < Batch; e = l.next(now, order) {
		weight := max(1, l.config.Keys(e.id))
		if len(refs) > 0 && keys+weight > batchKeys {
			break
		}
		l.move(e, expiring)
		refs, keys = append(refs, &coordv1.LeaseRef{Id: int64(e.id), Granted: e.granted}), keys+weight
	}
	l.free = max(l.free, now-burst) + l.cost(keys)
	return refs
}

// sort separates the awaited leases from the other expired ones.
func (l *Lessor) sort(now time.Duration) {
	for range sorting {
		e := l.first(living)
		if e == nil || e.deadline > now {
			return
		}
		if l.config.Awaited(e.id) {
			l.move(e, awaited)
		} else {
			l.move(e, overdue)
		}
	}
}

// next returns the lease to end next; nil without one. A lease renewed meanwhile lives on.
func (l *Lessor) next(now time.Duration, order []state) *lease {
	for _, s := range order {
		for e := l.first(s); e != nil; e = l.first(s) {
			if e.deadline <= now {
				return e
			}
			l.move(e, living)
		}
	}
	return nil
}

// cost returns the time for deleting keys at the rate.
func (l *Lessor) cost(keys int) time.Duration {
	return time.Duration(keys) * time.Second / time.Duration(l.config.Rate)
}

// Again makes leases of Due due again, except those that ended meanwhile. Call it with the whole batch after a
// refusal, and after Ended once it was applied.
func (l *Lessor) Again(refs []*coordv1.LeaseRef) {
	for _, ref := range refs {
		if e := l.leases[coord.LeaseID(ref.GetId())]; e != nil && e.state == expiring && e.granted == ref.GetGranted() {
			l.move(e, living)
		}
	}
}

// first returns the lease of a state with the earliest deadline; nil without one. It moves renewed leases to
// their new deadlines on the way.
func (l *Lessor) first(s state) *lease {
	q := l.queues[s]
	for {
		e, ok := q.Min()
		if !ok || e.at == e.deadline {
			return e
		}
		q.sink(e)
	}
}

// Remaining returns the remaining time of a lease, 0 if it is overdue or expiring; false if it is unknown.
func (l *Lessor) Remaining(now time.Duration, id coord.LeaseID) (time.Duration, bool) {
	e := l.leases[id]
	if e == nil {
		return 0, false
	}
	return max(0, e.deadline-now), true
}

// Overdue returns the delay of the lease that should have ended first, expiring ones included; 0 without one.
// More than about a second shows the rate's limit, or a group that does not commit.
func (l *Lessor) Overdue(now time.Duration) time.Duration {
	oldest := now
	for s := range states {
		if e := l.first(s); e != nil {
			oldest = min(oldest, e.deadline)
		}
	}
	return now - oldest
}
