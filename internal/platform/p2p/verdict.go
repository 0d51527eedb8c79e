package p2p

import (
	"cmp"
	"container/list"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/records"
)

// verdict is what the evidence says about a peer.
type verdict uint8

const (
	unknown     verdict = iota // no evidence yet
	reachable                  // it answered, or holds a connection
	unreachable                // a fresh dial and ping failed after the last sign of life
)

const (
	maxUnreachable = 256              // of the list of Unreachable
	maxBackoff     = 10 * time.Minute // unless the interval is longer
	nowhereRetry   = 5 * time.Second  // at most, after an outcome of nowhere
	nowhereLimit   = 3                // such outcomes in a row that make a peer unreachable
	doubtAfter     = 5 * time.Second  // evidence that old is not relied on against a doubt
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
	undecided // the fault may be ours: no lookup, no resources
	nowhere   // nobody knows an address: weak evidence, a new peer may not be known yet
)

// subject is one peer under observation.
type subject struct {
	id        peer.ID
	verdict   verdict
	roundTrip time.Duration // of the last successful ping; 0 before one
	checked   time.Time     // of the last evidence; zero before any
	keep      time.Time     // forgotten after, unless unreachable
	due       time.Time     // of the next probe
	failures  int           // failed probes since the last sign of life; sets the backoff
	misses    int           // outcomes of nowhere in a row

	probing bool // a probe is under way: due means nothing
	suspect bool // an open connection did not answer: the next probe is fresh
	change  change
	doubted bool // one failure was excused by a connection made meanwhile
}

// change is the last connection event during a probe, which may contradict its outcome.
type change uint8

const (
	none change = iota
	opened
	lost
)

// machine decides whom to probe when, and what to believe. It is pure: time and outcomes
// are arguments, and equal calls give equal answers. Not safe for concurrent use.
//
//   - A peer becomes reachable by a connection or an answered ping.
//   - A ping that fails on an open connection makes the connection suspect, not the peer.
//   - A failed fresh dial and ping makes the peer unreachable.
//   - A lost connection proves nothing and is checked at once.
type machine struct {
	conf     ProbeConfig // complete
	subjects map[peer.ID]*list.Element
	recent   *list.List // of *subject, most recently tracked first
	epoch    uint64     // grows whenever a peer becomes or ceases to be unreachable
}

func newMachine(c ProbeConfig) *machine {
	return &machine{conf: c, subjects: make(map[peer.ID]*list.Element), recent: list.New()}
}

// track takes a peer in, or keeps it for longer. A new one is probed at once.
func (m *machine) track(id peer.ID, connected bool, now time.Time) {
	if e, ok := m.subjects[id]; ok {
		e.Value.(*subject).keep = now.Add(m.conf.Keep)
		m.recent.MoveToFront(e)
		return
	}
	for len(m.subjects) >= m.conf.Capacity {
		m.forget(m.recent.Back())
	}
	s := &subject{id: id, keep: now.Add(m.conf.Keep), due: now}
	if connected {
		s.verdict, s.checked = reachable, now
	}
	m.subjects[id] = m.recent.PushFront(s)
}

func (m *machine) forget(e *list.Element) {
	s := m.recent.Remove(e).(*subject)
	delete(m.subjects, s.id)
	if s.verdict == unreachable {
		m.epoch++
	}
}

func (m *machine) find(id peer.ID) *subject {
	if e, ok := m.subjects[id]; ok {
		return e.Value.(*subject)
	}
	return nil
}

// judge sets a verdict and reports whether it is news.
func (m *machine) judge(s *subject, v verdict, now time.Time) bool {
	s.checked = now
	if s.verdict == v {
		return false
	}
	if s.verdict == unreachable || v == unreachable {
		m.epoch++
	}
	s.verdict = v
	return true
}

