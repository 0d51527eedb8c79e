// Package truth finds out what offers are worth: whether their endpoints answer, whether a domain names their
// provider, and whether the provider's peer lives. It checks what somebody sees, shares what it finds with the
// witnesses of the provider, and says who is dead. Nothing is dead by the word of others alone.
package truth

import (
	"cmp"
	"context"
	"hash/fnv"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/bounded"
	reach "github.com/blackhole/blackhole/internal/platform/p2p/probe"
	"github.com/blackhole/blackhole/internal/platform/pause"
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
	soonAgain      = 4                // failed checks, up to which the own next one comes soon: most outages are short
	endpointTick   = time.Second
	endpointMemory = 16              // checks that count for the score
	patience       = 2 * time.Second // of a check that others' failed ones caused, beside four round trips
)

// Prober speaks to endpoints: see probe.Prober.
type Prober interface {
	Probe(ctx context.Context, t probe.Target) (probe.Outcome, bool)
}

// endpoint is what this peer knows of the endpoint of one offer, or of a provider's peer or domain.
type endpoint struct {
	name     records.Name    // of the offer; for a domain see domainOf, for a peer PeerOf
	hash     uint64          // of the name; says when witnesses check
	domain   bool            // dead then means that the domain is not known to name the provider
	peer     bool            // of the provider
	record   *records.Record // the version that was read; of a peer or domain any offer
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
	refused  bool        // a peer's first failed check was a refusal at all addresses
	dialed   time.Time   // a check last opened a connection to the peer

	shares
}

// The states of a target.
const (
	canMeasure = ""
	noEndpoint = "none"    // the offer has none
	unknown    = "unknown" // of no kind that can be measured
)

// verdict combines what this peer found with what others found. No offer is dead without a failed check of this
// peer: a second one decides, or the failed checks of two others in other networks. An answer to this peer beats
// the word of any number of others.
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

// Config is what Checks use. Now, Own and Changed are required.
type Config struct {
	Prober  Prober                                   // nil: no endpoint and no domain is measured
	Peers   Peers                                    // nil: no peer is measured
	Offers  func(provider peer.ID) []*records.Record // known ones; required with Peers
	Now     func() time.Time
	Own     func(*records.Record) bool
	Changed func(*records.Record) // is called when an offer's endpoint or peer dies or returns; must not block
	Sharing *Sharing              // nil: this peer measures alone
	Every   time.Duration         // between two checks of a peer that somebody asks for; 0: a minute
	Confirm time.Duration         // from a first silence of a peer to the one that decides; 0: 2 minutes
	Timeout time.Duration         // of a check of a peer; 0: 10 s
	// Dial connects to the service of an offer through its provider's peer, for one handshake; nil: what sells so stays
	// unmeasured. An error other than Gone says nothing about the service.
	Dial func(ctx context.Context, provider peer.ID, offer string) (net.Conn, error)
}

// Checks measures the endpoints of offers in answers, the peers of their providers, and the domains that they claim.
// It is safe for concurrent use.
type Checks struct {
	Config
	wake chan struct{} // capacity 1: a check is due now

	roles   map[peer.ID][]peer.ID // of the witnesses of providers, for assume alone
	rolesAt time.Time

	epoch  atomic.Uint64 // grows with each change of the dead offers
	moved  pause.Broadcast
	mu     sync.Mutex // guards the fields below
	known  *simplelru.LRU[records.Name, *endpoint]
	deaths int                              // dead endpoints and peers in known
	askers *simplelru.LRU[asker, time.Time] // who asked this witness lately
	doubts *simplelru.LRU[peer.ID, doubt]
}

// New returns checks that know nothing yet. The caller runs Run.
func New(c Config) *Checks {
	c.Every, c.Confirm = cmp.Or(c.Every, endpointEvery), cmp.Or(c.Confirm, 2*time.Minute)
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	x := &Checks{
		Config: c, wake: make(chan struct{}, 1),
		askers: bounded.Map[asker, time.Time](maxAskers, nil), doubts: bounded.Map[peer.ID, doubt](maxDoubts, nil),
	}
	x.known = bounded.Map(maxEndpoints, func(_ records.Name, e *endpoint) { x.note(e, false) })
	if c.Peers != nil {
		c.Peers.Follow(x.connected)
	}
	return x
}

// note takes a verdict, and reports whether it is another one than before. The caller holds x.mu.
func (x *Checks) note(e *endpoint, dead bool) bool {
	if dead == e.dead {
		return false
	}
	e.dead = dead
	switch {
	case e.domain:
	case dead:
		x.deaths++
	default:
		x.deaths--
	}
	x.epoch.Add(1)
	x.moved.Wake()
	return true
}

