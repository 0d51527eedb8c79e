package probe

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	maxUnreachable = 4096             // remembered unreachable peers, beside Config.Capacity
	forgetAfter    = 25 * time.Hour   // a peer unreachable for this time: longer than records without a refresh live
	watchInterval  = time.Minute      // at most, between two probes of a peer that a watch shows
	doubtfulAfter  = 30 * time.Second // from a failure that others confirmed to the next probe
	recheckAfter   = time.Minute      // at least, from a probe of an unreachable peer to the one after its announcement
	maxBackoff     = 10 * time.Minute // between probes of an unreachable peer, or Interval if longer
	addressRetry   = 5 * time.Second  // at most, after the result addressUnknown
	searchAfter    = 10 * time.Second // at most, from a first failure to a probe of newly found addresses
	addressMisses  = 3                // consecutive addressUnknown results that make a peer unreachable
	suspectAfter   = 5 * time.Second  // age of evidence that a suspicion overrides

	refusedAgain = 10 * time.Second // from a first refusal to the second, which decides

	avoidFirst  = 30 * time.Second // about the time of a conclusive measurement
	avoidMost   = 5 * time.Minute  // after repeated silence
	avoidMemory = 10 * time.Minute // a later silence starts at avoidFirst again
)

// probe is one measurement that the tracker requests.
type probe struct {
	id     peer.ID
	fresh  bool // close an open connection and dial again
	search bool // query the network for addresses first: dials to the cached ones failed
}

// outcome is the end of a probe.
type outcome struct {
	result    result
	dialed    bool // the probe dialed, so a failure is evidence
	linked    bool // the dial succeeded, so its connection event adds no evidence
	late      bool // this process ran late meanwhile, so silence says nothing
	roundTrip time.Duration
}

type result uint8

const (
	answered       result = iota
	busy                  // alive: it accepted a connection, then refused it
	failed                // silence at all addresses, or another program
	refused               // nothing listens at any address: what silence is not, an answer of the machine
	undecided             // possibly a local fault: a failed lookup, no resources, no network
	addressUnknown        // weak evidence: a new peer may not be in the DHT yet
)

// observation is the state of one tracked peer.
type observation struct {
	id        peer.ID
	caller    string               // the observation counts as this caller's
	state     records.Reachability // empty: no evidence yet
	roundTrip time.Duration        // of the last answered ping; 0 before the first
	checked   time.Time            // of the last evidence; zero before the first
	keep      time.Time            // end of the observation
	watched   time.Time            // until then, a watch shows the peer
	due       time.Time            // of the next probe
	dialed    time.Time            // of the last probe that dialed
	since     time.Time            // of the first failed probe since the last sign of life; zero without one
	refused   bool                 // the first failed probe was refused
	failures  int                  // failed probes since the peer became unreachable, for the backoff
	misses    int                  // consecutive addressUnknown results

	probing bool // a probe is running; due is meaningless
	redial  bool // an open connection did not answer: the next probe dials
	change  change
	excused bool // a concurrent connection excused one failure
	doubted bool // others got no answer, enough that a first failure decides

	avoidUntil time.Time     // lookups avoid the peer until then
	avoidFor   time.Duration // the last such period; 0 after a sign of life
}

// change is the last connection event during a probe. It may contradict the probe's outcome.
type change uint8

const (
	none change = iota
	opened
	lost
)

// tracker schedules probes and derives reachability. Time and outcomes are arguments, so its results are
// reproducible. It is not safe for concurrent use.
//
//   - A connection or an answered ping makes a peer reachable.
//   - A connection that the peer accepts and then refuses makes it busy.
//   - A failed ping on an open connection leads to a fresh dial.
//   - A failed fresh dial and ping is a first failure: lookups avoid the peer. A probe of newly found addresses
//     follows soon. A failure Config.Confirm after the first makes the peer unreachable.
//   - Refusals at all addresses, refusedAgain apart, make it unreachable: a machine whose process died refuses.
//   - Failures of enough others make the first failure decide.
//   - A lost connection is no evidence. It triggers a probe at once, unless a probe dialed shortly before: a crowded peer ends new
//     connections first, and is dialed once in an interval.
type tracker struct {
	conf     Config                                // complete
	observed *simplelru.LRU[peer.ID, *observation] // by the time of track; evict keeps its bounds
	epoch    uint64                                // grows with each change of the unreachable set
	gone     []peer.ID                             // the unreachable peers in epoch listed, sorted; never modified
	listed   uint64
}

