package announce

import (
	"bytes"
	"time"
)

const (
	minInterval = 10 * time.Second // least time between two notices, and between two looks at the board
	confirm     = time.Minute      // from a notice that tells news to the next one, which tells none
	republish   = 6 * time.Hour    // most between two notices, as for records
	leaderless  = 10 * time.Second // without anybody known to lead, before the board is looked at
	maxLookup   = 5 * time.Minute  // most between two looks
)

// backOff spaces attempts: each pause is twice as long as the one before, by chance up to half of it less.
type backOff struct {
	last time.Time // of an attempt; zero: there was none
	next time.Time
	wait time.Duration
}

// due tells whether the next attempt is due, and counts it as made if it is.
func (p *backOff) due(now time.Time, most time.Duration, jitter float64) bool {
	if now.Before(p.next) {
		return false
	}
	p.last, p.next = now, now.Add(p.wait-time.Duration(jitter*float64(p.wait)/2))
	p.wait = min(2*p.wait, most)
	return true
}

// restart makes the next attempt due at once, or hush after the last one, and the pause after it short.
func (p *backOff) restart(now time.Time, wait time.Duration) {
	p.next, p.wait = now, wait
	if !p.last.IsZero() && p.last.Add(minInterval).After(now) {
		p.next = p.last.Add(minInterval)
	}
}

// PublishSchedule decides when a leader posts: what is new at once, or hush after the notice before; and what is
// not after ever longer pauses, for the first ones may have been taken by peers that were few, or are
// gone. The zero value is ready for use.
type PublishSchedule struct {
	backOff
	gist []byte
}

// Due tells whether to post something now whose gist is given; not empty. Jitter is in [0, 1).
func (p *PublishSchedule) Due(now time.Time, gist []byte, jitter float64) bool {
	if !bytes.Equal(gist, p.gist) {
		p.gist = bytes.Clone(gist)
		p.restart(now, confirm)
	}
	return p.due(now, republish, jitter)
}

// End is told while this peer does not lead: what it posts when it leads again is news.
func (p *PublishSchedule) End() { p.gist = nil }

// LookupSchedule decides when a peer looks at the board: when it has known nobody that leads for some time,
// then after ever longer pauses. The zero value is ready for use.
type LookupSchedule struct {
	backOff
	dry bool // nobody was known to lead when it was asked last
}

// Due tells whether to look now; led that somebody is known to lead. Jitter is in [0, 1).
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