// spareDead has the oldest entry that lives make room for another one, so that a caller with many questions brings
// nothing dead back into answers. More than half of the entries are never spared. The caller holds x.mu.
func (x *Checks) spareDead() {
	const most = 64 // entries spared for one that comes
	for n := 0; n < most && x.known.Len() >= maxEndpoints && x.deaths <= maxEndpoints/2; n++ {
		_, e, _ := x.known.GetOldest()
		if !e.dead || e.domain {
			return
		}
		x.known.Get(e.name)
	}
}

// Want asks for measurements of offers that somebody sees.
func (x *Checks) Want(list []*records.Record) {
	now := x.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range list {
		all, n := x.find(r, now)
		for _, e := range all[:n] {
			if now.Sub(e.asked) >= endpointAsked {
				e.shown = now
				x.awake() // the first question to its witnesses need not wait
			}
			e.asked = now
		}
	}
}

// find returns the state of an offer, of its provider's peer, and of its domain if it names one. The caller holds
// x.mu.
func (x *Checks) find(r *records.Record, now time.Time) (all [3]*endpoint, n int) { // of each cached answer: it allocates nothing
	all[0], n = x.entry(r.Name(), r, now), 1
	if x.Peers != nil {
		all[n] = x.entry(PeerOf(r.Name().Provider), r, now)
		n++
	}
	if name, ok := domainOf(r); ok {
		all[n] = x.entry(name, r, now)
		n++
	}
	return all, n
}