func newTracker(c Config) *tracker {
	t := &tracker{conf: c}
	observed := bounded.Map(c.Capacity+maxUnreachable+1, func(_ peer.ID, o *observation) {
		if o.state == records.Unreachable {
			t.epoch++
		}
	})
	t.observed = observed
	return t
}

// track starts or extends an observation, as one of the caller's. A new peer is probed at once.
func (t *tracker) track(caller string, id peer.ID, connected bool, now time.Time) {
	if o, ok := t.observed.Get(id); ok {
		o.extend(now.Add(t.conf.Keep))
		return
	}
	o := &observation{id: id, caller: caller, keep: now.Add(t.conf.Keep), due: now}
	if connected {
		o.state, o.checked = records.Reachable, now
	}
	t.evict()
	t.observed.Add(id, o)
}

// watch makes the probes of a tracked peer more frequent until the given time.
func (t *tracker) watch(id peer.ID, until, now time.Time) {
	o := t.find(id)
	if o == nil {
		return
	}
	o.watched = until
	if o.state == records.Reachable || o.state == records.Busy {
		if due := o.checked.Add(t.interval(o, now)); due.Before(o.due) {
			o.due = due
		}
	}
}

// interval is the time between two probes of a peer that is not unreachable.
func (t *tracker) interval(o *observation, now time.Time) time.Duration {
	if now.Before(o.watched) {
		return min(t.conf.Interval, watchInterval)
	}
	return t.conf.Interval
}

// evict makes room for one observation. Unreachable peers have their own room, so that queries never displace
// them. The caller with the most observations loses its oldest one.
func (t *tracker) evict() {
	count := make(map[string]int)
	living := 0
	for _, o := range t.observed.Values() {
		if o.state != records.Unreachable {
			living++
			count[o.caller]++
		}
	}
	if living < t.conf.Capacity {
		return
	}
	most := slices.MaxFunc(slices.Sorted(maps.Keys(count)), func(a, b string) int { return cmp.Compare(count[a], count[b]) })
	t.evictOldest(func(o *observation) bool { return o.state != records.Unreachable && o.caller == most })
}

// evictOldest ends the observation with the oldest track among those that match.
func (t *tracker) evictOldest(match func(*observation) bool) {
	for _, o := range t.observed.Values() { // oldest first
		if match(o) {
			t.observed.Remove(o.id)
			return
		}
	}
}

// extend prolongs an observation.
func (o *observation) extend(to time.Time) {
	if to.After(o.keep) {
		o.keep = to
	}
}

// find returns the observation of a peer, or nil.
func (t *tracker) find(id peer.ID) *observation {
	o, _ := t.observed.Peek(id)
	return o
}

// set records new evidence and reports whether the state changed.
func (t *tracker) set(o *observation, state records.Reachability, now time.Time) bool {
	o.checked = now
	if state == records.Reachable {
		o.responded()
	}
	if state != records.Unreachable {
		o.since, o.failures, o.misses, o.doubted = time.Time{}, 0, 0, false
	}
	if o.state == state {
		return false
	}
	switch {
	case state == records.Unreachable:
		t.bury(o, now)
		t.epoch++
	case o.state == records.Unreachable:
		t.epoch++
		o.keep = now.Add(t.conf.Keep)
	}
	o.state = state
	return true
}

// bury remembers a peer as unreachable, in place of the one with the oldest track.
func (t *tracker) bury(o *observation, now time.Time) {
	o.keep = now.Add(forgetAfter)
	if len(t.unreachable()) >= maxUnreachable {
		t.evictOldest(func(x *observation) bool { return x.state == records.Unreachable })
	}
}

// connected handles the event of a first connection to the peer.
func (t *tracker) connected(id peer.ID, now time.Time) {
	o := t.find(id)
	if o == nil {
		return
	}
	t.set(o, records.Reachable, now)
	o.redial, o.roundTrip = false, 0 // the path may be another one
	if o.probing {
		o.change = opened
	} else {
		o.due = now
	}
}

