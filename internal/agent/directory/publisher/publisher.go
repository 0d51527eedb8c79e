// Package publisher keeps what runs at one peer in the directory of the group.
//
// A Publisher pulls: once a leader is known it asks for all that runs here and registers it, in batches,
// under one lease. While no leader is known changes wait, each key's last one; nothing is sent
// into the void and nothing is lost. Once one is known they go at once, or gathered for a few
// milliseconds, and those that come while a batch is under way as the next: one command.
//
// With each keepalive the group says what it has of this peer, as a digest. When that is what this peer knows
// the group to have, nothing is repeated, whatever happened in between: a new leader has
// the directory of the last one. When it is not, after a backup was restored or a command of
// which nobody knows what became of it, everything is pulled and registered anew, span by span, in
// a new generation: what was right makes no event, what was missing comes, what was too much goes.
//
// # The last word
//
// Of each entry a Publisher remembers at which revision its registration was first committed, over changes
// of how it is, lost leases and all that is registered anew. The group passes over what it repeats of
// an application that has registered or left elsewhere since, and lets it have what another peer repeats of
// before: see coord.RegisterBatch. A new process learns it from the group, if it comes before its lease ends, and
// otherwise does not know it.
//
// # One thing at a time
//
// There is one request to the group under way at most. So a digest is never that of a moment at which a
// batch was half known, and batches cannot overtake each other. Their number is small: while
// one is under way, changes gather for the next.
//
// A Publisher only computes: time comes with the events, a duration since any origin; who calls Advance
// does what the Step says and answers with the event of its kind. It is for one goroutine.
//
// Pulling once a leader is known, and registering in batches, are of the design document "Service
// Discovery Race Condition".
package publisher

import (
	"bytes"
	"time"

	"github.com/tidwall/btree"

	"github.com/blackhole/blackhole/pkg/coord"
)

// Config is what a Publisher is made with.
type Config struct {
	// Lease is the id to ask for, the same each time this peer starts: then its instances stay as they
	// are over a restart shorter than the TTL. 0, or when somebody else has it: the group chooses.
	Lease coord.LeaseID
	// TTL of the lease; zero: 15 s. It is renewed each third of it.
	TTL time.Duration
	// Incarnation must be above that of any earlier process of this peer. Generations are it and a counter.
	// With one that is not, the group refuses this peer until the lease of the other process ends.
	Incarnation uint32
	// Gather is how long changes are gathered; zero: 5 ms; below: not at all.
	Gather time.Duration
	// Least and Most bound the wait before what failed is tried again. Zero: 250 ms and 5 s.
	Least, Most time.Duration
	// Reconsider is after how long entries are tried again of which another owner had the last word; zero: 30 s.
	Reconsider time.Duration
	// Jitter draws from [0, 1).
	Jitter func() float64
}

// State is how a Publisher stands.
type State struct {
	Leads                         bool          // a leader is known
	Lease                         coord.LeaseID // 0: none
	Until                         time.Duration // until when the lease lives at least, unless it is renewed
	Generation                    uint64
	Entries                       int
	Waiting                       int           // changes not sent
	Anew                          bool          // everything is being registered anew
	Foreign                       int           // entries that are another owner's
	Refused                       int           // entries that the group will not have
	Superseded                    bool          // another process of this peer publishes
	Problem                       error         // why the last request was not done; nil when it was
	Verified                      time.Duration // when the group last said that it has what it should
	Verifications, Anews, Batches uint64        // how often, for instruments
}

// Publisher is the state machine.
type Publisher struct {
	config Config
	now    time.Duration
	term   uint64 // of the leader; 0: none is known
	last   uint64 // of the last leader known

	busy    Action
	began   time.Duration // when it did
	gone    []string      // keys that the batch under way removes
	after   time.Duration // nothing is begun before
	backOff time.Duration // the next wait

	tenure
	counter  uint32 // of generations
	accepted uint64 // generation of the last batch that was

	book
	pull  bool
	sweep *string // where registering all anew goes on; nil: it does not

	state State // of which some fields are kept here alone
	step  Step
}

// tenure is the lease under which is published.
type tenure struct {
	lease  coord.LeaseID // 0: none
	proven bool          // it is this process's own
	chosen bool          // the group chooses the next
	until  time.Duration
	renew  time.Duration // when it is due
}

// book is what runs here, and what the group is known to have of it.
type book struct {
	items itemMap
	dirty keySet        // changed and not sent
	newer keySet        // changed since all was asked for
	due   time.Duration // when they are
	have  coord.Digest  // of what the group is known to have
	fates [fates]int    // how many items have each; of fine ones nobody counts
	again time.Duration // when what is another owner's is tried again
	most  int           // entries of one batch
}