// entry returns what is known under a name of an offer. A version with another target begins anew. The caller holds
// x.mu.
func (x *Checks) entry(n records.Name, r *records.Record, now time.Time) *endpoint {
	e, ok := x.known.Get(n)
	if ok && e.record.Sequence() >= r.Sequence() {
		return e
	}
	fresh := &endpoint{name: n, record: r, due: now, peer: n.ID == "", domain: n.ID != "" && n != r.Name()}
	h := fnv.New64a()
	_, _ = h.Write([]byte(n.String()))
	fresh.hash = h.Sum64()
	switch fresh.dead = fresh.domain; {
	case fresh.domain:
		fresh.target, fresh.state = domainTarget(n)
	case !fresh.peer:
		fresh.target, fresh.state = targetOf(r)
	}
	if !fresh.domain && x.Own(r) || !fresh.peer && x.Prober == nil || fresh.target.Carried && x.Dial == nil {
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
	x.spareDead()
	x.known.Add(fresh.name, fresh)
	return fresh
}

// targetOf finds what a buyer gets to: what a grant gives access to, or the first endpoint of an offer that can be
// measured.
func targetOf(r *records.Record) (t probe.Target, state string) {
	m := r.Service().GetMetadata()
	switch {
	case m.GetAccess() == records.AccessPeer:
		return probe.Carried(m.GetProtocols()), canMeasure
	case len(m.GetEndpoints()) == 0:
		return t, noEndpoint
	}
	for _, text := range m.GetEndpoints() {
		if t, ok := probe.Parse(text, m.GetProtocols()); ok {
			return t, canMeasure
		}
	}
	return t, unknown
}

// Row is what is known of an offer beside its claims: a measurement of its provider's peer, nil without one; of its
// endpoint, nil for an offer without one; of its domain, nil for an offer that names none.
type Row struct{ Peer, Endpoint, Domain *records.Measured }

// Of returns the row of an offer, and the evidence for its score.
func (x *Checks) Of(r *records.Record, v *queries.Evidence) Row {
	now := x.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	return Row{Peer: x.peerRow(r, v, now), Endpoint: x.endpointRow(r, v, now), Domain: x.domainRow(r, now)}
}

// endpointRow comes after peerRow: an endpoint that answers has a round trip of its own. The caller holds x.mu.
func (x *Checks) endpointRow(r *records.Record, v *queries.Evidence, now time.Time) *records.Measured {
	e, ok := x.known.Peek(r.Name())
	if !ok || e.record.Sequence() < r.Sequence() {
		if !r.Facts().Has(records.KnownEndpoint) { // a search has many such records: it decodes none
			return nil
		}
		return &records.Measured{State: records.Unmeasured}
	}
	m, _ := x.verdict(e, now)
	v.Failed = v.Failed || e.fails > 0
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

// Dead reports whether the peer of an offer's provider is gone, or its endpoint does not serve.
func (x *Checks) Dead(r *records.Record) (Death, bool) {
	now, n := x.Now(), r.Name()
	x.mu.Lock()
	defer x.mu.Unlock()
	if e, ok := x.known.Peek(PeerOf(n.Provider)); ok {
		if m, dead := x.verdict(e, now); dead {
			return Death{e.name, m}, true
		}
	}
	e, ok := x.known.Peek(n)
	if !ok || !SameTarget(e.record, r) {
		return Death{}, false
	}
	m, dead := x.verdict(e, now)
	return Death{n, m}, dead
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

// Buried returns the offers whose endpoint does not serve, in the version that is known here, and by PeerOf any offer
// of the providers whose peer is gone.
func (x *Checks) Buried() map[records.Name]*records.Record {
	now := x.Now()
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

// DeadMatching counts the offers that match a plan whose peer or endpoint is dead or failed its last check, and the
// domains that are not checked if the plan asks for such. It may count an offer twice.
func (x *Checks) DeadMatching(p *queries.Plan) (n int) {
	now := x.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.known.Values() {
		_, dead := x.verdict(e, now)
		if !dead && e.fails == 0 || e.domain && p.Domain() == "" {
			continue
		}
		for _, r := range x.offersOf(e) {
			if p.Match(r) {
				n++
			}
		}
	}
	return n
}

// Run checks endpoints until ctx ends, and waits for the checks.
func (x *Checks) Run(ctx context.Context) {
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
		if x.Sharing != nil && x.Now().Sub(assumed) >= dutyRenewal {
			assumed = x.Now()
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

// work returns up to n things to do now: checks, the longest due first, questions to witnesses, and news for those
// who asked.
func (x *Checks) work(n int) (list []func(context.Context)) {
	now := x.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	var ready []*endpoint
	for _, e := range x.known.Values() {
		if e.state != canMeasure {
			if x.Sharing != nil && now.Sub(e.asked) < endpointAsked && now.Sub(e.fetched) >= fetchEvery && !x.Own(e.record) {
				ready = append(ready, e) // its witnesses tell of its provider
			}
			continue
		}
		if e.dead { // the verdict may end with its time
			if _, dead := x.verdict(e, now); x.note(e, dead) {
				x.alert(e)
			}
		}
		if len(list) < n && x.news(e, now) {
			list = append(list, x.spread(e))
		}
		if e.due.IsZero() || now.Before(e.rest) {
			continue
		}
		if len(list) < n && x.unsettled(e, now) {
			list = append(list, x.question([]*endpoint{e}, now))
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
		case x.Sharing != nil && !e.duty && now.Sub(e.fetched) >= fetchEvery:
			list = append(list, x.question(ready[i:], now))
		case e.state != canMeasure:
		case x.Sharing != nil && !e.duty && x.spare(e, now):
			e.due = now.Add(x.every(e))
		default:
			list = append(list, x.begin(e))
		}
	}
	return list
}

// begin begins a check. The caller holds x.mu.
func (x *Checks) begin(e *endpoint) func(context.Context) {
	limit, known := probe.Timeout, e.last.RoundTrip
	if e.peer {
		limit = x.Timeout
	}
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
	alone := x.Sharing == nil || e.private() || e.hasty && len(e.witnesses) == 0 // all who asked check now, so their findings are no news
	duty := e.duty
	e.due, e.duty, e.hasty, e.after = time.Time{}, false, false, 0
	return func(ctx context.Context) { x.check(ctx, e, limit, alone, duty) }
}

// question is one question to the witnesses of the first endpoint's provider, about all its offers in a list that fit.
func (x *Checks) question(list []*endpoint, now time.Time) func(context.Context) {
	provider := list[0].name.Provider
	var ids []string
	for _, e := range list {
		if n := e.name; n.Provider == provider && len(ids) < protocol.MaxFindings {
			e.fetched, e.due = now, later(e.due, now.Add(2*endpointTick))
			ids = append(ids, n.ID)
		}
	}
	return func(ctx context.Context) { x.fetch(ctx, provider, ids, nil) }
}

// speak runs a check of an endpoint, a domain or a peer, within a limit.
func (x *Checks) speak(ctx context.Context, e *endpoint, limit time.Duration) (
	o probe.Outcome, measured bool, of reach.Outcome,
) {
	if e.target.Carried {
		o, measured = x.through(ctx, e, limit)
		return o, measured, of
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if e.peer {
		of = x.Peers.Check(ctx, e.name.Provider)
		return probe.Outcome{State: probe.State(of.State), RoundTrip: of.RoundTrip}, of.State != "", of
	}
	x.mu.Lock()
	target, _ := x.permitted(e.record, e.target)
	x.mu.Unlock()
	o, measured = x.Prober.Probe(ctx, target)
	return o, measured, of
}

// through speaks to a service behind its provider's peer. The way there has a time of its own, and says nothing about
// the service: the check of the peer tells whether that lives.
func (x *Checks) through(ctx context.Context, e *endpoint, limit time.Duration) (o probe.Outcome, measured bool) {
	dial := func(ctx context.Context) (net.Conn, error) { return x.Dial(ctx, e.name.Provider, e.name.ID) }
	way, cancel := context.WithTimeout(ctx, x.Timeout)
	defer cancel()
	began := x.Now()
	first, err := dial(way)
	took := x.Now().Sub(began)
	if err == nil {
		defer func() { _ = first.Close() }() // also one that was not used
	}
	ctx, cancel = context.WithTimeout(ctx, limit)
	defer cancel()
	var used atomic.Bool
	o, measured = x.Prober.Probe(ctx, e.target.Over(func(ctx context.Context) (net.Conn, error) {
		if used.CompareAndSwap(false, true) {
			return first, err
		}
		return dial(ctx) // the service closed the one before
	}))
	if o.State == probe.Answers {
		o.RoundTrip += took
	}
	if o.Detail != "" {
		o.Detail += " (through its provider's peer)"
	}
	return o, measured
}

// check speaks to an endpoint and takes the outcome.
func (x *Checks) check(ctx context.Context, e *endpoint, limit time.Duration, alone, duty bool) {
	o, measured, of := x.speak(ctx, e, limit)
	now := x.Now()
	x.mu.Lock()
	if known, _ := x.known.Peek(e.name); known != e { // the offer has another endpoint now
		x.mu.Unlock()
		return
	}
	was, failed := e.dead, e.fails > 0
	e.due = now.Add(cmp.Or(o.Again, x.every(e)))
	if of.Dialed {
		e.dialed, e.duty = now, false // the check itself ended the connection
	}
	if m, failures, answers := e.others(now); of.Unknown && (failed || failures > answers || !m.State.Alive() && x.throughPeer(e)) {
		o.State, measured = probe.State(records.Unreachable), true // soon nobody knows an address of a dead peer
	}
	measured = measured && ctx.Err() == nil
	if e.unclear = o.Detail; measured {
		e.unclear = ""
		o = e.lasting(o, now)
		x.weigh(e, alive(o), now)
		x.take(e, o, of.Refused, now)
	}
	_, dead := x.verdict(e, now)
	changed := x.note(e, dead) || failed != (e.fails > 0) // such an offer stands last
	again := e.duty                                       // a connection broke meanwhile
	n, m := e.name, e.last
	others, _, _ := e.others(now)
	known := !duty && others.State.Alive() && now.Sub(others.CheckedAt) < endpointEvery
	quiet := (known || !x.wanted(e, now)) && alive(o) && !was && !e.suspected()
	x.mu.Unlock()
	if changed {
		x.alert(e)
	}
	if changed || again {
		x.awake()
	}
	if measured && !alone {
		x.tell(ctx, n, m, quiet)
	}
}

// every is the time between two checks of what somebody asks for.
func (x *Checks) every(e *endpoint) time.Duration {
	if e.peer {
		return x.Every
	}
	return endpointEvery
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

// take notes a measurement. refused: nothing listens at any address of a peer. The caller holds x.mu.
func (x *Checks) take(e *endpoint, o probe.Outcome, refused bool, now time.Time) {
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
		e.fails, e.since, e.due, e.refused = 1, now, now.Add(endpointAgain), refused
	case now.Sub(e.since) < x.apart(e, refused): // too early to decide
		e.due = e.since.Add(x.apart(e, refused))
	default:
		if e.fails++; !e.peer && e.fails < soonAgain {
			e.due = now.Add(endpointAgain << (e.fails - 1))
		}
	}
}

// Epoch grows with each change of the dead offers.
func (x *Checks) Epoch() uint64 { return x.epoch.Load() }

// Moved returns a channel that the next change of Epoch closes.
func (x *Checks) Moved() <-chan struct{} { return x.moved.Wait() }

// worded is a state with its detail.
func worded(m records.Measured) string {
	if m.Detail == "" {
		return string(m.State)
	}
	return string(m.State) + ", " + m.Detail
}
