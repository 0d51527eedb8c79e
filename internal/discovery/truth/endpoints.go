// Package truth finds out what offers are worth: whether their endpoints answer, whether a domain names their provider, and, with
// package p2p/probe, whether the provider's peer lives. It checks what somebody sees, shares what it finds with the witnesses of
// the provider, and says who is dead. Nothing is dead by the word of others alone.
package truth

import (
	"cmp"
	"context"
	"hash/fnv"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/witness"
	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/internal/platform/probe"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// Bounds of the measurement of endpoints.
const (
	maxEndpoints   = 4096             // offers with a measurement, or that wait for one
	endpointWidth  = 32               // probes at a time
	endpointEvery  = time.Minute      // between two checks of an offer that somebody asks for
	endpointAgain  = 10 * time.Second // from a first failed check to the second, which decides
	endpointAsked  = 5 * time.Minute  // an offer counts as asked for so long after it was in an answer
	endpointStands = 15 * time.Minute // a measurement says something for so long
	endpointTick   = time.Second
	endpointMemory = 16              // checks that count for the score
	patience       = 2 * time.Second // of a check that others' failed ones caused, beside four round trips
)

// Prober speaks to endpoints: see probe.Prober.
type Prober interface {
	Probe(ctx context.Context, t probe.Target) (probe.Outcome, bool)
}

// endpoint is what this peer knows of the endpoint of one offer, or of a provider's domain.
type endpoint struct {
	name     records.Name    // of the offer; for a domain see domainOf
	hash     uint64          // of the name; says when witnesses check
	domain   bool            // dead then means that the domain is not known to name the provider
	record   *records.Record // the version that was read
	target   probe.Target
	state    string    // of the target: "" can be measured
	begun    time.Time // findings from before are about another target; zero: none
	asked    time.Time
	shown    time.Time // since when it is asked for without a break
	sought   time.Time // a question asked for the checked domain
	due      time.Time // next check; zero while one runs
	duty     bool      // a check is due as a witness, or because others contradict, which goes first
	last     records.Measured
	answered time.Time   // last own check with an answer; zero: none
	fails    int         // failed checks in a row
	since    time.Time   // of the first of them
	history  []bool      // answered, newest last, without checks of a closed endpoint
	asks     probe.Price // by the last own check
	unclear  string      // what the last own check found, if it said nothing
	passing  time.Time   // since when the endpoint says at each check that it will soon serve; zero: it does not
	rest     time.Time   // no check before: a closed endpoint asked for it
	dead     bool        // verdict as of the last look

	shares
}

// The states of a target.
const (
	canMeasure = ""
	noEndpoint = "none"    // the offer has none
	unknown    = "unknown" // of no kind that can be measured
)

// verdict combines what this peer found with what others found. No offer is dead without a failed check of this peer: a second one decides,
// or the failed checks of two others in other networks. An answer to this peer beats the word of any number of others.
func (x *Checks) verdict(e *endpoint, now time.Time) (m records.Measured, dead bool) {
	if e.domain {
		return x.proof(e, now)
	}
	m = e.last
	m.Since = e.since
	o, failed, answered := e.others(now)
	if e.fails > 0 && failed > answered && x.agree(e, false, x.confirming(e.name.Provider), now) {
		m.Peers, m.CheckedAt = failed, later(m.CheckedAt, o.CheckedAt)
		return m, true
	}
	if e.stands(now) && (e.fails >= 2 || o.State == "" || !m.CheckedAt.Before(o.CheckedAt) || m.State.Alive() && now.Sub(m.CheckedAt) < endpointEvery) {
		return m, e.fails >= 2
	}
	return o, false
}

// stands reports whether the own last check says something.
func (e *endpoint) stands(now time.Time) bool {
	return e.last.State != "" && now.Sub(e.last.CheckedAt) < endpointStands
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Checks measures the endpoints of offers in answers, and the domains that they claim. It is safe for concurrent use.
type Checks struct {
	prober  Prober // nil: nothing is measured
	self    func(*records.Record) bool
	now     func() time.Time
	changed func(*records.Record) // is called when an offer's endpoint dies or returns; must not block
	sharing *Sharing              // nil: this peer measures alone
	wake    chan struct{}         // capacity 1: a check is due now

	roles   map[peer.ID][]peer.ID // of the witnesses of providers, for assume alone
	rolesAt time.Time

	epoch  atomic.Uint64 // grows with each change of the dead offers
	mu     sync.Mutex    // guards the fields below
	known  *simplelru.LRU[records.Name, *endpoint]
	askers *simplelru.LRU[asker, time.Time] // who asked this witness lately
	doubts *simplelru.LRU[peer.ID, doubt]
}

// New returns checks that know nothing yet. The caller runs Run.
func New(p Prober, now func() time.Time, own func(*records.Record) bool, changed func(*records.Record), sharing *Sharing) *Checks {
	x := &Checks{
		prober: p, now: now, self: own, changed: changed, sharing: sharing, wake: make(chan struct{}, 1),
		askers: bounded.Map[asker, time.Time](maxAskers, nil), doubts: bounded.Map[peer.ID, doubt](maxDoubts, nil),
	}
	x.known = bounded.Map(maxEndpoints, func(_ records.Name, e *endpoint) { x.note(e, false) })
	return x
}

// note takes a verdict, and reports whether it is another one than before. The caller holds x.mu.
func (x *Checks) note(e *endpoint, dead bool) bool {
	if dead == e.dead {
		return false
	}
	e.dead = dead
	x.epoch.Add(1)
	return true
}

// Want asks for measurements of offers that somebody sees.
func (x *Checks) Want(list []*records.Record) {
	if x.prober == nil {
		return
	}
	now := x.now()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range list {
		for _, e := range x.find(r, now) {
			if now.Sub(e.asked) >= endpointAsked {
				e.shown = now
				x.awake() // the first question to its witnesses need not wait
			}
			e.asked = now
		}
	}
}

// find returns the state of an offer, and that of its domain if it names one. The caller holds x.mu.
func (x *Checks) find(r *records.Record, now time.Time) []*endpoint {
	list := []*endpoint{x.entry(r.Name(), r, now)}
	if n, ok := domainOf(r); ok {
		list = append(list, x.entry(n, r, now))
	}
	return list
}

// entry returns what is known under a name of an offer. A version with another target begins anew. The caller holds x.mu.
func (x *Checks) entry(n records.Name, r *records.Record, now time.Time) *endpoint {
	e, ok := x.known.Get(n)
	if ok && e.record.Sequence() >= r.Sequence() {
		return e
	}
	fresh := &endpoint{name: n, record: r, due: now, domain: n != r.Name()}
	h := fnv.New64a()
	_, _ = h.Write([]byte(n.String()))
	fresh.hash = h.Sum64()
	if fresh.dead = fresh.domain; fresh.domain {
		fresh.target, fresh.state = domainTarget(n)
	} else if fresh.target, fresh.state = targetOf(r); x.self(r) {
		fresh.state = cmp.Or(fresh.state, unknown) // its own word is a claim
	}
	if ok && e.target.String() == fresh.target.String() {
		e.record, e.state = r, fresh.state
		return e
	}
	if ok {
		x.note(e, false)
		fresh.begun = now
	}
	x.known.Add(fresh.name, fresh)
	return fresh
}

// targetOf finds the first endpoint of an offer that can be measured.
func targetOf(r *records.Record) (t probe.Target, state string) {
	m := r.Service().GetMetadata()
	if len(m.GetEndpoints()) == 0 {
		return t, noEndpoint
	}
	for _, text := range m.GetEndpoints() {
		if t, ok := probe.Parse(text, m.GetProtocols()); ok {
			return t, canMeasure
		}
	}
	return t, unknown
}

// Of returns what is known of the endpoint of an offer, and the evidence for its score; nil for an offer without an endpoint.
func (x *Checks) Of(r *records.Record, v *queries.Evidence) *records.Measured {
	now := x.now()
	x.mu.Lock()
	defer x.mu.Unlock()
	e, ok := x.known.Peek(r.Name())
	if !ok || e.record.Sequence() < r.Sequence() {
		if !r.Facts().Has(records.KnownEndpoint) { // a search has many such records: it decodes none
			return nil
		}
		return &records.Measured{State: records.Unmeasured}
	}
	m, _ := x.verdict(e, now)
	v.Failed = e.fails > 0
	switch {
	case e.state == noEndpoint:
		return nil
	case m.State == "":
		return &records.Measured{State: records.Unmeasured, Detail: e.unclear}
	case m.State == records.Answers:
		v.RoundTrip = m.RoundTrip
	case m.State == records.Closed:
		v.Closed = true
		v.AskedFor(r, e.asks.Amount, e.asks.Currency)
	}
	v.Checks = len(e.history)
	if v.Checks == 0 { // only others checked it
		for _, h := range e.heard {
			if h.State != records.Closed {
				v.Checks++
			}
			if h.State == records.Answers {
				v.Answered++
			}
		}
	}
	for _, answered := range e.history {
		if answered {
			v.Answered++
		}
	}
	return &m
}

// Dead returns the measurement of an offer whose endpoint does not serve.
func (x *Checks) Dead(r *records.Record) (records.Measured, bool) {
	now := x.now()
	x.mu.Lock()
	defer x.mu.Unlock()
	e, ok := x.known.Peek(r.Name())
	if !ok || !SameTarget(e.record, r) {
		return records.Measured{}, false
	}
	return x.verdict(e, now)
}

// SameTarget reports whether what is known of one version holds for another.
func SameTarget(known, r *records.Record) bool {
	if known.Sequence() >= r.Sequence() {
		return true
	}
	a, _ := targetOf(known)
	b, _ := targetOf(r)
	return a.String() == b.String()
}

// Buried returns the offers whose endpoint does not serve, in the version that is known here.
func (x *Checks) Buried() map[records.Name]*records.Record {
	now := x.now()
	x.mu.Lock()
	defer x.mu.Unlock()
	list := make(map[records.Name]*records.Record)
	for _, e := range x.known.Values() {
		if _, dead := x.verdict(e, now); dead && !e.domain {
			list[e.name] = e.record
		}
	}
	return list
}

// DeadMatching counts the offers that match a plan whose endpoint is dead or failed its last check, and the domains that are not checked
// if the plan asks for such.
func (x *Checks) DeadMatching(p *queries.Plan) (n int) {
	now := x.now()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.known.Values() {
		_, dead := x.verdict(e, now)
		if (dead || e.fails > 0) && (!e.domain || p.Domain() != "") && p.Match(e.record) {
			n++
		}
	}
	return n
}

// Run checks endpoints until ctx ends, and waits for the checks.
func (x *Checks) Run(ctx context.Context) {
	if x.prober == nil {
		return
	}
	tick := time.NewTicker(endpointTick)
	defer tick.Stop()
	var checks sync.WaitGroup
	defer checks.Wait()
	slots := make(chan struct{}, endpointWidth)
	var assumed time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-x.wake:
		}
		if x.sharing != nil && x.now().Sub(assumed) >= dutyRenewal {
			assumed = x.now()
			x.assume(ctx)
		}
		for _, do := range x.work(endpointWidth - len(slots)) {
			slots <- struct{}{} // has room: only this loop fills it
			checks.Go(func() {
				defer func() { <-slots }()
				do(ctx)
			})
		}
	}
}

