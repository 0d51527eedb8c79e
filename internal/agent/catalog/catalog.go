// Package catalog keeps the known instances in memory, answers queries and
// sends changes.
//
// One feeder applies changes under ascending revisions. Readers take no lock
// and never wait for the feeder.
//
// # Results and indexes
//
// A result is the set of instances of one service, or of one namespace, that a
// selector matches. Its index is the revision of its last change, a property of
// history and not of readers: an instance that leaves and returns moves the
// index; an instance that matches neither before nor after a change does not.
// Each stream of changes (of a service, of a namespace) is a sorted list and a
// bounded log. A read applies the new entries of the log to the previous
// result. Results in use stay and keep exact indexes. For other results the log
// may have lost the last change: their index is then the first revision of the
// log, never too low.
//
// # Memory
//
// The feeder bounds the live instances. The catalog bounds the rest: the log of
// each stream, all logs together, results in use, their renderings and waiters. A service without
// instances disappears with its last logged change. An unknown service has an
// empty result, whose index is the last change of any forgotten service, and
// may thus move without a change of its own.
//
// # Resuming a watch
//
// An index is a position in the feeder's revisions. A watch continues from it at any catalog with the same revisions, without loss or with a Reset first, because a catalog
//   - waits a little for a revision it has not reached, as on a peer that
//     lags behind, and then answers with a lower index;
//   - knows the gap left by a Reset and resumes no position inside it, where changes would
//     be missed;
//   - resumes no position that its log has lost, unless the result is unchanged since.
//
// Revisions of two independent feeders do not mix: an index of the other one is
// unknown here or means another state. A feeder with a new numbering calls
// Reset with a revision up to the known one, which voids all indexes and
// restarts all watches. Equal numbers of the old and the new numbering look the
// same, so a new numbering should start above the old one.
//
// Revision 1 belongs to the empty catalog, as in etcd. No index is 0.
package catalog

