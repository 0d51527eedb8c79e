package index

import (
	"errors"
	"math"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// The causes of refusals, used as constants.
var (
	errLapsed = errors.New("has passed")
	errStale  = errors.New("is not newer than the known version")
)

// state separates live from remembered services.
type state uint8

const (
	live       state = iota // visible to searches
	remembered              // kept only to refuse older versions
	states
)

// entry is one known service. Index.mu guards it.
type entry struct {
	record *records.Record // freshest known version
	due    int64           // Unix nanoseconds of the next step: expiry of a live service, removal of a remembered one
	id     uint32          // in arena
	owner  uint32          // in arena.providers
	heap   uint32          // in Index.due
	place  uint32          // slot and state, packed so that an entry takes 32 bytes
}

func (e *entry) state() state { return state(e.place % uint32(states)) }

// slot is the position of e in its provider's held[state].entries.
func (e *entry) slot() uint32 { return e.place / uint32(states) }

func (e *entry) put(slot int, s state) { e.place = uint32(slot)*uint32(states) + uint32(s) }

// provider is one provider with known services.
type provider struct {
	id            peer.ID
	number        uint32 // in arena.providers
	held          [states]holding
	equivocations uint64
}

// holding lists the services of one provider in one state.
type holding struct {
	entries []uint32
	place   int // of the provider in ranking.bySize[len(entries)]
}

// ranking orders providers by their number of services in one state, for quick access to the
// largest. The history of calls alone determines the order.
type ranking struct {
	*arena
	bySize [][]*provider // [n] lists the providers with n services; [0] stays empty
	total  int           // number of services
}

// add lists e, in state s, under its owner.
func (c *ranking) add(e *entry, s state) {
	p := c.owner(e)
	h := &p.held[s]
	c.leave(p, s)
	e.put(len(h.entries), s)
	h.entries = append(h.entries, e.id)
	c.join(p, s)
	c.total++
}

// remove takes e, in state s, off its owner's list.
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

// largest returns a provider with the most services in the state, or nil.
func (c *ranking) largest() *provider {
	for n := len(c.bySize) - 1; n > 0; n-- {
		if peers := c.bySize[n]; len(peers) > 0 {
			return peers[0]
		}
		c.bySize = c.bySize[:n]
	}
	return nil
}

// soonest returns the service of a provider with the earliest due time. It returns keep only
// without any other.
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

// insert adds an unknown service. hash is the hash of its name.
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

// supersede adds a version of a known service.
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

// renew stores r as the freshest version.
func (x *Index) renew(e *entry, r *records.Record) {
	until := max(x.due.until(e), nanos(r.Expires()))
	e.record = r
	x.due.plan(e, until)
}

// withdraw replaces e's record by a tombstone. It always succeeds, because the record would
// outlive its withdrawal otherwise. Beyond the limit another remembered service goes.
func (x *Index) withdraw(e *entry, r *records.Record) {
	var old *records.Record
	if e.state() == live {
		old = e.record
		x.retire(e)
	}
	x.renew(e, r)
	x.feed.publish(Withdrawn, old, r)
}

// revive returns a withdrawn or expired service to the live ones.
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

// retire turns a live service into a remembered one. Beyond a limit it forgets the remembered
// service with the earliest due time of the same provider, or of the largest.
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

// lapse removes an expired live record. It remembers the service while an older version is
// valid.
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

// drop forgets e. Its row must be gone.
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

// room checks the limits for one more service of a provider (nil for a new provider) in a state.
// It evicts a service of a larger provider if necessary.
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
		return fault.New("index.Put", fault.LimitReached, "the provider has reached its limit of %d records", held)
	}
	c := &x.rankings[s]
	if c.total < most {
		return nil
	}
	rich := c.largest()
	if rich == nil || rich == p || len(rich.held[s].entries) <= held+1 {
		return fault.New("index.Put", fault.LimitReached, "the index has reached its limit of %d records", c.total)
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

// evict removes a live record without remembering the service.
func (x *Index) evict(e *entry) {
	old := e.record
	x.shards.expel(old)
	x.drop(e)
	x.feed.publish(Evicted, old, nil)
}

// nanos returns t in Unix nanoseconds, limited to the range of int64 in whole seconds.
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