// work returns up to n things to do now: checks, the longest due first, questions to witnesses, and news for those who asked.
func (x *Checks) work(n int) (list []func(context.Context)) {
	now := x.now()
	x.mu.Lock()
	defer x.mu.Unlock()
	var ready []*endpoint
	for _, e := range x.known.Values() {
		if e.state != canMeasure {
			if x.sharing != nil && now.Sub(e.asked) < endpointAsked && now.Sub(e.fetched) >= fetchEvery && !x.self(e.record) {
				ready = append(ready, e) // its witnesses tell of its provider
			}
			continue
		}
		if e.dead { // the verdict may end with its time
			if _, dead := x.verdict(e, now); x.note(e, dead) {
				x.changed(e.record)
			}
		}
		if len(list) < n && x.news(e, now) {
			list = append(list, x.spread(e))
		}
		if e.due.IsZero() || now.Before(e.rest) {
			continue
		}
		e.duty = e.duty || x.called(e, now)
		if len(list) < n && e.guest.due {
			list = append(list, x.hand(e))
		}
		if e.duty || now.Sub(e.asked) < endpointAsked && !now.Before(e.due) {
			ready = append(ready, e)
		}
	}
	since := func(e *endpoint) time.Time {
		if e.duty {
			return time.Time{}
		}
		return e.due
	}
	slices.SortFunc(ready, func(a, b *endpoint) int {
		return cmp.Or(since(a).Compare(since(b)), a.name.Compare(b.name))
	})
	for i, e := range ready {
		switch {
		case len(list) >= n:
			return list
		case !e.duty && e.fetched.Equal(now): // another one's question was about this one too
		case x.sharing != nil && !e.duty && now.Sub(e.fetched) >= fetchEvery:
			list = append(list, x.question(ready[i:], now))
		case e.state != canMeasure:
		case x.sharing != nil && !e.duty && x.spare(e, now):
			e.due = now.Add(endpointEvery)
		default:
			list = append(list, x.begin(e))
		}
	}
	return list
}

