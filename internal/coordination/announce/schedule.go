package announce

import (
	"bytes"
	"time"
)

const (
	minInterval = 10 * time.Second // minimum time between two publications, and between two lookups
	confirm     = time.Minute      // from a publication with news to its repetition
	republish   = 6 * time.Hour    // maximum time between two publications, as for records
	leaderless  = 10 * time.Second // without a known leader before the first lookup
	maxLookup   = 5 * time.Minute  // maximum time between two lookups
)

// backOff spaces attempts: each pause doubles, minus up to half at random.
type backOff struct {
	last time.Time // of the last attempt; zero: none
	next time.Time
	wait time.Duration
}

// due reports whether the next attempt is due, and counts it.
func (p *backOff) due(now time.Time, most time.Duration, jitter float64) bool {
	if now.Before(p.next) {
		return false
	}
	p.last, p.next = now, now.Add(p.wait-time.Duration(jitter*float64(p.wait)/2))
	p.wait = min(2*p.wait, most)
	return true
}

// restart makes the next attempt due at once, or minInterval after the last one, and shortens the following
// pause.
func (p *backOff) restart(now time.Time, wait time.Duration) {
	p.next, p.wait = now, wait
	if !p.last.IsZero() && p.last.Add(minInterval).After(now) {
		p.next = p.last.Add(minInterval)
	}
}

// PublishSchedule decides on the leader's publications: news at once, or minInterval after the previous one;
// repetitions after growing pauses, because few or short-lived peers may hold the first ones. The zero value
// is ready for use.
type PublishSchedule struct {
	backOff
	gist []byte
}

// Due reports whether to publish a gist now; it is not empty. Jitter is in [0, 1).
func (p *PublishSchedule) Due(now time.Time, gist []byte, jitter float64) bool {
	if !bytes.Equal(gist, p.gist) {
		p.gist = bytes.Clone(gist)
		p.restart(now, confirm)
	}
	return p.due(now, republish, jitter)
}

// End ends the leadership: the first publication of the next one is news.
func (p *PublishSchedule) End() { p.gist = nil }

// LookupSchedule decides on lookups: after some time without a known leader, then after growing pauses. The
// zero value is ready for use.
type LookupSchedule struct {
	backOff
	dry bool // no leader was known at the last call
}

// Due reports whether to look up now; led says that a leader is known. Jitter is in [0, 1).
func (l *LookupSchedule) Due(now time.Time, led bool, jitter float64) bool {
	switch {
	case led:
		l.dry = false
		return false
	case !l.dry:
		l.dry = true
		l.restart(now.Add(leaderless), minInterval)
	}
	return l.due(now, maxLookup, jitter)
}
