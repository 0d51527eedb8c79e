// Package lessor keeps the deadlines of leases on the leader of the coordination group.
//
// The replicated state knows that a lease lives and for how long it may stay silent, not until
// when: deadlines are the leader's, in memory, on its own monotonic clock. What the leader
// measured becomes true only as an entry of the log, coord.Expire with the term in which it was
// measured, so that a leader deposed meanwhile ends nothing.
//
// A Lessor only computes: time is an argument, a duration since an origin that the member
// chose once, such as its start. The member tells it what was applied (Granted, Ended) and which
// keepalives a quorum has confirmed (Renew), and asks what to propose (Due) and when (Next).
//
// # Why clients may trust it
//
// A client counts from when it sent the last keepalive that was acknowledged. The leader renews
// only after a read-index round that began once the keepalive had arrived; any later leader
// is promoted after that round, and starts with the whole time to live again. So no deadline
// here is ever before the client's, on whatever member, as long as clocks run equally fast; for
// the difference in their rates the client takes a margin off.
//
// # Many at once
//
// Leases granted together die together when their clients do. To end a lease costs the group
// about one event for each key bound to it, and whoever writes meanwhile waits behind those.
// Due therefore gives them out at Config.Rate, those first whose end somebody waits for: a lock does not
// stand behind a crowd of leases that nobody misses. After a promotion deadlines are moved apart
// likewise, so that clients have time to find the new leader before it is busy burying.
package lessor

import (
	"cmp"
	"slices"
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
)

const (
	// Batch is the most leases that Due gives at once: what one coord.Expire looks at.
	Batch = 512
	// batchKeys ends a batch: as large a command as the group should apply in one go. The first
	// lease of a batch may exceed it, as a lease ends as a whole.
	batchKeys = 1000
	// sorting bounds how many leases whose time has passed Due looks at in one call.
	sorting = 32 * Batch
	// burst is how much of the rate may be caught up by a caller who comes late.
	burst = 100 * time.Millisecond
	// longest time to live that is reckoned with, some 70 years, keeps sums from overflowing.
	longest = 1 << 61 * time.Nanosecond
)

// Config is what a Lessor is made with.
type Config struct {
	// Grace is added to every lease's time when a member becomes leader: the election
	// timeout, for clients were without a leader for about as long.
	Grace time.Duration
	// Rate bounds how many keys are deleted in a second; a lease without keys counts as one.
	// 0 is 20,000.
	Rate int
	// Keys tells how many keys are bound to a lease; nil is none. It is asked when
	// a lease is due.
	Keys func(coord.LeaseID) int
	// Awaited tells whether others wait for a lease's end; nil: nobody does. It is asked when
	// a lease is due.
	Awaited func(coord.LeaseID) bool
}

// Lessor keeps deadlines while its member leads; at other times it knows no lease. It is for
// one goroutine. Renewing costs a look-up, all else the logarithm of the leases.
type Lessor struct {
	config Config
	term   uint64 // 0: not leading
	leases map[coord.LeaseID]*lease
	// queues part the leases between them, by their state.
	queues [states]queue
	// free is when the rate allows the next batch.
	free time.Duration
}

// New makes a Lessor that does not lead.
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

// Promote begins to measure for the leader of term, above 0, with the leases that live. Call
// it when the leader has applied an entry of its own term, not before: only then does it know
// every lease that any former leader granted or acknowledged. Each gets its whole time
// to live and the grace; deadlines that would crowd are delayed further, to three quarters of
// the rate.
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

// spread moves deadlines apart.
func (l *Lessor) spread(all []*lease) {
	slices.SortFunc(all, func(a, b *lease) int {
		return cmp.Or(cmp.Compare(a.deadline, b.deadline), cmp.Compare(a.ref.ID, b.ref.ID))
	})
	apart, earliest := l.cost(4)/3, time.Duration(0)
	for _, e := range all {
		e.deadline = max(e.deadline, earliest)
		e.at = e.deadline
		earliest = e.deadline + apart
	}
}

// Demote forgets all deadlines: the member does not lead any more.
func (l *Lessor) Demote() {
	l.term, l.leases, l.queues = 0, nil, newQueues()
}

// Term is the one given to Promote, to be named in coord.Expire; 0 while not leading.
func (l *Lessor) Term() uint64 { return l.term }

// Len gives the number of leases known.
func (l *Lessor) Len() int { return len(l.leases) }

// Granted notes leases that an applied entry granted. Nothing happens while not leading:
// Promote will bring them.
func (l *Lessor) Granted(now time.Duration, leases []coord.Lease) {
	if l.term == 0 {
		return
	}
	for _, granted := range leases {
		l.forget(granted.ID)
		l.queues[living].push(l.add(now, granted))
	}
}