// begin begins a check. The caller holds x.mu.
func (x *Checks) begin(e *endpoint) func(context.Context) {
	limit, known := probe.Timeout, e.last.RoundTrip
	for _, h := range e.heard {
		known = max(known, h.RoundTrip)
	}
	switch quick := min(limit, patience+4*known); {
	case known == 0:
	case e.hasty:
		limit = quick
	default: // a check that stands in for another one ends with it, so that the two say together that the endpoint is silent
		limit = max(quick, limit-e.after)
	}
	if e.hasty && e.fails > 1 {
		e.vain++
	}
	alone := x.sharing == nil || e.private() || e.hasty && len(e.witnesses) == 0 // all who asked check now, so their findings are no news
	duty := e.duty
	e.due, e.duty, e.hasty, e.after = time.Time{}, false, false, 0
	return func(ctx context.Context) { x.check(ctx, e, limit, alone, duty) }
}

// question is one question to the witnesses of the first endpoint's provider, about all its offers in a list that fit.
func (x *Checks) question(list []*endpoint, now time.Time) func(context.Context) {
	provider := list[0].name.Provider
	var ids []string
	for _, e := range list {
		if n := e.name; n.Provider == provider && len(ids) < witness.MaxFindings {
			e.fetched, e.due = now, now.Add(2*endpointTick)
			ids = append(ids, n.ID)
		}
	}
	return func(ctx context.Context) { x.fetch(ctx, provider, ids) }
}

