// Package index stores the verified, unexpired records of one peer and searches them in memory.
//
// # Structure
//
// The index stores records by type in columns: a few immutable blocks, sorted by latitude band
// and longitude, plus a small unsorted delta (see part, shard). A search loads one snapshot of
// one type through an atomic pointer. Searches and writers never wait for each other, and a
// search sees an update completely or not at all. Only a search for one provider takes the lock
// of the other methods, to read that provider's few records. Changes also merge the delta into
// blocks, a bounded number of rows per change (see job). So every change is short, and an index
// needs neither a goroutine nor a Close.
//
// # Totals
//
// The nearest of a million records take microseconds to find. Counting all matches takes many
// times longer, within a dense radius too. Callers without need of the count set
// SearchOptions.AtLeast; Found.Exact then reports whether Total is exact.
//
// # Remembered services
//
// The freshest known version of a service wins (records.Compare). An older version must not
// return while other peers may still hold it as valid. So the index remembers a tombstone, or a
// record with an earlier expiry than its predecessor, until every older version seen has
// expired.
//
// # Limits
//
// Separate limits hold for live and remembered services: of their memory in total, and of their
// number per provider. A new record in a full index evicts the records with the earliest expiry
// of the largest provider, if that provider stays at least as large as the new record's
// provider. Otherwise the index refuses the new record. So a provider cannot displace a smaller
// one. A larger version of a live record, and its withdrawal, always enter; then the largest
// provider gives way, and that may be the same one.
//
// The memory of a record is an estimate (records.Record.Memory, overhead). Dead rows number at
// most about half the live rows. A large merge holds a second copy of its input while it runs.
package index

import (
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// The defaults for zero values in Config.
const (
	DefaultMaxBytes       = 1 << 30
	DefaultMaxPerProvider = records.MaxPerProvider
)

const (
	overhead        = 260 // bytes of one record in the index itself, its cells by hash included
	rememberedShare = 4   // remembered services take one part in so many of the memory
)

// rememberedPerProvider times MaxPerProvider is the number of remembered services per provider:
// enough to replace all services daily while a tombstone lives two days.
const rememberedPerProvider = 4

// Config limits an index. The zero value means the defaults.
type Config struct {
	MaxBytes       int64 // memory of the records; 0 or less means DefaultMaxBytes
	MaxPerProvider int   // live records of one provider; 0 or less means DefaultMaxPerProvider

	// Seen receives each record given to Put, whatever becomes of it. It must not block. Nil means nobody.
	Seen func(*records.Record)
}

func (c Config) withDefaults() Config {
	if c.MaxBytes <= 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	if c.MaxPerProvider <= 0 {
		c.MaxPerProvider = DefaultMaxPerProvider
	}
	return c
}

// maxBytes bounds the memory of the services in a state.
func (c Config) maxBytes(s state) int64 {
	kept := c.MaxBytes / rememberedShare
	if s == remembered {
		return kept
	}
	return c.MaxBytes - kept
}

// Outcome is the effect of a change on a service.
type Outcome uint8

// The outcomes. Put returns the first four. Changes never have the first.
const (
	Unchanged Outcome = iota // the index has this version
	Added                    // a new live service
	Updated                  // a fresher version of a live service
	Withdrawn                // a tombstone replaced the service
	Expired                  // a live record expired
	Evicted                  // a live record was removed, usually in favour of another
)

// Index is a bounded set of records. It is safe for concurrent use.
type Index struct {
	config Config
	shards shards
	pool   sync.Pool // of *search

	mu        sync.RWMutex // guards the fields below; all writers hold it
	entries   *arena
	names     nameMap
	providers map[peer.ID]*provider
	rankings  [states]ranking
	due       dueQueue
	feed      feed

	Pressure // its method short needs mu
}

// New returns an empty index.
func New(c Config) *Index {
	names := newNameMap()
	entries := names.arena
	return &Index{
		config:    c.withDefaults(),
		pool:      sync.Pool{New: func() any { return new(search) }},
		shards:    shards{inlineRows: maxInlineRows, hashes: newHashes()},
		entries:   entries,
		names:     names,
		providers: make(map[peer.ID]*provider),
		rankings:  [states]ranking{{arena: entries}, {arena: entries}},
		due:       dueQueue{arena: entries, outlived: make(map[uint32]int64)},
	}
}

// Put adds a version of a service. After an error the index is unchanged:
//
//   - fault.Invalid naming "expires_at": the record has expired at now;
//   - fault.Exists naming "sequence": the index has a newer version;
//   - fault.LimitReached: the provider or the index is full.
//
// A larger version that finds no room evicts records of the largest provider, perhaps itself.
//
// Of two versions with one sequence number records.Compare chooses one.
func (x *Index) Put(r *records.Record, now time.Time) (Outcome, error) {
	if x.config.Seen != nil {
		x.config.Seen(r)
	}
	if r.Expired(now) {
		return Unchanged, &fault.Error{Op: "index.Put", Kind: fault.Invalid, Field: "expires_at", Value: r.Expires(), Err: errLapsed}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	hash := x.names.hash(r.Name())
	e := x.names.lookup(r.Name(), hash)
	var done Outcome
	var err error
	if e == nil {
		done, err = x.insert(r, hash)
	} else {
		done, err = x.supersede(e, r)
	}
	x.note(now)
	return done, err
}

// Get returns the live record of a name. The record may have expired since the last Expire.
func (x *Index) Get(n records.Name) (*records.Record, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if e := x.names.find(n); e != nil && e.state() == live {
		return e.record, true
	}
	return nil, false
}

// Latest returns the freshest known version of a name: a live record, a tombstone, or an expired
// record remembered against older valid versions.
func (x *Index) Latest(n records.Name) (*records.Record, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if e := x.names.find(n); e != nil {
		return e.record, true
	}
	return nil, false
}

// Len returns the number of live records.
func (x *Index) Len() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.rankings[live].total
}

// OfProvider returns the live records of a provider, ordered by name. The caller owns the slice.
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

// All iterates over the live records at the start of the iteration. The history of the index
// alone determines the order. Writers do not wait.
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

// Expire removes the records expired at now, tells readers of changes and returns the number
// removed. Its cost grows with that number alone. Searches skip expired records with or without
// Expire.
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

// NextExpiry returns the time of the next work for Expire, or false without any.
func (x *Index) NextExpiry() (time.Time, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if e := x.due.first(); e != nil {
		return time.Unix(0, e.due).UTC(), true
	}
	return time.Time{}, false
}

// Memory returns the memory of the live records in bytes, and its limit.
func (x *Index) Memory() (used, limit int64) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.rankings[live].bytes, x.config.maxBytes(live)
}
