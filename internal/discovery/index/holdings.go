package index

import (
	"errors"
	"math"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// The causes of refusals; constants in all but keyword.
var (
	errLapsed = errors.New("has passed")
	errStale  = errors.New("is not above that of the version known")
)

// state is what the index does with a service it knows.
type state uint8

const (
	live       state = iota // searches may give it
	remembered              // it only keeps older versions out
	states
)

// entry is one service known. Writers own it, under Index.mu.
type entry struct {
	record *records.Record // freshest version known
	due    int64           // Unix nanoseconds of the next step: lapsing while live, else forgetting
	id     uint32          // in arena
	owner  uint32          // in arena.providers
	heap   uint32          // in Index.due
	place  uint32          // slot and state, together so that an entry takes 32 bytes
}

func (e *entry) state() state { return state(e.place % uint32(states)) }

// slot is where e is in its provider's held[state].entries.
func (e *entry) slot() uint32 { return e.place / uint32(states) }

func (e *entry) put(slot int, s state) { e.place = uint32(slot)*uint32(states) + uint32(s) }

// provider is one provider with services known.
type provider struct {
	id            peer.ID
	number        uint32 // in arena.providers
	held          [states]holding
	equivocations uint64
}

// holding is the services of one provider in one state.
type holding struct {
	entries []uint32
	place   int // of the provider in crowd.bySize[len(entries)]
}

// ranking ranks providers by how many services they have in one state, so that the one with
// the most is at hand. The order depends on the history of calls alone.
type ranking struct {
	*arena
	bySize [][]*provider // [n] are those with n services; [0] stays empty
	total  int           // services
}

// add enters e, in state s, under its owner.
func (c *ranking) add(e *entry, s state) {
	p := c.owner(e)
	h := &p.held[s]
	c.leave(p, s)
	e.put(len(h.entries), s)
	h.entries = append(h.entries, e.id)
	c.join(p, s)
	c.total++
}

// remove takes e, in state s, from its owner.
func (c *ranking) remove(e *entry, s state) {
	p := c.owner(e)
	h := &p.held[s]
	c.leave(p, s)
	last, slot := len(h.entries)-1, int(e.slot())
	h.entries[slot] = h.entries[last]
	c.at(h.entries[slot]).put(slot, s)
	h.entries = h.entries[:last]
	c.join(p, s)
	c.total--
}

func (c *ranking) leave(p *provider, s state) {
	h := &p.held[s]
	n := len(h.entries)
	if n == 0 {
		return
	}
	peers := c.bySize[n]
	last := len(peers) - 1
	peers[h.place] = peers[last]
	peers[h.place].held[s].place = h.place
	peers[last] = nil
	c.bySize[n] = peers[:last]
}

func (c *ranking) join(p *provider, s state) {
	h := &p.held[s]
	n := len(h.entries)
	if n == 0 {
		return
	}
	for len(c.bySize) <= n {
		c.bySize = append(c.bySize, nil)
	}
	h.place = len(c.bySize[n])
	c.bySize[n] = append(c.bySize[n], p)
}

// largest gives a provider with the most services in the state, or nil.
func (c *ranking) largest() *provider {
	for n := len(c.bySize) - 1; n > 0; n-- {
		if peers := c.bySize[n]; len(peers) > 0 {
			return peers[0]
		}
		c.bySize = c.bySize[:n]
	}
	return nil
}

// soonest is the service that lapses or is forgotten first of a provider's in one state,
// keep left out unless it is the only one.
func (c *ranking) soonest(h *holding, keep *entry) *entry {
	first := keep
	for _, id := range h.entries {
		switch e := c.at(id); {
		case e == keep:
		case first == keep, e.due < first.due, e.due == first.due && e.record.Name().ID < first.record.Name().ID:
			first = e
		}
	}
	return first
}

// insert takes in a service that is not known, given its name's hash.
func (x *Index) insert(r *records.Record, hash uint64) (Outcome, error) {
	s := live
	if r.Withdrawn() {
		s = remembered
	}
	p := x.providers[r.Name().Provider]
	if err := x.room(p, s); err != nil {
		return Unchanged, err
	}
	if p == nil {
		p = x.entries.addProvider(r.Name().Provider)
		x.providers[p.id] = p
	}
	e := x.entries.make()
	e.record, e.owner, e.due = r, p.number, nanos(r.Expires())
	x.names.add(e, hash)
	x.rankings[s].add(e, s)
	x.due.add(e)
	if s == remembered {
		x.feed.publish(Withdrawn, nil, r)
		return Withdrawn, nil
	}
	x.shards.admit(r, nil)
	x.feed.publish(Added, nil, r)
	return Added, nil
}

// supersede takes in another version of a service that is known.
func (x *Index) supersede(e *entry, r *records.Record) (Outcome, error) {
	if records.Equivocates(r, e.record) {
		x.equivocations.Add(1)
		x.entries.owner(e).equivocations++
	}
	switch c := records.Compare(r, e.record); {
	case c == 0:
		return Unchanged, nil
	case c < 0:
		return Unchanged, &fault.Error{Op: "index.Put", Kind: fault.Exists, Field: "sequence", Value: r.Sequence(), Err: errStale}
	case r.Withdrawn():
		x.withdraw(e, r)
		return Withdrawn, nil
	case e.state() == remembered:
		return x.revive(e, r)
	}
	old := e.record
	x.renew(e, r)
	x.shards.admit(r, old)
	x.feed.publish(Updated, old, r)
	return Updated, nil
}

// renew makes r the version that counts.
func (x *Index) renew(e *entry, r *records.Record) {
	until := max(x.due.until(e), nanos(r.Expires()))
	e.record = r
	x.due.plan(e, until)
}

// withdraw puts a tombstone in the place of e's record. It cannot be refused, or else the
// record would outlive its withdrawal; where too much is remembered, something else goes.
func (x *Index) withdraw(e *entry, r *records.Record) {
	var old *records.Record
	if e.state() == live {
		old = e.record
		x.retire(e)
	}
	x.renew(e, r)
	x.feed.publish(Withdrawn, old, r)
}

// revive makes a service that was withdrawn or had lapsed live again.
func (x *Index) revive(e *entry, r *records.Record) (Outcome, error) {
	if err := x.room(x.entries.owner(e), live); err != nil {
		return Unchanged, err
	}
	x.rankings[remembered].remove(e, remembered)
	x.rankings[live].add(e, live)
	x.renew(e, r)
	x.shards.admit(r, nil)
	x.feed.publish(Added, nil, r)
	return Added, nil
}

// removeProvider turns a live service into a remembered one. Where too much is remembered, what
// its provider, or else the provider with the most, would lose first is forgotten.
func (x *Index) retire(e *entry) {
	x.shards.expel(e.record)
	x.rankings[live].remove(e, live)
	x.rankings[remembered].add(e, remembered)
	p := x.entries.owner(e)
	if len(p.held[remembered].entries) <= rememberedPerProvider*x.config.MaxPerProvider {
		if x.rankings[remembered].total <= x.config.MaxTombstones {
			return
		}
		p = x.rankings[remembered].largest()
	}
	x.drop(x.rankings[remembered].soonest(&p.held[remembered], e))
}

// lapse takes out a live record that has expired, and remembers it where an older version
// has not.
func (x *Index) lapse(e *entry, now int64) {
	old := e.record
	if until := x.due.until(e); until > now {
		x.retire(e)
		x.due.plan(e, until)
	} else {
		x.shards.expel(e.record)
		x.drop(e)
	}
	x.feed.publish(Expired, old, nil)
}

// drop forgets e, which is in no shard.
func (x *Index) drop(e *entry) {
	x.rankings[e.state()].remove(e, e.state())
	x.due.remove(e)
	x.names.remove(e)
	if p := x.entries.owner(e); len(p.held[live].entries) == 0 && len(p.held[remembered].entries) == 0 {
		delete(x.providers, p.id)
		x.entries.removeProvider(p)
	}
	x.entries.release(e)
}

// room makes sure that a provider (nil for an unknown one) may have one more service in a
// state, and evicts another where that is fair.
func (x *Index) room(p *provider, s state) error {
	limit, most := x.config.MaxPerProvider, x.config.MaxRecords
	if s == remembered {
		limit, most = rememberedPerProvider*limit, x.config.MaxTombstones
	}
	held := 0
	if p != nil {
		held = len(p.held[s].entries)
	}
	if held >= limit {
		return fault.New("index.Put", fault.LimitReached, "the provider has %d records, the most it may", held)
	}
	c := &x.rankings[s]
	if c.total < most {
		return nil
	}
	rich := c.largest()
	if rich == nil || rich == p || len(rich.held[s].entries) <= held+1 {
		return fault.New("index.Put", fault.LimitReached, "the index is full with %d records", c.total)
	}
	e := c.soonest(&rich.held[s], nil)
	if s == remembered {
		x.drop(e)
		return nil
	}
	x.evictions.Add(1)
	x.evict(e)
	return nil
}

// evict takes a live record out and remembers nothing of it.
func (x *Index) evict(e *entry) {
	old := e.record
	x.shards.expel(old)
	x.drop(e)
	x.feed.publish(Evicted, old, nil)
}

// nanos is t in Unix nanoseconds, and the nearest such for times out of their range, but
// for the last second of it.
func nanos(t time.Time) int64 {
	const most = math.MaxInt64 / int64(time.Second)
	switch s := t.Unix(); {
	case s < -most:
		return math.MinInt64
	case s >= most:
		return math.MaxInt64
	default:
		return s*int64(time.Second) + int64(t.Nanosecond())
	}
}