// check speaks to an endpoint and takes the outcome.
func (x *Checks) check(ctx context.Context, e *endpoint, limit time.Duration, alone, duty bool) {
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	x.mu.Lock()
	target, _ := x.permitted(e.record, e.target)
	x.mu.Unlock()
	o, measured := x.prober.Probe(bounded, target)
	measured = measured && ctx.Err() == nil
	now := x.now()
	x.mu.Lock()
	if known, _ := x.known.Peek(e.name); known != e { // the offer has another endpoint now
		x.mu.Unlock()
		return
	}
	was, failed := e.dead, e.fails > 0
	e.due = now.Add(cmp.Or(o.Again, endpointEvery))
	if e.unclear = o.Detail; measured {
		e.unclear = ""
		o = e.lasting(o, now)
		x.weigh(e, alive(o), now)
		e.take(o, now)
	}
	_, dead := x.verdict(e, now)
	changed := x.note(e, dead) || failed != (e.fails > 0) // such an offer stands last
	r, n, m := e.record, e.name, e.last
	others, _, _ := e.others(now)
	known := !duty && others.State.Alive() && now.Sub(others.CheckedAt) < endpointEvery
	quiet := (known || !x.wanted(e, now)) && alive(o) && !was && !e.suspected()
	x.mu.Unlock()
	if changed {
		x.changed(r)
		x.awake()
	}
	if measured && !alone {
		x.tell(ctx, n, m, quiet)
	}
}

func alive(o probe.Outcome) bool { return records.Reachability(o.State).Alive() }

// lasting is the outcome with what the checks before say: an endpoint that is about to serve for too long does not.
func (e *endpoint) lasting(o probe.Outcome, now time.Time) probe.Outcome {
	switch {
	case !o.Passing:
		e.passing = time.Time{}
	case e.passing.IsZero():
		e.passing = now
	case now.Sub(e.passing) >= probe.MaxWait:
		o.State, o.Again, o.Detail = probe.Refuses, 0, o.Detail+", it said for "+probe.MaxWait.String()
	}
	return o
}

// take notes a measurement.
func (e *endpoint) take(o probe.Outcome, now time.Time) {
	e.last = records.Measured{
		State: records.Reachability(o.State), RoundTrip: cmp.Or(o.RoundTrip, e.last.RoundTrip), CheckedAt: now,
		Detail: o.Detail, EndpointText: o.Text,
	}
	if e.asks = o.Asks; o.State == probe.Closed {
		e.rest = now.Add(o.Again)
		e.due = later(e.rest, now.Add(endpointEvery))
	} else {
		e.history = append(e.history, alive(o))
		e.history = e.history[max(0, len(e.history)-endpointMemory):]
	}
	switch {
	case alive(o):
		e.fails, e.vain, e.since, e.answered = 0, 0, time.Time{}, now
	case e.fails == 0:
		e.since, e.due = now, now.Add(endpointAgain)
		fallthrough
	default:
		e.fails++
	}
}

// Epoch grows with each change of the dead offers.
func (x *Checks) Epoch() uint64 { return x.epoch.Load() }

// NotServing says why an endpoint does not serve.
func NotServing(m records.Measured) string { return "endpoint: " + worded(m) }

// worded is a state with its detail.
func worded(m records.Measured) string {
	if m.Detail == "" {
		return string(m.State)
	}
	return string(m.State) + ", " + m.Detail
}
