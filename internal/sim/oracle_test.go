package sim

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// forgets is how long after a withdrawal an answer may still hold what was withdrawn: who
// learned of a version by a live update keeps it against its keepers for 15 s.
const forgets = 20 * time.Second

// oracle knows every service that was ever registered, and judges answers by a loop over
// all of them. It is safe for concurrent use.
type oracle struct {
	mu      sync.Mutex // guards what follows
	entries map[records.Name]*entry
	hostile map[peer.ID]bool // whoever signs what it likes
	unrest  bool             // news cannot reach everybody
	calm    time.Time        // when that was last mended
	demand  []string         // properties whose breach is a fault
	broken  map[string]int   // breaches of those
	excused map[string]int   // breaches of the others
	first   []string         // the first breaches, told
	names   *strings.Replacer
}

// entry is the life of one service.
type entry struct {
	latest *records.Record // nil until its registration returned
	ended  time.Time       // when its withdrawal was acknowledged; zero while it lives
}

func newOracle() *oracle {
	return &oracle{
		entries: make(map[records.Name]*entry),
		hostile: make(map[peer.ID]bool),
		demand:  []string{"P1", "P2", "P3"},
		broken:  make(map[string]int),
		excused: make(map[string]int),
		names:   strings.NewReplacer(),
	}
}

// expect announces that a service is being registered: answers may hold it from now on.
func (o *oracle) expect(n records.Name) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.entries[n] = new(entry)
}

// signed takes note of the version that a registration or an update led to.
func (o *oracle) signed(r *records.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	e := o.entries[r.Name()]
	if e.latest == nil || records.Compare(r, e.latest) > 0 {
		e.latest = r
	}
}

// withdrawn takes note of an acknowledged withdrawal.
func (o *oracle) withdrawn(n records.Name) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.entries[n].ended = time.Now()
}

// disturb says whether the network is such that news cannot reach everybody. P3 is demanded
// of what was withdrawn, and mended, long enough ago.
func (o *oracle) disturb(unrest bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unrest, o.calm = unrest, time.Now()
}

// learned reports how long ago everybody could have learned of a withdrawal; o.mu is held.
func (o *oracle) learned(e *entry, now time.Time) time.Duration {
	switch {
	case e == nil || e.ended.IsZero() || o.unrest:
		return 0
	case o.calm.After(e.ended):
		return now.Sub(o.calm)
	default:
		return now.Sub(e.ended)
	}
}

// excuse leaves only some properties demanded.
func (o *oracle) excuse(left ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.demand = left
}

// distrust says that what a peer signs is its own business.
func (o *oracle) distrust(id peer.ID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.hostile[id] = true
}

// lives lists the services that are offered, by name.
func (o *oracle) lives() []*records.Record {
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []*records.Record
	for _, e := range o.entries {
		if e.latest != nil && e.ended.IsZero() && !e.latest.Expired(now) {
			out = append(out, e.latest)
		}
	}
	slices.SortFunc(out, func(a, b *records.Record) int { return a.Name().Compare(b.Name()) })
	return out
}

// comparison is what became of one answer.
type comparison struct {
	wanted, found   int // of the records that the loop finds, up to the limit
	complete, exact bool
	reason          string // of an incomplete answer
}

// asked is a question and whom it was put to.
type asked struct {
	who   peer.ID
	query query.Query
}

// judge checks P1 and P3 of an answer that has just come, and P2 too in quiet times.
func (o *oracle) judge(q asked, a *query.Answer, quiet bool) comparison {
	who := q.who
	var got []records.Name
	for _, r := range a.Results {
		if o.check(who, r.Record) {
			got = append(got, r.Record.Name())
		}
	}
	want := o.find(q.query)
	var missing []records.Name
	for _, n := range want {
		if !slices.Contains(got, n) {
			missing = append(missing, n)
		}
	}
	v := comparison{
		wanted: len(want), found: len(want) - len(missing),
		complete: a.Complete, exact: slices.Equal(got, want), reason: a.Reason,
	}
	if quiet && v.complete && !v.exact {
		extra := slices.DeleteFunc(slices.Clone(got), func(n records.Name) bool { return slices.Contains(want, n) })
		o.breach("P2", "at %s (%s), source %s: a complete answer has %d records, not %d; missing %s, too many %s; %s",
			o.rename(who.String()), time.Now().Format("15:04:05"), a.Source, len(got), len(want), o.told(missing), o.told(extra), o.course(a.Notes))
	}
	return v
}

// find looks at every record.
func (o *oracle) find(q query.Query) []records.Name {
	plan, err := queries.Compile(q, queries.Defaults{Limit: 100})
	if err != nil {
		panic(err) // the market's questions are valid
	}
	var hits []queries.Hit
	for _, r := range o.lives() {
		if plan.Match(r) {
			hits = append(hits, plan.Hit(r))
		}
	}
	plan.Arrange(hits)
	var names []records.Name
	for _, h := range hits[:min(plan.Limit(), len(hits))] {
		names = append(names, h.Record.Name())
	}
	return names
}

// check judges one returned record by P1 and P3, and tells whether it is an honest peer's.
func (o *oracle) check(who peer.ID, r *records.Record) bool {
	now, n := time.Now(), r.Name()
	o.mu.Lock()
	e, hostile := o.entries[n], o.hostile[n.Provider]
	learned := o.learned(e, now)
	o.mu.Unlock()
	_, err := records.Open(networkName, r.Envelope(), now) // afresh: what a peer verified earlier is not believed
	switch {
	case r.Expired(now):
		o.breach("P1", "%s was returned to %s %s after it lapsed", n, short(who), now.Sub(r.Expires()))
	case err != nil:
		o.breach("P1", "%s was returned to %s and does not verify: %v", n, short(who), err)
	case r.Withdrawn():
		o.breach("P3", "the tombstone of %s was returned to %s", n, short(who))
	case hostile:
		return false
	case e == nil:
		o.breach("P1", "%s was returned to %s, and its provider never offered it", n, short(who))
	case learned > forgets:
		o.breach("P3", "%s was returned to %s %s after it was withdrawn", o.rename(n.String()), o.rename(who.String()), learned.Round(time.Second))
	}
	return true
}

func (o *oracle) breach(property, format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.Contains(o.demand, property) {
		o.excused[property]++
		property = "(excused) " + property
	} else {
		o.broken[property]++
	}
	if len(o.first) < 10 {
		o.first = append(o.first, "\n"+property+": "+fmt.Sprintf(format, args...))
	}
}

// course gives the notes of an explained answer that tell whom the peer asked.
func (o *oracle) course(notes []string) string {
	var out []string
	for _, n := range notes {
		if strings.HasPrefix(n, "asked ") || strings.HasPrefix(n, "cells ") {
			out = append(out, o.rename(n))
		}
	}
	return strings.Join(out, "; ")
}

// know gives peers the names by which breaches tell of them.
func (o *oracle) know(peers []*simPeer) {
	var pairs []string
	for i, p := range peers {
		pairs = append(pairs, p.id.String(), fmt.Sprintf("p%d", i))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.names = strings.NewReplacer(pairs...)
}

// rename replaces the ids of peers by their places in the order of joining.
func (o *oracle) rename(s string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.names.Replace(s)
}

func (o *oracle) told(names []records.Name) string {
	var out []string
	for _, n := range names {
		out = append(out, n.String())
	}
	return o.rename(fmt.Sprint(out))
}

func short(id peer.ID) string { s := id.String(); return s[len(s)-6:] }
