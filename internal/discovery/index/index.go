// Package index holds the verified, unexpired records that one peer knows and searches
// them in memory.
//
// # Shape
//
// Records live column-wise, by type: a few immutable blocks sorted by band of latitude
// and longitude, and a small unsorted delta (see part, shard). A search reads one snapshot
// of one type through an atomic pointer. It never waits for a writer, never keeps one
// waiting, and sees every update whole or not at all. The exception is a search for one
// provider, which looks through the few records of that one under the lock of the other
// methods. Merging the delta into blocks is work of the changes themselves, a bounded part
// of it for each (see job), so that none takes long: an index has no goroutine and needs
// no closing.
//
// # Totals
//
// To find the nearest of a million records takes microseconds, to count all that match
// many times as long; within a radius too, where records are dense. Who does not need the count says so (SearchOptions.AtLeast), and is
// told whether what there is of it is exact (Found.Exact).
//
// # What is remembered
//
// Of each service the freshest version known counts (records.Compare). A version that no
// longer counts must not come back while it is still valid somewhere in the network: the
// index remembers a tombstone, or a record that lapsed before its predecessor, until no
// older version that it has seen can be valid.
//
// # Bounds
//
// Live and remembered services are bounded apart, each in all and for each provider. When
// live records are full, a newcomer takes the place of the record that lapses first of the
// provider with the most records, provided that this one still has at least as many as the
// newcomer's own; otherwise it is refused. So no provider can push out another that offers
// less than itself. Remembered services are bounded the same way, but a withdrawal of a
// live record is always accepted.
//
// A live record takes some 135 bytes besides itself. Rows that count no more are about half
// as many as those that do at most, and a large merge has a second copy of what it merges
// while it is under way.
package index

