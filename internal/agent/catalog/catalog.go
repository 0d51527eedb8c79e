// Package catalog holds what is known of instances, answers from memory and tells of changes.
//
// One owner feeds it with changes under ascending revisions; anyone reads, without locks and without
// waiting for the feeder.
//
// # Results and indexes
//
// A result is what one selector picks of one service, or of one namespace. Its index is the revision at
// which it changed last, by history and not by who looked when: an instance that leaves a result and
// returns moves the index, and one that matches neither before nor after does not. Every stream
// of changes (of a service, of a namespace) is a list sorted once and a bounded log; a result is read by
// applying to the one before what the log has since. Results in use are kept and never lose their exact
// index. For others the log may have forgotten when they changed last: their index is then the revision
// from which on the log remembers, which is never too low.
//
// # Forgetting
//
// What is alive is bounded by the feeder. What is remembered beside it is bounded here: the log of each stream,
// all logs together, results in use, who waits. A service without instances is forgotten with its last
// change; one that is not known has an empty result, whose index is the last change of any
// service that was forgotten, and so may move without one of its own.
//
// # Resuming
//
// An index is a position in the feeder's revisions, and a watch goes on from it at any catalog that is
// fed with the same revisions. It is without loss or begins with a Reset, because a catalog
//   - waits a little for a revision that it has not reached itself (Config.Ahead), as a peer
//     that lags behind the one asked before, and then answers as it can, with a lower index;
//   - knows which revisions it never saw one by one (the gap that Reset leaves) and resumes
//     none inside such a gap: what came and went in there would be missed;
//   - resumes none that its log has forgotten, unless the result did not change since.
//
// Revisions of two feeders that number on their own must not be mixed: such a number is either unknown
// here, or means something else. A feeder that begins to number anew tells so by a Reset with a revision
// not above the known: every index is void then, and every watch begins again. A number of the old
// counting cannot be told from the same number of the new one, so that the new one should
// begin where the old one cannot have been, best above.
//
// Revision 1 is that of the empty catalog, as in etcd, so that no index is 0.
package catalog

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Config bounds a Catalog. Zero values mean what their comments say; others must be positive.
type Config struct {
	Watches int // watches and waits at once, an Await that answers at once not counted; 0: 4,096
	Log     int // changes remembered of a service or a namespace, at least 2; 0: 1,024
	History int // changes remembered of all together, at least 4, each with the instance before it; 0: 16,384
	Results int // results kept of a service or a namespace; 0: 64

	Marks time.Duration // between two marks of progress of a watch; 0: 10 s
	Ahead time.Duration // wait for a revision that a reader saw elsewhere; 0: 2 s

	Now func() time.Time // for Contact.Age; nil: time.Now
}

