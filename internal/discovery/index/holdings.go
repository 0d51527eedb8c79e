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
	id     peer.ID
	number uint32 // in arena.providers
	held   [states]holding
}

// sizeClass is the resolution of the order of providers in bytes.
const sizeClass = 1 << 10

// holding lists the services of one provider in one state.
type holding struct {
	entries []uint32
	bytes   int64 // memory of the entries
	place   int   // of the provider in ranking.bySize[class()]
}

// class is the index in ranking.bySize; 0 without entries.
func (h *holding) class() int { return int((h.bytes + sizeClass - 1) / sizeClass) }

// ranking orders providers by the memory of their services in one state, for quick access to the
// largest. The history of calls alone determines the order.
type ranking struct {
	*arena
	bySize [][]*provider // [n] lists the providers of size class n; [0] stays empty
	total  int           // number of services
	bytes  int64         // their memory
}

// sizeOf estimates the memory of an indexed record.
func sizeOf(r *records.Record) int64 { return int64(r.Memory()) + overhead }

// add lists e, in state s, under its owner.
func (c *ranking) add(e *entry, s state) {
	p := c.owner(e)
	h := &p.held[s]
	c.leave(p, s)
	e.put(len(h.entries), s)
	h.entries = append(h.entries, e.id)
	h.bytes += sizeOf(e.record)
	c.join(p, s)
	c.total++
	c.bytes += sizeOf(e.record)
}

// replace makes r the record of e, in state s.
func (c *ranking) replace(e *entry, r *records.Record, s state) {
	p, grown := c.owner(e), sizeOf(r)-sizeOf(e.record)
	c.leave(p, s)
	e.record = r
	p.held[s].bytes += grown
	c.join(p, s)
	c.bytes += grown
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
	h.bytes -= sizeOf(e.record)
	c.join(p, s)
	c.total--
	c.bytes -= sizeOf(e.record)
}

func (c *ranking) leave(p *provider, s state) {
	h := &p.held[s]
	n := h.class()
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
	n := h.class()
	if n == 0 {
		return
	}
	for len(c.bySize) <= n {
		c.bySize = append(c.bySize, nil)
	}
	h.place = len(c.bySize[n])
	c.bySize[n] = append(c.bySize[n], p)
}

// largest returns a provider of the largest size class in the state, or nil.
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
	if err := x.room(p, s, r); err != nil {
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
	x.trim(live, nil)
	return Updated, nil
}

// renew stores r as the freshest version.
func (x *Index) renew(e *entry, r *records.Record) {
	until := max(x.due.until(e), nanos(r.Expires()))
	x.rankings[e.state()].replace(e, r, e.state())
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
	x.forget(e)
	x.feed.publish(Withdrawn, old, r)
}

// revive returns a withdrawn or expired service to the live ones.
func (x *Index) revive(e *entry, r *records.Record) (Outcome, error) {
	if err := x.room(x.entries.owner(e), live, r); err != nil {
		return Unchanged, err
	}
	x.rankings[remembered].remove(e, remembered)
	x.rankings[live].add(e, live)
	x.renew(e, r)
	x.shards.admit(r, nil)
	x.feed.publish(Added, nil, r)
	return Added, nil
}

// retire turns a live service into a remembered one. Call forget afterwards.
func (x *Index) retire(e *entry) {
	x.shards.expel(e.record)
	x.rankings[live].remove(e, live)
	x.rankings[remembered].add(e, remembered)
}

// forget keeps the limits of remembered services after a change of e. It forgets the services with
// the earliest due time of e's provider, or of the largest, but never e.
func (x *Index) forget(e *entry) {
	c := &x.rankings[remembered]
	p := x.entries.owner(e)
	if len(p.held[remembered].entries) > rememberedPerProvider*x.config.MaxPerProvider {
		x.drop(c.soonest(&p.held[remembered], e))
	}
	x.trim(remembered, e)
}

// trim removes services in a state, of the largest providers, until the memory suffices. It never removes keep.
func (x *Index) trim(s state, keep *entry) {
	for c := &x.rankings[s]; c.bytes > x.config.maxBytes(s); {
		first := c.soonest(&c.largest().held[s], keep)
		if first == keep {
			return // larger than the others: the bound holds again after the next change
		}
		x.displace(first)
	}
}

// lapse removes an expired live record. It remembers the service while an older version is
// valid.
func (x *Index) lapse(e *entry, now int64) {
	old := e.record
	if until := x.due.until(e); until > now {
		x.retire(e)
		x.due.plan(e, until)
		x.forget(e)
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

// room checks the limits for one more service, r, of a provider (nil for a new provider) in a state. It evicts services of one
// larger provider if necessary.
func (x *Index) room(p *provider, s state, r *records.Record) error {
	limit, most, bytes := x.config.MaxPerProvider, x.config.maxBytes(s), sizeOf(r)
	if s == remembered {
		limit *= rememberedPerProvider
	}
	var held holding
	if p != nil {
		held = p.held[s]
	}
	n := len(held.entries)
	if n >= limit {
		return fault.New("index.Put", fault.LimitReached, "the provider has reached its limit of %d records", n)
	}
	c := &x.rankings[s]
	missing := c.bytes + bytes - most
	if missing <= 0 {
		return nil
	}
	x.short(s)
	rich := c.largest()
	if rich == nil || rich == p || rich.held[s].bytes-missing < held.bytes+bytes {
		return fault.New("index.Put", fault.LimitReached, "the index of this peer is full: its records have reached %d bytes", most)
	}
	for c.bytes+bytes > most {
		x.displace(c.soonest(&rich.held[s], nil))
	}
	return nil
}

// displace removes a service for want of memory.
func (x *Index) displace(e *entry) {
	if e.state() == remembered {
		x.drop(e)
		return
	}
	x.short(live)
	x.evict(e)
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
