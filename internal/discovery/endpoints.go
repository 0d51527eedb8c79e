package discovery

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/blackhole/blackhole/internal/platform/probe"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// Bounds of the measurement of endpoints.
const (
	maxEndpoints   = 4096             // offers with a measurement, or that wait for one
	endpointWidth  = 8                // probes at a time
	endpointEvery  = time.Minute      // between two checks of an offer that somebody asks for
	endpointAgain  = 10 * time.Second // from a first failed check to the second, which decides
	endpointAsked  = 5 * time.Minute  // an offer counts as asked for so long after it was in an answer
	endpointStands = 15 * time.Minute // a measurement says something for so long
	endpointTick   = time.Second
	endpointMemory = 16 // checks that count for the score
)

// EndpointProber speaks to endpoints: see probe.Prober.
type EndpointProber interface {
	Probe(ctx context.Context, t probe.Target) (probe.Outcome, bool)
}

// endpoint is what this peer knows of the endpoint of one offer.
type endpoint struct {
	record  *records.Record // the version that was read
	target  probe.Target
	state   string // of the target: "" can be measured
	asked   time.Time
	due     time.Time // next check; zero while one runs
	last    records.Measured
	fails   int       // failed checks in a row
	since   time.Time // of the first of them
	history []bool    // answered, newest last
}

// The states of a target.
const (
	canMeasure = ""
	noEndpoint = "none"    // the offer has none
	unknown    = "unknown" // of no kind that can be measured
)

// dead reports whether the endpoint does not serve: two checks in a row failed, the last one lately.
func (e *endpoint) dead(now time.Time) bool {
	return e.fails >= 2 && now.Sub(e.last.CheckedAt) < endpointStands
}

// endpoints measures the endpoints of offers in answers. It is safe for concurrent use.
type endpoints struct {
	prober  EndpointProber // nil: nothing is measured
	self    func(*records.Record) bool
	now     func() time.Time
	changed func(*records.Record) // is called when an offer's endpoint dies or returns; must not block

	mu    sync.Mutex // guards known
	known *simplelru.LRU[records.Name, *endpoint]
}

func newEndpoints(p EndpointProber, now func() time.Time, own func(*records.Record) bool, changed func(*records.Record)) *endpoints {
	known, err := simplelru.NewLRU[records.Name, *endpoint](maxEndpoints, nil)
	if err != nil {
		panic("discovery: " + err.Error()) // impossible: the size is a positive constant
	}
	return &endpoints{prober: p, now: now, self: own, changed: changed, known: known}
}

// want asks for measurements of offers that somebody sees.
func (x *endpoints) want(list []*records.Record) {
	if x.prober == nil {
		return
	}
	now := x.now()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range list {
		x.find(r, now).asked = now
	}
}

// find returns the state of an offer. A version with another endpoint begins anew. The caller holds x.mu.
func (x *endpoints) find(r *records.Record, now time.Time) *endpoint {
	e, ok := x.known.Get(r.Name())
	if ok && e.record.Sequence() >= r.Sequence() {
		return e
	}
	fresh := &endpoint{record: r, due: now}
	fresh.target, fresh.state = targetOf(r)
	if x.self(r) {
		fresh.state = cmp.Or(fresh.state, unknown) // its own word is a claim
	}
	if ok && e.target.String() == fresh.target.String() {
		e.record, e.state = r, fresh.state
		return e
	}
	x.known.Add(r.Name(), fresh)
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

// of returns what is known of the endpoint of an offer, and the evidence for its score; nil for an offer without an endpoint.
func (x *endpoints) of(r *records.Record, v *query.Evidence) *records.Measured {
	now := x.now()
	x.mu.Lock()
	defer x.mu.Unlock()
	e, ok := x.known.Peek(r.Name())
	if !ok || e.record.Sequence() < r.Sequence() {
		if _, state := targetOf(r); state == noEndpoint {
			return nil
		}
		return &records.Measured{State: records.Unmeasured}
	}
	switch {
	case e.state == noEndpoint:
		return nil
	case e.last.State == "" || now.Sub(e.last.CheckedAt) >= endpointStands:
		return &records.Measured{State: records.Unmeasured}
	}
	m := e.last
	if m.State == records.Answers {
		v.RoundTrip = m.RoundTrip
	} else {
		m.Since = e.since
	}
	v.Checks = len(e.history)
	for _, answered := range e.history {
		if answered {
			v.Answered++
		}
	}
	return &m
}

// dead returns the measurement of an offer whose endpoint does not serve.
func (x *endpoints) dead(r *records.Record) (records.Measured, bool) {
	now := x.now()
	x.mu.Lock()
	defer x.mu.Unlock()
	e, ok := x.known.Peek(r.Name())
	if !ok || e.record.Sequence() < r.Sequence() || !e.dead(now) {
		return records.Measured{}, false
	}
	m := e.last
	m.Since = e.since
	return m, true
}

// deadMatching counts the offers with a dead endpoint that match a plan.
func (x *endpoints) deadMatching(p *query.Plan) (n int) {
	now := x.now()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.known.Values() {
		if e.dead(now) && p.Match(e.record) {
			n++
		}
	}
	return n
}

// run checks endpoints until ctx ends, and waits for the checks.
func (x *endpoints) run(ctx context.Context) {
	if x.prober == nil {
		return
	}
	tick := time.NewTicker(endpointTick)
	defer tick.Stop()
	var checks sync.WaitGroup
	defer checks.Wait()
	slots := make(chan struct{}, endpointWidth)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, e := range x.due(endpointWidth - len(slots)) {
			slots <- struct{}{} // has room: only this loop fills it
			checks.Go(func() {
				defer func() { <-slots }()
				o, measured := x.prober.Probe(ctx, e.target)
				x.done(e, o, measured && ctx.Err() == nil)
			})
		}
	}
}

// due takes up to n offers to check, the longest due first.
func (x *endpoints) due(n int) []*endpoint {
	now := x.now()
	x.mu.Lock()
	defer x.mu.Unlock()
	var ready []*endpoint
	for _, e := range x.known.Values() {
		if e.state == canMeasure && now.Sub(e.asked) < endpointAsked && !e.due.IsZero() && !now.Before(e.due) {
			ready = append(ready, e)
		}
	}
	slices.SortFunc(ready, func(a, b *endpoint) int {
		return cmp.Or(a.due.Compare(b.due), a.record.Name().Compare(b.record.Name()))
	})
	ready = ready[:min(len(ready), max(n, 0))]
	for _, e := range ready {
		e.due = time.Time{}
	}
	return ready
}

// done takes the outcome of a check.
func (x *endpoints) done(e *endpoint, o probe.Outcome, measured bool) {
	now := x.now()
	x.mu.Lock()
	was := e.dead(now)
	e.due = now.Add(endpointEvery)
	if measured {
		e.take(o, now)
	}
	is, r := e.dead(now), e.record
	x.mu.Unlock()
	if was != is {
		x.changed(r)
	}
}

// take notes a measurement.
func (e *endpoint) take(o probe.Outcome, now time.Time) {
	answered := o.State == probe.Answers
	e.last = records.Measured{State: records.Reachability(o.State), RoundTrip: o.RoundTrip, CheckedAt: now, Detail: o.Detail}
	e.history = append(e.history, answered)
	e.history = e.history[max(0, len(e.history)-endpointMemory):]
	switch {
	case answered:
		e.fails, e.since = 0, time.Time{}
	case e.fails == 0:
		e.since, e.due = now, now.Add(endpointAgain)
		fallthrough
	default:
		e.fails++
	}
}