// withDefaults errors: Invalid, field by its name.
func (c Config) withDefaults() (Config, error) {
	counts := []struct {
		field      string
		value      *int
		least, def int
	}{
		{"watches", &c.Watches, 1, 4096},
		{"log", &c.Log, 2, 1024},
		{"history", &c.History, 4, 16384},
		{"results", &c.Results, 1, 64},
	}
	for _, n := range counts {
		if *n.value == 0 {
			*n.value = n.def
		}
		if *n.value < n.least {
			return c, fault.Invalidf(n.field, *n.value, "must be at least %d", n.least)
		}
	}
	spans := []struct {
		field string
		value *time.Duration
		def   time.Duration
	}{
		{"marks", &c.Marks, 10 * time.Second},
		{"ahead", &c.Ahead, 2 * time.Second},
	}
	for _, d := range spans {
		if *d.value == 0 {
			*d.value = d.def
		}
		if *d.value < 0 {
			return c, fault.Invalidf(d.field, *d.value, "must be positive")
		}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c, nil
}

// Catalog reads as instance.Catalog does, but for what only the owner of an instance can tell (LastBeat,
// Expires) and for linearizable reads, which are local here. It runs no goroutine and needs no
// closing: watches and waits run in their callers'.
type Catalog struct {
	cfg       Config
	streams   table
	rev       atomic.Uint64 // everything up to it is known
	forgotten atomic.Uint64 // no service that was forgotten changed after it; at least 1
	contact   atomic.Pointer[contact]
	turned    bell // contact changed
	moved     bell // rev changed
	horizon   atomic.Pointer[horizon]
	leases    leases

	mu      sync.Mutex // held by the feeder, and by who begins or ends to wait
	touched []*stream  // have something staged
	watches int
	all     []*stream
	hand    int    // of the sweep, in all
	credit  int    // visits that it owes, times its round
	began   uint64 // the revision at which its round began
	mark    uint64 // and the one before
}

// contact is shared with who waits for the next one.
type contact struct {
	stale  bool
	reason string
	since  time.Time
}

// horizon is what the logs do not tell, though it is after their floor: anything before floor, and anything
// between two revisions. A new numbering has a new era, and is busy while streams change over.
type horizon struct {
	floor    uint64
	from, to uint64 // exclusive
	era      uint64
	busy     bool
}

// doubts reports whether changes after rev may be missing.
func (h *horizon) doubts(rev uint64) bool {
	return rev < h.floor || h.from < rev && rev < h.to
}

// New makes an empty catalog. Errors: Invalid, field by its name.
func New(cfg Config) (*Catalog, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fault.Wrap("catalog.New", err)
	}
	c := &Catalog{cfg: cfg, streams: table{seed: maphash.MakeSeed()}}
	c.rev.Store(1)
	c.forgotten.Store(1)
	c.contact.Store(new(contact))
	c.horizon.Store(new(horizon))
	return c, nil
}

// Discover is that of instance.Catalog.
func (c *Catalog) Discover(_ context.Context, q instance.Query) (instance.Result, error) {
	if q.Service == "" {
		return instance.Result{}, fault.Wrap("catalog.Discover", fault.Invalidf("service", q.Service, "is missing"))
	}
	res, err := c.find(q.Name, q.Selector)
	return res, fault.Wrap("catalog.Discover", err)
}

// List is that of instance.Catalog.
func (c *Catalog) List(_ context.Context, q instance.ListQuery) (instance.Result, error) {
	res, err := c.find(instance.Name{Namespace: q.Namespace}, q.Selector)
	return res, fault.Wrap("catalog.List", err)
}

func (c *Catalog) find(n instance.Name, sel instance.Selector) (instance.Result, error) {
	known := c.known() // first: what it says must not be newer than the result
	if s := c.streams.get(n); s != nil {
		r, err := c.result(s, sel)
		if err != nil {
			return instance.Result{}, err
		}
		return instance.Result{View: r.read(s).view, Contact: known}, nil
	}
	if _, err := sel.Compile(); err != nil {
		return instance.Result{}, err
	}
	return instance.Result{View: instance.NewView(c.forgotten.Load(), nil), Contact: known}, nil
}

// result finds or makes the result of a selector. One of a single instance is cheap, and not kept.
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
	r := &result{key: string(key), news: &news{match: match}}
	if sel.ID != "" && s.name.Service != "" {
		r.id = sel.ID
		return r, nil
	}
	return s.results.add(r, c.cfg.Results), nil
}

// known gives the state of contact, and up to where everything is known that is read after it.
func (c *Catalog) known() instance.Contact {
	rev, p := c.rev.Load(), c.contact.Load()
	if !p.stale {
		return instance.Contact{Revision: rev}
	}
	return instance.Contact{Stale: true, Reason: p.reason, Age: max(0, c.cfg.Now().Sub(p.since)), Revision: rev}
}

// Stats are for people and instruments.
type Stats struct {
	Revision   uint64
	Instances  int
	Services   int // with instances
	Namespaces int // with instances
	Watches    int // and waits
	Changes    int // remembered, those of a service and those of its namespace
	Results    int // kept
	Stale      bool
}

// Stats counts. It looks at every service.
func (c *Catalog) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := Stats{Revision: c.rev.Load(), Watches: c.watches, Stale: c.contact.Load().stale}
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