import (
	"cmp"
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Config bounds a Catalog. Zero values mean the defaults named below.
type Config struct {
	Watches int // concurrent watches and waiting Awaits; 0 means 4,096
	Log     int // logged changes of a service or a namespace, at least 2; 0 means 1,024
	History int // logged changes of all streams, at least 4, each with the previous instance; 0 means 16,384
	Results int // cached results of a service or a namespace; 0 means 64
	Kept    int // bytes of the renderings of all results, with what they keep alive; 0 means 64 MiB

	Now func() time.Time // clock of Contact.Age; nil means time.Now
}

// Times of watches.
const (
	marks = 10 * time.Second // between progress marks
	ahead = 2 * time.Second  // wait for a revision seen at another peer
)

// Catalog implements the local reads of instance.Catalog. LastBeat, Expires and
// linearizable reads need the registry and the directory. It runs no goroutine
// and needs no Close: watches and waits run in the goroutines of their callers.
type Catalog struct {
	cfg         Config
	streams     table
	rev         atomic.Uint64 // last applied revision
	forgotten   atomic.Uint64 // upper bound of the last change of all forgotten services; at least 1
	link        atomic.Pointer[linkState]
	linkChanged pause.Broadcast // linkState changed
	moved       pause.Broadcast // rev changed
	floor       atomic.Pointer[logFloor]
	leases      leases
	kept        *instance.Renderings
	ended       *lru.Cache[instance.Key, instances.Removal] // without a cause

	mu      sync.Mutex // held by the feeder and at the start and the end of a wait
	touched []*stream  // streams with staged entries
	watches int
	all     []*stream
	hand    int    // position of the sweep in all
	credit  int    // visits owed by the sweep, times its round
	began   uint64 // first revision of the present round
	mark    uint64 // first revision of the previous round
}

// linkState is the state of the link to the group. Waiters compare pointers.
type linkState struct {
	stale  bool
	reason string
	since  time.Time
}

// logFloor describes revisions missing in the logs: all before floor, and all
// between from and to. A new numbering has a new era and is busy while streams
// change over.
type logFloor struct {
	floor    uint64
	from, to uint64 // exclusive
	era      uint64
	busy     bool
}

// mayMiss reports whether changes after rev may be missing.
func (h *logFloor) mayMiss(rev uint64) bool {
	return rev < h.floor || h.from < rev && rev < h.to
}

// New returns an empty catalog.
func New(cfg Config) *Catalog {
	cfg.Watches, cfg.Log = cmp.Or(cfg.Watches, 4096), cmp.Or(cfg.Log, 1024)
	cfg.History, cfg.Results = cmp.Or(cfg.History, 16384), cmp.Or(cfg.Results, 64)
	cfg.Kept = cmp.Or(cfg.Kept, 64<<20)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	c := &Catalog{
		cfg: cfg, streams: table{seed: maphash.MakeSeed()}, kept: instance.NewRenderings(cfg.Kept),
		ended: bounded.Shared[instance.Key, instances.Removal](MaxEnded),
	}
	c.rev.Store(1)
	c.forgotten.Store(1)
	c.link.Store(new(linkState))
	c.floor.Store(new(logFloor))
	return c
}

// Discover implements instance.Catalog.
func (c *Catalog) Discover(_ context.Context, q instance.Query) (instance.Result, error) {
	if q.Service == "" {
		return instance.Result{}, fault.Wrap("catalog.Discover", fault.Invalidf("service", q.Service, "is missing"))
	}
	res, err := c.find(q.Name, q.Selector)
	return res, fault.Wrap("catalog.Discover", err)
}

// List implements instance.Catalog.
func (c *Catalog) List(_ context.Context, q instances.ListQuery) (instance.Result, error) {
	res, err := c.find(instance.Name{Namespace: q.Namespace}, q.Selector)
	return res, fault.Wrap("catalog.List", err)
}

func (c *Catalog) find(n instance.Name, sel instance.Selector) (instance.Result, error) {
	known := c.current() // before the result: its revision must not be newer than the result
	if s := c.streams.get(n); s != nil {
		r, err := c.result(s, sel)
		if err != nil {
			return instance.Result{}, err
		}
		return instance.Result{View: r.read(s).view, Contact: known}, nil
	}
	if n.Service != "" { // a known name is valid
		if err := n.Validate(); err != nil {
			return instance.Result{}, err
		}
	}
	if _, err := sel.Compile(); err != nil {
		return instance.Result{}, err
	}
	return instance.Result{View: &instance.View{Index: c.forgotten.Load()}, Contact: known}, nil
}

// result returns the cached result of a selector or adds one. Results of one
// instance are cheap and stay out of the cache.
func (c *Catalog) result(s *stream, sel instance.Selector) (*result, error) {
	var buf [256]byte
	key := sel.AppendCanonical(buf[:0])
	if r := s.results.get(key); r != nil {
		return r, nil
	}
	match, err := sel.Compile()
	if err != nil {
		return nil, err
	}
	r := &result{key: string(key), deltas: &deltas{match: match}}
	if sel.ID != "" && s.name.Service != "" {
		r.id = sel.ID
		return r, nil
	}
	r.kept = c.kept
	return s.results.add(r, c.cfg.Results), nil
}

// current returns the link state and a revision contained in all later reads.
func (c *Catalog) current() instance.Contact {
	rev, p := c.rev.Load(), c.link.Load()
	if !p.stale {
		return instance.Contact{Revision: rev}
	}
	return instance.Contact{Stale: true, Reason: p.reason, Age: max(0, c.cfg.Now().Sub(p.since)), Revision: rev}
}

// Stats describes a Catalog for operators.
type Stats struct {
	Revision   uint64
	Instances  int
	Services   int // with instances
	Namespaces int // with instances
	Watches    int // waiting Awaits included
	Changes    int // logged by services and by namespaces
	Results    int // cached
	Stale      bool
	StaleFor   time.Duration // since the loss of the contact; 0 with contact
}

// Count counts all instances by status.
func (c *Catalog) Count() map[instance.Status]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := make(map[instance.Status]int)
	for _, s := range c.all {
		for _, i := range s.byID { // nil for a namespace
			counts[i.Status]++
		}
	}
	return counts
}

// Stats visits all services.
func (c *Catalog) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := Stats{Revision: c.rev.Load(), Watches: c.watches, Stale: c.link.Load().stale, StaleFor: c.current().Age}
	for _, s := range c.all {
		out.Changes += len(s.state.Load().log)
		if p := s.results.byKey.Load(); p != nil {
			out.Results += len(*p)
		}
		switch {
		case s.size == 0:
		case s.byID == nil:
			out.Namespaces++
			out.Instances += s.size
		default:
			out.Services++
		}
	}
	return out
}
