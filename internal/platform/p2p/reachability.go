package p2p

import (
	"cmp"
	"container/list"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/records"
)

// reachability is what the evidence says about a peer.
type reachability uint8

const (
	unknown     reachability = iota // no evidence yet
	reachable                       // it answered, or holds a connection
	unreachable                     // a fresh dial and ping failed after the last sign of life
)

const (
	maxUnreachable = 256              // of the list of Unreachable
	maxBackoff     = 10 * time.Minute // unless the interval is longer
	addressRetry   = 5 * time.Second  // at most, after an outcome of nowhere
	addressMisses  = 3                // such outcomes in a row that make a peer unreachable
	suspectAfter   = 5 * time.Second  // evidence that old is not relied on against a doubt
)

// probe is one check that the machine wants done.
type probe struct {
	id     peer.ID
	fresh  bool // do not trust an open connection: close it and dial
	search bool // ask the network for addresses first: the known ones failed already
}

// outcome is how a probe ended.
type outcome struct {
	result    result
	dialed    bool // a new connection was asked for, so that a failure is evidence
	linked    bool // and was made: the event of a connection tells nothing new
	roundTrip time.Duration
}

type result uint8

const (
	answered result = iota
	failed
	undecided      // the fault may be ours: no lookup, no resources
	addressUnknown // nobody knows an address: weak evidence, a new peer may not be known yet
)

// observation is one peer under observation.
type observation struct {
	id        peer.ID
	state     reachability
	roundTrip time.Duration // of the last successful ping; 0 before one
	checked   time.Time     // of the last evidence; zero before any
	keep      time.Time     // forgotten after, unless unreachable
	due       time.Time     // of the next probe
	failures  int           // failed probes since the last sign of life; sets the backoff
	misses    int           // outcomes of nowhere in a row

	probing bool // a probe is under way: due means nothing
	redial  bool // an open connection did not answer: the next probe is fresh
	change  change
	excused bool // one failure was excused by a connection made meanwhile
}

// change is the last connection event during a probe, which may contradict its outcome.
type change uint8

const (
	none change = iota
	opened
	lost
)

// tracker decides whom to probe when, and what to believe. It is pure: time and outcomes
// are arguments, and equal calls give equal answers. Not safe for concurrent use.
//
//   - A peer becomes reachable by a connection or an answered ping.
//   - A ping that fails on an open connection makes the connection suspect, not the peer.
//   - A failed fresh dial and ping makes the peer unreachable.
//   - A lost connection proves nothing and is checked at once.
type tracker struct {
	conf     ProbeConfig // complete
	observed map[peer.ID]*list.Element
	recent   *list.List // of *subject, most recently tracked first
	epoch    uint64     // grows whenever a peer becomes or ceases to be unreachable
}

func newTracker(c ProbeConfig) *tracker {
	return &tracker{conf: c, observed: make(map[peer.ID]*list.Element), recent: list.New()}
}

// track takes a peer in, or keeps it for longer. A new one is probed at once.
func (m *tracker) track(id peer.ID, connected bool, now time.Time) {
	if e, ok := m.observed[id]; ok {
		e.Value.(*observation).keep = now.Add(m.conf.Keep)
		m.recent.MoveToFront(e)
		return
	}
	for len(m.observed) >= m.conf.Capacity {
		m.forget(m.recent.Back())
	}
	s := &observation{id: id, keep: now.Add(m.conf.Keep), due: now}
	if connected {
		s.state, s.checked = reachable, now
	}
	m.observed[id] = m.recent.PushFront(s)
}

func (m *tracker) forget(e *list.Element) {
	s := m.recent.Remove(e).(*observation)
	delete(m.observed, s.id)
	if s.state == unreachable {
		m.epoch++
	}
}

func (m *tracker) find(id peer.ID) *observation {
	if e, ok := m.observed[id]; ok {
		return e.Value.(*observation)
	}
	return nil
}

// set sets a verdict and reports whether it is news.
func (m *tracker) set(s *observation, v reachability, now time.Time) bool {
	s.checked = now
	if s.state == v {
		return false
	}
	if s.state == unreachable || v == unreachable {
		m.epoch++
	}
	s.state = v
	return true
}

// connected takes the event that a first connection to the peer stands.
func (m *tracker) connected(id peer.ID, now time.Time) {
	s := m.find(id)
	if s == nil {
		return
	}
	m.set(s, reachable, now)
	s.failures, s.misses, s.redial = 0, 0, false
	switch {
	case s.probing:
		s.change = opened
	case s.roundTrip == 0:
		s.due = now
	default:
		s.due = now.Add(m.conf.Interval)
	}
}