import (
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// The bounds that zeros in Config stand for.
const (
	DefaultMaxRecords     = 1 << 20
	DefaultMaxPerProvider = 100
)

// rememberedPerProvider is how many times MaxPerProvider a provider may make the index
// remember: enough to replace all its services daily while a tombstone lives two days.
const rememberedPerProvider = 4

// Config bounds an index. The zero value is usable.
type Config struct {
	MaxRecords     int // live records; 0 or less is DefaultMaxRecords
	MaxPerProvider int // live records of one provider; 0 or less is DefaultMaxPerProvider
	MaxTombstones  int // remembered services that are not live; 0 or less is MaxRecords
}

func (c Config) withDefaults() Config {
	if c.MaxRecords <= 0 {
		c.MaxRecords = DefaultMaxRecords
	}
	if c.MaxPerProvider <= 0 {
		c.MaxPerProvider = DefaultMaxPerProvider
	}
	if c.MaxTombstones <= 0 {
		c.MaxTombstones = c.MaxRecords
	}
	return c
}

// Outcome is what became of a service.
type Outcome uint8

// The outcomes. Put gives the first four, changes are of all kinds but the first.
const (
	Unchanged Outcome = iota // this very version was known
	Added                    // a service that was not live is
	Updated                  // a live service has a fresher version
	Withdrawn                // the service is remembered as withdrawn
	Expired                  // a live record lapsed
	Evicted                  // a live record made room for another
)

// String gives the outcome's lower-case name.
func (o Outcome) String() string {
	names := [...]string{"unchanged", "added", "updated", "withdrawn", "expired", "evicted"}
	if int(o) >= len(names) {
		return "unknown"
	}
	return names[o]
}

// Index is a bounded set of records. It is safe for concurrent use.
type Index struct {
	config Config
	shards shards
	pool   sync.Pool // of *search

	mu        sync.RWMutex // guards what follows, and is held by all writers
	entries   *arena
	names     nameMap
	providers map[peer.ID]*provider
	rankings  [states]ranking
	due       dueQueue
	feed      feed

	equivocations atomic.Uint64
	evictions     atomic.Uint64
}

// New makes an empty index.
func New(c Config) *Index {
	names := newNameMap()
	entries := names.arena
	return &Index{
		config:    c.withDefaults(),
		pool:      sync.Pool{New: func() any { return new(search) }},
		shards:    shards{inlineRows: maxInlineRows},
		entries:   entries,
		names:     names,
		providers: make(map[peer.ID]*provider),
		rankings:  [states]ranking{{arena: entries}, {arena: entries}},
		due:       dueQueue{arena: entries, outlived: make(map[uint32]int64)},
	}
}

// Put takes in a version of a service. An error leaves the index as it was:
//   - fault.Invalid naming "expires_at" for a record that has lapsed at now;
//   - fault.Exists naming "sequence" for a version older than the one known;
//   - fault.LimitReached when the provider has its share or the index is full.
//
// Of two versions with one sequence records.Compare prefers one; either way the
// equivocation is counted.
func (x *Index) Put(r *records.Record, now time.Time) (Outcome, error) {
	if r.Expired(now) {
		return Unchanged, &fault.Error{Op: "index.Put", Kind: fault.Invalid, Field: "expires_at", Value: r.Expires(), Err: errLapsed}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	hash := x.names.hash(r.Name())
	e := x.names.lookup(r.Name(), hash)
	if e == nil {
		return x.insert(r, hash)
	}
	return x.supersede(e, r)
}

// Get gives the live record of a name. It may have lapsed since the last Expire.
func (x *Index) Get(n records.Name) (*records.Record, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if e := x.names.find(n); e != nil && e.state() == live {
		return e.record, true
	}
	return nil, false
}

// Latest gives the freshest version known of a name: a live record, a tombstone, or a
// lapsed record that is remembered because an older version could still be valid.
func (x *Index) Latest(n records.Name) (*records.Record, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if e := x.names.find(n); e != nil {
		return e.record, true
	}
	return nil, false
}

// Len is the number of live records.
func (x *Index) Len() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.rankings[live].total
}

// OfProvider gives the live records of a provider by name. The caller owns the slice.
func (x *Index) OfProvider(id peer.ID) []*records.Record {
	x.mu.RLock()
	defer x.mu.RUnlock()
	p := x.providers[id]
	if p == nil {
		return nil
	}
	all := make([]*records.Record, 0, len(p.held[live].entries))
	for _, id := range p.held[live].entries {
		all = append(all, x.entries.at(id).record)
	}
	slices.SortFunc(all, func(a, b *records.Record) int { return a.Name().Compare(b.Name()) })
	return all
}

// All gives the records that were live when the iteration began, in an order that depends
// on the history of the index alone. It keeps no writer waiting.
func (x *Index) All() iter.Seq[*records.Record] {
	return func(yield func(*records.Record) bool) {
		x.mu.RLock()
		snaps := x.shards.snapshots()
		x.mu.RUnlock()
		for _, snap := range snaps {
			if !snap.each(yield) {
				return
			}
		}
	}
}

// Expire takes out the records that have lapsed at now, tells subscribers, and gives
// their number. It costs only what it takes out. Searches leave lapsed records out
// whether or not Expire has run.
func (x *Index) Expire(now time.Time) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	lapsed := 0
	for at := nanos(now); ; {
		e := x.due.first()
		if e == nil || e.due > at {
			return lapsed
		}
		if e.state() == live {
			x.lapse(e, at)
			lapsed++
		} else {
			x.drop(e)
		}
	}
}

// NextExpiry is when Expire next has work to do, and false when there is none.
func (x *Index) NextExpiry() (time.Time, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if e := x.due.first(); e != nil {
		return time.Unix(0, e.due).UTC(), true
	}
	return time.Time{}, false
}

// Stats are figures of an index.
type Stats struct {
	Live          int    // records that searches may give
	Remembered    int    // tombstones and lapsed records kept against old versions
	Providers     int    // with live or remembered records
	Types         int    // with live records
	Equivocations uint64 // times a Put showed two versions with one sequence
	Evictions     uint64 // live records that made room for others
	LostChanges   uint64 // changes that slow subscribers did not get, in all
}

// Stats gives the figures of the moment.
func (x *Index) Stats() Stats {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return Stats{
		Live:          x.rankings[live].total,
		Remembered:    x.rankings[remembered].total,
		Providers:     len(x.providers),
		Types:         x.shards.count(),
		Equivocations: x.equivocations.Load(),
		Evictions:     x.evictions.Load(),
		LostChanges:   x.feed.lost,
	}
}

// Equivocations counts how often a Put showed two versions of a provider's service with
// one sequence, since the index last knew nothing else of that provider.
func (x *Index) Equivocations(id peer.ID) uint64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if p := x.providers[id]; p != nil {
		return p.equivocations
	}
	return 0
}