// disconnected handles the loss of the last connection to the peer.
func (t *tracker) disconnected(id peer.ID, now time.Time) {
	o := t.find(id)
	switch {
	case o == nil:
	case o.probing:
		o.change = lost
	case o.state != records.Unreachable && o.since.IsZero(): // else the wait after the failure continues
		o.due = t.afterLoss(o, now)
	}
}

// afterLoss is the time of the probe after a lost connection. A crowded peer closes new connections, so the loss of one must not cause
// a dial.
func (t *tracker) afterLoss(o *observation, now time.Time) time.Time {
	if next := o.dialed.Add(t.interval(o, now)); now.Sub(o.dialed) < min(t.conf.Interval, watchInterval) && next.After(now) {
		return next
	}
	return now
}

// announced handles a new record of a peer: an unreachable one may be back. It reports whether the next probe is
// sooner now.
func (t *tracker) announced(id peer.ID) (sooner bool) {
	o := t.find(id)
	if o == nil || o.probing || o.state != records.Unreachable {
		return false
	}
	due := o.checked.Add(min(recheckAfter, t.conf.Interval))
	if !due.Before(o.due) {
		return false
	}
	o.due = due
	return true
}

// suspect handles silence of a peer in a lookup: a probe follows soon, and lookups avoid the peer for a
// period that doubles with each further silence.
func (t *tracker) suspect(id peer.ID, now time.Time) {
	o := t.find(id)
	if o == nil {
		return
	}
	switch {
	case now.Before(o.avoidUntil): // the period continues
	case o.avoidFor > 0 && now.Sub(o.avoidUntil) < avoidMemory:
		o.avoidFor = min(2*o.avoidFor, avoidMost)
		o.avoidUntil = now.Add(o.avoidFor)
	default:
		o.avoidFor, o.avoidUntil = avoidFirst, now.Add(avoidFirst)
	}
	if o.probing || o.state == records.Unreachable || !o.since.IsZero() {
		return
	}
	if due := o.checked.Add(suspectAfter); due.Before(o.due) {
		o.due = due
	}
}

// doubt handles failures of others: a probe follows soon. If they are enough, a first failure makes the peer unreachable. It reports
// whether that is so now.
func (t *tracker) doubt(id peer.ID, enough bool, now time.Time) bool {
	o := t.find(id)
	if o == nil || o.state == records.Unreachable {
		return false
	}
	o.doubted = o.doubted || enough
	switch {
	case o.since.IsZero():
		if due := o.checked.Add(suspectAfter); !o.probing && due.Before(o.due) {
			o.due = due
		}
	case o.doubted:
		return t.confirmed(o, now)
	}
	return false
}

// confirmed makes a peer unreachable after one failure, because of those of others.
func (t *tracker) confirmed(o *observation, now time.Time) bool {
	changed := t.set(o, records.Unreachable, now)
	o.due = now.Add(min(t.conf.Confirm, doubtfulAfter))
	return changed
}

// avoid reports whether lookups should avoid the peer.
func (t *tracker) avoid(id peer.ID, now time.Time) bool {
	o := t.find(id)
	return o != nil && (o.state == records.Unreachable || !o.since.IsZero() || now.Before(o.avoidUntil))
}

// responded ends the avoidance of a peer.
func (o *observation) responded() {
	if o != nil {
		o.avoidUntil, o.avoidFor = time.Time{}, 0
	}
}

// next returns at most n due probes, the longest due first. The caller runs them and calls done for each.
// next ends observations that were not extended in time. Those of unreachable peers last for forgetAfter: a
// forgotten peer would appear in answers again.
func (t *tracker) next(n int, now time.Time) []probe {
	var ready []*observation
	for _, o := range t.observed.Values() {
		switch {
		case !o.probing && !now.Before(o.keep):
			t.observed.Remove(o.id)
		case !o.probing && !now.Before(o.due):
			ready = append(ready, o)
		}
	}
	slices.SortFunc(ready, func(a, b *observation) int {
		return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.id, b.id))
	})
	ready = ready[:min(len(ready), max(n, 0))]
	probes := make([]probe, 0, len(ready))
	for _, o := range ready {
		o.probing, o.change = true, none
		probes = append(probes, probe{id: o.id, fresh: o.redial, search: !o.since.IsZero()})
	}
	return probes
}