// add makes a lease known that is yet to be queued.
func (l *Lessor) add(now time.Duration, granted coord.Lease) *lease {
	ttl := time.Duration(min(granted.TTL, longest.Milliseconds())) * time.Millisecond
	e := &lease{ref: coord.LeaseRef{ID: granted.ID, Granted: granted.Granted}, ttl: ttl, deadline: now + ttl}
	l.leases[granted.ID] = e
	return e
}

// Ended notes leases that an applied entry ended, whoever asked for it.
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

// KeepAliveResult is what becomes of a keepalive.
type KeepAliveResult uint8

const (
	// Unknown: there is no such lease, it ended or was never granted; or the member does not
	// lead.
	Unknown KeepAliveResult = iota
	// Renewed: the lease has its whole time to live again.
	Renewed
	// Expiring: its time has passed and its end is proposed. The keepalive must wait for the
	// outcome: after Ended it is Unknown; after Again, try again. To acknowledge it would
	// promise what the log may already have taken.
	Expiring
)

// Renew gives a lease its whole time to live from now on, after a quorum has confirmed,
// since the keepalive arrived, that the member leads. The time to live, not what remains of it
// when more does, is what to tell the client; it is 0 unless Renewed.
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

// Due gives leases whose time has passed, to be proposed in one coord.Expire with Term; none when
// there are none or the rate forbids. Those that others wait for come first, and of equals the longest
// overdue. They are expiring from then on. Ask again until there are none. When a proposal
// is refused, or applied without ending all of them, call Again.
func (l *Lessor) Due(now time.Duration) []coord.LeaseRef {
	l.sort(now)
	order := []state{awaited, overdue}
	if now < l.free {
		order = order[:1] // they go ahead of the rate a little
	}
	if now < l.free-burst {
		return nil
	}
	var refs []coord.LeaseRef
	keys := 0
	for e := l.next(now, order); e != nil && len(refs) < Batch; e = l.next(now, order) {
		weight := max(1, l.config.Keys(e.ref.ID))
		if len(refs) > 0 && keys+weight > batchKeys {
			break
		}
		l.move(e, expiring)
		refs, keys = append(refs, e.ref), keys+weight
	}
	l.free = max(l.free, now-burst) + l.cost(keys)
	return refs
}

// sort finds out which of the leases whose time has passed others wait for.
func (l *Lessor) sort(now time.Duration) {
	for range sorting {
		e := l.first(living)
		if e == nil || e.deadline > now {
			return
		}
		if l.config.Awaited(e.ref.ID) {
			l.move(e, awaited)
		} else {
			l.move(e, overdue)
		}
	}
}

// next is the lease to end next; nil when there is none. One that was renewed after all lives on.
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

// cost is the time that deleting keys takes at the rate.
func (l *Lessor) cost(keys int) time.Duration {
	return time.Duration(keys) * time.Second / time.Duration(l.config.Rate)
}

// Again makes leases that Due gave out due again, save those that ended meanwhile: call it with
// the whole batch when its proposal was refused, and after Ended when it was applied.
func (l *Lessor) Again(refs []coord.LeaseRef) {
	for _, ref := range refs {
		if e := l.leases[ref.ID]; e != nil && e.state == expiring && e.ref == ref {
			l.move(e, living)
		}
	}
}

// Next is when Due may have something, in the past when it has now; false when no lease
// is living.
func (l *Lessor) Next() (time.Duration, bool) {
	var earliest *lease
	for _, s := range []state{living, awaited, overdue} {
		if e := l.first(s); e != nil && (earliest == nil || e.deadline < earliest.deadline) {
			earliest = e
		}
	}
	if earliest == nil {
		return 0, false
	}
	return max(earliest.deadline, l.free), true
}

// first gives the lease in a state with the earliest deadline; nil when there is none. Renewals
// leave leases in the place of a deadline past: those it finds there it moves to their own.
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

// Remaining gives the time that a lease has left, 0 when it is overdue or expiring; false when
// it is not known.
func (l *Lessor) Remaining(now time.Duration, id coord.LeaseID) (time.Duration, bool) {
	e := l.leases[id]
	if e == nil {
		return 0, false
	}
	return max(0, e.deadline-now), true
}

// Overdue gives how long ago the deadline passed of the lease that should have ended first and
// has not, expiring ones included; 0 when none is overdue. Above a second or so, leases are held
// up by the rate or by a group that does not commit.
func (l *Lessor) Overdue(now time.Duration) time.Duration {
	oldest := now
	for s := range states {
		if e := l.first(s); e != nil {
			oldest = min(oldest, e.deadline)
		}
	}
	return now - oldest
}