// disconnected takes the event that the last connection to the peer is gone.
func (m *tracker) disconnected(id peer.ID, now time.Time) {
	s := m.find(id)
	switch {
	case s == nil:
	case s.probing:
		s.change = lost
	case s.state != unreachable: // an unreachable peer's connection is no news: the backoff stands
		s.due = now
	}
}

// suspect has a peer probed soon that is thought to be alive.
func (m *tracker) suspect(id peer.ID, now time.Time) {
	s := m.find(id)
	if s == nil || s.probing || s.state == unreachable {
		return
	}
	if due := s.checked.Add(suspectAfter); due.Before(s.due) {
		s.due = due
	}
}

// next hands out the probes that are due, at most n, the longest due first, and marks
// them as under way: each must be given back to done. It forgets who was not tracked again
// in time. An unreachable peer is not forgotten, because then it would be offered again.
func (m *tracker) next(n int, now time.Time) []probe {
	var ready []*observation
	for e := m.recent.Front(); e != nil; {
		s, following := e.Value.(*observation), e.Next()
		switch {
		case s.state != unreachable && !s.probing && !now.Before(s.keep):
			m.forget(e)
		case !s.probing && !now.Before(s.due):
			ready = append(ready, s)
		}
		e = following
	}
	slices.SortFunc(ready, func(a, b *observation) int {
		return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.id, b.id))
	})
	ready = ready[:min(len(ready), max(n, 0))]
	probes := make([]probe, 0, len(ready))
	for _, s := range ready {
		s.probing, s.change = true, none
		probes = append(probes, probe{id: s.id, fresh: s.redial, search: s.failures > 0 && s.state == unreachable})
	}
	return probes
}

// nextDue is when next has something to do.
func (m *tracker) nextDue() (time.Time, bool) {
	var due time.Time
	for e := m.recent.Front(); e != nil; e = e.Next() {
		s := e.Value.(*observation)
		if !s.probing && (due.IsZero() || s.due.Before(due)) {
			due = s.due
		}
	}
	return due, !due.IsZero()
}

// done takes a probe's outcome and reports whether the peer just became unreachable.
func (m *tracker) done(p probe, o outcome, now time.Time) bool {
	s := m.find(p.id)
	if s == nil || !s.probing {
		return false // forgotten meanwhile, and perhaps tracked anew
	}
	s.probing = false
	switch o.result {
	case answered:
		m.answered(s, o, now)
	case undecided:
		s.redial = false
		s.due = now.Add(m.conf.Interval)
	case addressUnknown:
		return m.missed(s, now)
	case failed:
		return m.failed(s, o, now)
	}
	return false
}

func (m *tracker) missed(s *observation, now time.Time) bool {
	if s.misses++; s.misses >= addressMisses {
		return m.failed(s, outcome{dialed: true}, now)
	}
	s.due = now.Add(min(m.conf.Interval, addressRetry))
	return false
}

func (m *tracker) answered(s *observation, o outcome, now time.Time) {
	m.set(s, reachable, now)
	s.roundTrip, s.failures, s.misses = o.roundTrip, 0, 0
	s.redial, s.excused = false, false
	s.due = now.Add(m.conf.Interval)
	if s.change == lost {
		s.due = now // the answer may be older than the loss
	}
}

func (m *tracker) failed(s *observation, o outcome, now time.Time) bool {
	switch {
	case s.change == opened && !s.excused && !o.linked:
		s.excused, s.due = true, now // our dial failed while another one came through
		return false
	case !o.dialed:
		s.redial, s.due = true, now
		return false
	}
	news := m.set(s, unreachable, now)
	s.redial, s.excused = false, false
	s.due = now.Add(m.backoff(s.failures))
	s.failures++
	return news
}

// backoff doubles with every failure up to 16 intervals, and at most maxBackoff.
func (m *tracker) backoff(failures int) time.Duration {
	d := m.conf.Interval << min(failures, 4)
	return max(min(d, maxBackoff), m.conf.Interval)
}

func (m *tracker) measured(id peer.ID) (records.Measured, bool) {
	s := m.find(id)
	if s == nil || s.state == unknown {
		return records.Measured{}, false
	}
	return records.Measured{Reachable: s.state == reachable, RoundTrip: s.roundTrip, CheckedAt: s.checked}, true
}

// unreachable lists who is, sorted; beyond maxUnreachable the most recently tracked.
func (m *tracker) unreachable() []peer.ID {
	var ids []peer.ID
	for e := m.recent.Front(); e != nil && len(ids) < maxUnreachable; e = e.Next() {
		if s := e.Value.(*observation); s.state == unreachable {
			ids = append(ids, s.id)
		}
	}
	slices.Sort(ids)
	return ids
}