// item is one entry.
type item struct {
	value []byte         // nil: it is to go
	known []byte         // what the group is known to have; nil: nothing
	sent  bool           // the group may have something, known or not
	adopt bool           // its application registered it here, and that is not committed yet
	said  bool           // it did so since this was last sent
	since coord.Revision // of its registration, as last committed; 0: not known
	fate  fate
	at    coord.Revision // at which it was known
}

// fate says why an item is not in the group, and not to be sent.
type fate uint8

const (
	fine fate = iota
	foreign
	refused

	fates // count, keep last
)

type (
	itemMap = btree.Map[string, *item]
	keySet  = btree.Set[string]
)

// New makes a Publisher that knows of nothing.
func New(c Config) *Publisher {
	for _, d := range []struct {
		field *time.Duration
		usual time.Duration
	}{
		{&c.TTL, 15 * time.Second}, {&c.Gather, 5 * time.Millisecond}, {&c.Least, 250 * time.Millisecond},
		{&c.Most, 5 * time.Second}, {&c.Reconsider, 30 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.usual
		}
	}
	return &Publisher{config: c, tenure: tenure{chosen: c.Lease == 0}, book: book{most: coord.MaxBatch}, backOff: c.Least}
}

// State tells how it stands.
func (p *Publisher) State() State {
	s := p.state
	s.Leads, s.Lease, s.Until, s.Generation = p.term != 0, p.lease, p.until, p.generation()
	s.Entries, s.Waiting, s.Anew = p.items.Len(), p.dirty.Len(), p.pull || p.sweep != nil
	s.Foreign, s.Refused = p.fates[foreign], p.fates[refused]
	return s
}

// Committed reports whether the group has what runs here under a key, or has nothing if nothing does, and
// the revision at which that was so; 0 for nothing.
func (p *Publisher) Committed(key string) (coord.Revision, bool) {
	it, ok := p.items.Get(key)
	if !ok {
		return 0, true
	}
	return it.at, it.value != nil && bytes.Equal(it.value, it.known)
}

// Advance takes an event that happened now.
func (p *Publisher) Advance(now time.Duration, e Event) Step {
	p.now, p.step = max(p.now, now), Step{}
	switch e := e.(type) {
	case Leader:
		p.lead(e.Term)
	case Local:
		p.change(e)
	case Pulled:
		p.pulled(e)
	case Granted:
		p.granted(e)
	case Renewed:
		p.renewed(e)
	case Sent:
		p.sent(e)
	case Woke:
	}
	p.reconsider()
	p.step.Do = p.next()
	p.step.Wake = p.wake()
	return p.step
}

// lead takes note of a leader. A new one is asked at once what it has.
func (p *Publisher) lead(term uint64) {
	p.term = term
	if term == 0 || term == p.last {
		return
	}
	p.last, p.after, p.backOff = term, p.now, p.config.Least
	p.renew = p.now
}

// next is what to do now.
func (p *Publisher) next() Action {
	if p.busy != nil || p.term == 0 || p.now < p.after {
		return nil
	}
	p.busy, p.began = p.choose(), p.now
	return p.busy
}

func (p *Publisher) choose() Action {
	switch {
	case p.lease == 0:
		lease := p.config.Lease
		if p.chosen {
			lease = 0
		}
		return Grant{Lease: lease, TTL: p.config.TTL}
	case p.proven && p.now >= p.renew:
		return Renew{Lease: p.lease}
	case p.pull:
		return Pull{}
	case p.sweep != nil:
		return Send{Batch: p.span()}
	case p.dirty.Len() > 0 && p.now >= p.due:
		return Send{Batch: p.changes()}
	}
	return nil
}

// wake is when there may be something to do.
func (p *Publisher) wake() time.Duration {
	if p.busy != nil || p.term == 0 {
		return 0
	}
	if p.now < p.after {
		return p.after
	}
	at := p.renew
	if p.dirty.Len() > 0 {
		at = min(at, p.due)
	}
	if p.fates[foreign] > 0 {
		at = min(at, p.again)
	}
	return max(at, p.now)
}

// anew begins to register everything in a new generation.
func (p *Publisher) anew() {
	p.pull, p.sweep = true, nil
	p.counter++
	p.state.Anews++
}

func (p *Publisher) generation() uint64 { return uint64(p.config.Incarnation)<<32 | uint64(p.counter) }

// failed waits before the next attempt, longer each time.
func (p *Publisher) failed(err error) {
	p.state.Problem = err
	p.after = p.now + p.backOff/2 + time.Duration(p.config.Jitter()*float64(p.backOff/2))
	p.backOff = min(2*p.backOff, p.config.Most)
}

// done takes note that a request was.
func (p *Publisher) done() {
	p.state.Problem = nil
	p.after, p.backOff = p.now, p.config.Least
}