// connected takes the event that a first connection to the peer stands.
func (m *machine) connected(id peer.ID, now time.Time) {
	s := m.find(id)
	if s == nil {
		return
	}
	m.judge(s, reachable, now)
	s.failures, s.misses, s.suspect = 0, 0, false
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
func (m *machine) disconnected(id peer.ID, now time.Time) {
	s := m.find(id)
	switch {
	case s == nil:
	case s.probing:
		s.change = lost
	case s.verdict != unreachable: // an unreachable peer's connection is no news: the backoff stands
		s.due = now
	}
}

// doubt has a peer probed soon that is thought to be alive.
func (m *machine) doubt(id peer.ID, now time.Time) {
	s := m.find(id)
	if s == nil || s.probing || s.verdict == unreachable {
		return
	}
	if due := s.checked.Add(doubtAfter); due.Before(s.due) {
		s.due = due
	}
}

// next hands out the probes that are due, at most n, the longest due first, and marks
// them as under way: each must be given back to done. It forgets who was not tracked again
// in time. An unreachable peer is not forgotten, because then it would be offered again.
func (m *machine) next(n int, now time.Time) []probe {
	var ready []*subject
	for e := m.recent.Front(); e != nil; {
		s, following := e.Value.(*subject), e.Next()
		switch {
		case s.verdict != unreachable && !s.probing && !now.Before(s.keep):
			m.forget(e)
		case !s.probing && !now.Before(s.due):
			ready = append(ready, s)
		}
		e = following
	}
	slices.SortFunc(ready, func(a, b *subject) int {
		return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.id, b.id))
	})
	ready = ready[:min(len(ready), max(n, 0))]
	probes := make([]probe, 0, len(ready))
	for _, s := range ready {
		s.probing, s.change = true, none
		probes = append(probes, probe{id: s.id, fresh: s.suspect, search: s.failures > 0 && s.verdict == unreachable})
	}
	return probes
}

// nextDue is when next has something to do.
func (m *machine) nextDue() (time.Time, bool) {
	var due time.Time
	for e := m.recent.Front(); e != nil; e = e.Next() {
		s := e.Value.(*subject)
		if !s.probing && (due.IsZero() || s.due.Before(due)) {
			due = s.due
		}
	}
	return due, !due.IsZero()
}

// done takes a probe's outcome and reports whether the peer just became unreachable.
func (m *machine) done(p probe, o outcome, now time.Time) bool {
	s := m.find(p.id)
	if s == nil || !s.probing {
		return false // forgotten meanwhile, and perhaps tracked anew
	}
	s.probing = false
	switch o.result {
	case answered:
		m.answered(s, o, now)
	case undecided:
		s.suspect = false
		s.due = now.Add(m.conf.Interval)
	case nowhere:
		return m.missed(s, now)
	case failed:
		return m.failed(s, o, now)
	}
	return false
}

func (m *machine) missed(s *subject, now time.Time) bool {
	if s.misses++; s.misses >= nowhereLimit {
		return m.failed(s, outcome{dialed: true}, now)
	}
	s.due = now.Add(min(m.conf.Interval, nowhereRetry))
	return false
}

func (m *machine) answered(s *subject, o outcome, now time.Time) {
	m.judge(s, reachable, now)
	s.roundTrip, s.failures, s.misses = o.roundTrip, 0, 0
	s.suspect, s.doubted = false, false
	s.due = now.Add(m.conf.Interval)
	if s.change == lost {
		s.due = now // the answer may be older than the loss
	}
}

func (m *machine) failed(s *subject, o outcome, now time.Time) bool {
	switch {
	case s.change == opened && !s.doubted && !o.linked:
		s.doubted, s.due = true, now // our dial failed while another one came through
		return false
	case !o.dialed:
		s.suspect, s.due = true, now
		return false
	}
	news := m.judge(s, unreachable, now)
	s.suspect, s.doubted = false, false
	s.due = now.Add(m.backoff(s.failures))
	s.failures++
	return news
}

// backoff doubles with every failure up to 16 intervals, and at most maxBackoff.
func (m *machine) backoff(failures int) time.Duration {
	d := m.conf.Interval << min(failures, 4)
	return max(min(d, maxBackoff), m.conf.Interval)
}

func (m *machine) measured(id peer.ID) (records.Measured, bool) {
	s := m.find(id)
	if s == nil || s.verdict == unknown {
		return records.Measured{}, false
	}
	return records.Measured{Reachable: s.verdict == reachable, RoundTrip: s.roundTrip, CheckedAt: s.checked}, true
}

// unreachable lists who is, sorted; beyond maxUnreachable the most recently tracked.
func (m *machine) unreachable() []peer.ID {
	var ids []peer.ID
	for e := m.recent.Front(); e != nil && len(ids) < maxUnreachable; e = e.Next() {
		if s := e.Value.(*subject); s.verdict == unreachable {
			ids = append(ids, s.id)
		}
	}
	slices.Sort(ids)
	return ids
}
