package p2p

import (
	"cmp"
	"slices"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/records"
)

// reachability is the current evidence about a peer.
type reachability uint8

const (
	unknown     reachability = iota // no evidence yet
	reachable                       // answered a ping, or connected
	unreachable                     // failed a fresh dial and ping after its last sign of life
)

const (
	maxUnreachable = 256              // length of the Unreachable list
	maxBackoff     = 10 * time.Minute // between probes of an unreachable peer, or Interval if longer
	addressRetry   = 5 * time.Second  // at most, after the result addressUnknown
	addressMisses  = 3                // consecutive addressUnknown results that make a peer unreachable
	suspectAfter   = 5 * time.Second  // age of evidence that a suspicion overrides

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
	roundTrip time.Duration
}

type result uint8

const (
	answered result = iota
	failed
	undecided      // possibly a local fault: a failed lookup, no resources
	addressUnknown // weak evidence: a new peer may not be in the DHT yet
)

// observation is the state of one tracked peer.
type observation struct {
	id        peer.ID
	state     reachability
	roundTrip time.Duration // of the last answered ping; 0 before the first
	checked   time.Time     // of the last evidence; zero before the first
	keep      time.Time     // end of the observation, except for unreachable peers
	due       time.Time     // of the next probe
	failures  int           // failed probes since the last sign of life, for the backoff
	misses    int           // consecutive addressUnknown results

	probing bool // a probe is running; due is meaningless
	redial  bool // an open connection did not answer: the next probe dials
	change  change
	excused bool // a concurrent connection excused one failure

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
//   - A failed ping on an open connection leads to a fresh dial, not to unreachable.
//   - A failed fresh dial and ping makes a peer unreachable.
//   - A lost connection is no evidence. It triggers a probe at once.
type tracker struct {
	conf     ProbeConfig                           // complete
	observed *simplelru.LRU[peer.ID, *observation] // by the time of track
	epoch    uint64                                // grows with each change of the unreachable set
}

func newTracker(c ProbeConfig) *tracker {
	t := &tracker{conf: c}
	observed, err := simplelru.NewLRU(c.Capacity, func(_ peer.ID, o *observation) {
		if o.state == unreachable {
			t.epoch++
		}
	})
	if err != nil {
		panic("p2p: " + err.Error()) // impossible: complete ensures a capacity
	}
	t.observed = observed
	return t
}

// track starts or extends an observation. A new peer is probed at once.
func (t *tracker) track(id peer.ID, connected bool, now time.Time) {
	if o, ok := t.observed.Get(id); ok {
		o.keep = now.Add(t.conf.Keep)
		return
	}
	o := &observation{id: id, keep: now.Add(t.conf.Keep), due: now}
	if connected {
		o.state, o.checked = reachable, now
	}
	t.observed.Add(id, o)
}

// find returns the observation of a peer, or nil.
func (t *tracker) find(id peer.ID) *observation {
	o, _ := t.observed.Peek(id)
	return o
}

// set records new evidence and reports whether the state changed.
func (t *tracker) set(o *observation, state reachability, now time.Time) bool {
	o.checked = now
	if state == reachable {
		o.responded()
	}
	if o.state == state {
		return false
	}
	if o.state == unreachable || state == unreachable {
		t.epoch++
	}
	o.state = state
	return true
}

// connected handles the event of a first connection to the peer.
func (t *tracker) connected(id peer.ID, now time.Time) {
	o := t.find(id)
	if o == nil {
		return
	}
	t.set(o, reachable, now)
	o.failures, o.misses, o.redial = 0, 0, false
	switch {
	case o.probing:
		o.change = opened
	case o.roundTrip == 0:
		o.due = now
	default:
		o.due = now.Add(t.conf.Interval)
	}
}

// disconnected handles the loss of the last connection to the peer.
func (t *tracker) disconnected(id peer.ID, now time.Time) {
	o := t.find(id)
	switch {
	case o == nil:
	case o.probing:
		o.change = lost
	case o.state != unreachable: // the backoff of an unreachable peer continues
		o.due = now
	}
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
	if o.probing || o.state == unreachable {
		return
	}
	if due := o.checked.Add(suspectAfter); due.Before(o.due) {
		o.due = due
	}
}

// avoid reports whether lookups should avoid the peer.
func (t *tracker) avoid(id peer.ID, now time.Time) bool {
	o := t.find(id)
	return o != nil && (o.state == unreachable || now.Before(o.avoidUntil))
}

// responded ends the avoidance of a peer.
func (o *observation) responded() {
	if o != nil {
		o.avoidUntil, o.avoidFor = time.Time{}, 0
	}
}

// next returns at most n due probes, the longest due first. The caller runs them and calls done for each.
// next ends observations that were not extended in time, except those of unreachable peers: a forgotten
// unreachable peer would appear in answers again.
func (t *tracker) next(n int, now time.Time) []probe {
	var ready []*observation
	for _, o := range t.observed.Values() {
		switch {
		case o.state != unreachable && !o.probing && !now.Before(o.keep):
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
		probes = append(probes, probe{id: o.id, fresh: o.redial, search: o.failures > 0 && o.state == unreachable})
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

// done handles the outcome of a probe and reports whether the peer just became unreachable.
func (t *tracker) done(p probe, out outcome, now time.Time) bool {
	o := t.find(p.id)
	if o == nil || !o.probing {
		return false // the observation ended during the probe, perhaps a new one began
	}
	o.probing = false
	switch out.result {
	case answered:
		t.answered(o, out, now)
	case undecided:
		o.redial = false
		o.due = now.Add(t.conf.Interval)
	case addressUnknown:
		if o.misses++; o.misses >= addressMisses {
			return t.failed(o, outcome{dialed: true}, now)
		}
		o.due = now.Add(min(t.conf.Interval, addressRetry))
	case failed:
		return t.failed(o, out, now)
	}
	return false
}

func (t *tracker) answered(o *observation, out outcome, now time.Time) {
	t.set(o, reachable, now)
	o.roundTrip, o.failures, o.misses = out.roundTrip, 0, 0
	o.redial, o.excused = false, false
	o.due = now.Add(t.conf.Interval)
	if o.change == lost {
		o.due = now // the answer may precede the loss
	}
}

func (t *tracker) failed(o *observation, out outcome, now time.Time) bool {
	switch {
	case o.change == opened && !o.excused && !out.linked:
		o.excused, o.due = true, now // the dial failed, but another connection succeeded
		return false
	case !out.dialed:
		o.redial, o.due = true, now
		return false
	}
	changed := t.set(o, unreachable, now)
	o.redial, o.excused = false, false
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
	if o == nil || o.state == unknown {
		return records.Measured{}, false
	}
	return records.Measured{Reachable: o.state == reachable, RoundTrip: o.roundTrip, CheckedAt: o.checked}, true
}

// unreachable returns the unreachable peers, sorted: at most maxUnreachable, the most recently tracked.
func (t *tracker) unreachable() []peer.ID {
	var ids []peer.ID
	observed := t.observed.Values() // oldest first
	for i := len(observed) - 1; i >= 0 && len(ids) < maxUnreachable; i-- {
		if o := observed[i]; o.state == unreachable {
			ids = append(ids, o.id)
		}
	}
	slices.Sort(ids)
	return ids
}