// nextDue returns the time of the next probe.
func (t *tracker) nextDue() (time.Time, bool) {
	var due time.Time
	for _, o := range t.observed.Values() {
		if !o.probing && (due.IsZero() || o.due.Before(due)) {
			due = o.due
		}
	}
	return due, !due.IsZero()
}

// done handles the outcome of a probe and reports whether the peer just failed for the first or the second time.
func (t *tracker) done(p probe, out outcome, now time.Time) bool {
	o := t.find(p.id)
	if o == nil || !o.probing {
		return false // the observation ended during the probe, perhaps a new one began
	}
	o.probing = false
	if out.dialed {
		o.dialed = now
	}
	switch out.result {
	case answered:
		t.answered(o, out, now)
	case busy:
		next := t.interval(o, now)
		if t.set(o, records.Busy, now) { // a peer that is ending resets connections, too
			next = min(next, t.conf.Confirm, searchAfter)
		}
		o.roundTrip, o.redial, o.excused = 0, false, false
		o.due = now.Add(next)
	case undecided:
		o.redial = false
		o.due = now.Add(min(t.interval(o, now), watchInterval))
	case addressUnknown:
		if o.misses++; o.misses >= addressMisses {
			return t.failed(o, outcome{dialed: true}, now)
		}
		o.due = now.Add(min(t.conf.Interval, addressRetry))
	case failed, refused:
		return t.failed(o, out, now)
	}
	return false
}

func (t *tracker) answered(o *observation, out outcome, now time.Time) {
	t.set(o, records.Reachable, now)
	o.roundTrip, o.redial, o.excused = out.roundTrip, false, false
	o.due = now.Add(t.interval(o, now))
	if o.change == lost {
		o.due = t.afterLoss(o, now) // the answer may precede the loss
	}
}

func (t *tracker) failed(o *observation, out outcome, now time.Time) bool {
	switch {
	case o.change == opened && !o.excused && !out.linked:
		o.excused, o.due = true, now // the dial failed, but another connection succeeded
		return false
	case !out.dialed && out.late:
		o.due = now // this process may have missed the answer: the connection stays
		return false
	case !out.dialed:
		o.redial, o.due = true, now
		return false
	}
	o.redial, o.excused = false, false
	apart := t.conf.Confirm // of two failures that decide
	if o.refused && out.result == refused {
		apart = min(apart, refusedAgain)
	}
	switch {
	case o.since.IsZero() && o.doubted:
		o.since = now
		return t.confirmed(o, now)
	case o.since.IsZero():
		o.since, o.due = now, now.Add(min(t.conf.Confirm, searchAfter)) // the peer may have moved, or have a relay by now
		o.refused = out.result == refused
		return true
	case now.Before(o.since.Add(apart)): // too early for a second failure
		o.due = o.since.Add(apart)
		return false
	}
	changed := t.set(o, records.Unreachable, now)
	o.due = now.Add(t.backoff(o.failures))
	o.failures++
	return changed
}

// backoff doubles with each failure, up to 16 intervals or maxBackoff.
func (t *tracker) backoff(failures int) time.Duration {
	d := t.conf.Interval << min(failures, 4)
	return max(min(d, maxBackoff), t.conf.Interval)
}

func (t *tracker) measured(id peer.ID) (records.Measured, bool) {
	o := t.find(id)
	if o == nil || o.state == "" {
		return records.Measured{}, false
	}
	return records.Measured{State: o.state, RoundTrip: o.roundTrip, CheckedAt: o.checked, Since: o.since}, true
}

// unreachable returns the unreachable peers, sorted. The caller must not modify them.
func (t *tracker) unreachable() []peer.ID {
	if t.listed == t.epoch {
		return t.gone
	}
	var ids []peer.ID
	for _, o := range t.observed.Values() {
		if o.state == records.Unreachable {
			ids = append(ids, o.id)
		}
	}
	slices.Sort(ids)
	t.gone, t.listed = ids, t.epoch
	return ids
}
