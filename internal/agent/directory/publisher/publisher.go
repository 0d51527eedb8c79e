// Package publisher decides how the local entries of one peer reach the
// directory of the group.
//
// A Publisher waits for a leader and then registers all local entries in
// batches, under one lease. Changes without a leader collect, the last one of
// each key. Changes with a leader leave at once;
// changes during a request form the next batch, one command.
//
// Each keepalive returns a digest of the peer's entries in the group. An equal
// digest needs no further work, so that a new leader, who inherits the
// directory, causes no traffic. Another digest, for example after a restored
// backup or a command with unknown result, starts a resync: all entries are
// registered again, span by span, under a new generation. A resync adds missing
// entries, removes surplus ones and makes no event for correct ones.
//
// The owner of a key: see "Adopt, Since, Foreign" in ../DESIGN.md.
//
// # One request at a time
//
// At most one request to the group is in flight. A digest therefore never
// covers half a batch, and batches never overtake each other.
//
// A Publisher only computes: each event brings the time, a duration since some
// origin. The caller carries out Step.Do and answers with the matching event. A
// Publisher serves one goroutine and treats values as opaque bytes.
//
// Resync after a leader becomes known, and registration in batches, come from
// the design document "Service Discovery Race Condition".
package publisher

import (
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
)

// Times of a Publisher.
const (
	leaseTTL     = 15 * time.Second       // of a dead peer's entries; a third of it is the interval of renewals
	leastBackOff = 250 * time.Millisecond // after a failure
	mostBackOff  = 5 * time.Second        // after repeated failures
	reconsider   = 30 * time.Second       // until entries of another owner, or without room, are tried again
)

// Config configures a Publisher.
type Config struct {
	// Lease is the id to ask for. A constant id keeps the entries over a restart
	// shorter than the TTL. With 0, or an id of another owner, the group chooses.
	Lease coord.LeaseID
	// Incarnation rises with each process of this peer. It forms
	// generations, together with a counter. The group rejects a lower one until
	// the lease of the other process ends.
	Incarnation uint32
	// Jitter draws from [0, 1).
	Jitter func() float64
}

// State describes a Publisher.
type State struct {
	Leads      bool          // a leader is known
	Lease      coord.LeaseID // 0: none
	Waiting    int           // changes not sent yet
	Resyncing  bool          // all entries are being registered again
	Foreign    int           // entries of another owner
	Rejected   int           // entries the group does not accept
	Superseded bool          // another process of this peer publishes
	Problem    error         // failure of the last request; nil after a success
	Verified   time.Duration // last equal digest
}

// Publisher is the state machine.
type Publisher struct {
	config Config
	now    time.Duration
	term   uint64 // of the leader; 0: unknown
	last   uint64 // term of the last known leader

	inFlight Action
	began    time.Duration // start of inFlight
	removed  []string      // keys removed by the batch in flight
	after    time.Duration // earliest start of the next request
	backOff  time.Duration // next wait after a failure

	lease    leaseState
	counter  uint32         // of generations
	accepted uint64         // generation of the last committed batch
	gone     coord.Revision // of the last committed removal of an entry
	entries  entrySet
	most     int // entries of one batch

	list  bool    // a resync starts with a list of the local entries
	sweep *string // start of the next span of a resync; nil: no resync

	state State // only the fields without another source
	step  Step
}

// New returns a Publisher without entries.
func New(c Config) *Publisher {
	return &Publisher{config: c, lease: leaseState{chosen: c.Lease == 0}, most: directory.MaxBatch, backOff: leastBackOff}
}

// State describes the Publisher.
func (p *Publisher) State() State {
	s := p.state
	s.Leads, s.Lease, s.Waiting, s.Resyncing = p.term != 0, p.lease.id, p.entries.dirty.Len(), p.list || p.sweep != nil
	s.Foreign, s.Rejected = p.entries.counts[foreign], p.entries.counts[rejected]+p.entries.counts[crowded]
	return s
}

// Committed reports whether the group has the local entry of a key, or none
// without a local entry, and the revision of that commit. Without an entry it is the
// revision of the last removal of any: of this one, or later.
func (p *Publisher) Committed(key string) (coord.Revision, bool) {
	it, ok := p.entries.items.Get(key)
	if !ok {
		return p.gone, true
	}
	return it.committed, it.synced()
}

// Advance processes an event of time now.
func (p *Publisher) Advance(now time.Duration, e Event) Step {
	p.now, p.step = max(p.now, now), Step{}
	p.entries.now = p.now
	switch e := e.(type) {
	case Leader:
		p.lead(e.Term)
	case Local:
		p.change(e)
	case Listed:
		p.listed(e)
	case LeaseGranted:
		p.granted(e)
	case Renewed:
		p.renewed(e)
	case PublishDone:
		p.done(e)
	case Tick:
	}
	p.entries.retry()
	p.step.Do = p.next()
	p.step.Wake = p.wake()
	return p.step
}

// lead notes a leader. A new term renews at once, which compares digests.
func (p *Publisher) lead(term uint64) {
	p.term = term
	if term == 0 || term == p.last {
		return
	}
	p.last, p.after, p.backOff = term, p.now, leastBackOff
	p.lease.renew = p.now
}

// next starts the next action.
func (p *Publisher) next() Action {
	if p.inFlight != nil || p.term == 0 || p.now < p.after {
		return nil
	}
	p.inFlight, p.began = p.choose(), p.now
	return p.inFlight
}

func (p *Publisher) choose() Action {
	switch {
	case p.lease.id == 0:
		id := p.config.Lease
		if p.lease.chosen {
			id = 0
		}
		return Grant{Lease: id, TTL: leaseTTL}
	case p.lease.proven && p.now >= p.lease.renew:
		return Renew{Lease: p.lease.id}
	case p.list:
		return Resync{}
	case p.sweep != nil:
		return Send{Batch: p.spanBatch()}
	case p.entries.dirty.Len() > 0:
		return Send{Batch: p.changeBatch()}
	}
	return nil
}

// wake returns the time of the next possible action; 0 during a request.
func (p *Publisher) wake() time.Duration {
	if p.inFlight != nil || p.term == 0 {
		return 0
	}
	if p.now < p.after {
		return p.after
	}
	at := p.lease.renew
	if p.entries.counts[foreign]+p.entries.counts[crowded] > 0 {
		at = min(at, p.entries.again)
	}
	return max(at, p.now)
}

// resync starts to register all entries under a new generation.
func (p *Publisher) resync() {
	p.list, p.sweep = true, nil
	p.counter++
}

func (p *Publisher) generation() uint64 { return uint64(p.config.Incarnation)<<32 | uint64(p.counter) }

// failed schedules the next attempt with exponential back-off.
func (p *Publisher) failed(err error) {
	p.state.Problem = err
	p.after = p.now + p.backOff/2 + time.Duration(p.config.Jitter()*float64(p.backOff/2))
	p.backOff = min(2*p.backOff, mostBackOff)
}

func (p *Publisher) succeeded() {
	p.state.Problem = nil
	p.after, p.backOff = p.now, leastBackOff
}
