package announce

import (
	"bytes"
	"time"
)

const (
	hush      = 10 * time.Second // least time between two notices, and between two looks at the board
	soon      = time.Minute      // from a notice that tells news to the next one, which tells none
	republish = 6 * time.Hour    // most between two notices, as for records
	unled     = 10 * time.Second // without anybody known to lead, before the board is looked at
	seldom    = 5 * time.Minute  // most between two looks
)

// pace spaces attempts: each pause is twice as long as the one before, by chance up to half of it less.
type pace struct {
	last time.Time // of an attempt; zero: there was none
	next time.Time
	wait time.Duration
}

// due tells whether the next attempt is due, and counts it as made if it is.
func (p *pace) due(now time.Time, most time.Duration, jitter float64) bool {
	if now.Before(p.next) {
		return false
	}
	p.last, p.next = now, now.Add(p.wait-time.Duration(jitter*float64(p.wait)/2))
	p.wait = min(2*p.wait, most)
	return true
}

// restart makes the next attempt due at once, or hush after the last one, and the pause after it short.
func (p *pace) restart(now time.Time, wait time.Duration) {
	p.next, p.wait = now, wait
	if !p.last.IsZero() && p.last.Add(hush).After(now) {
		p.next = p.last.Add(hush)
	}
}

// Posting decides when a leader posts: what is new at once, or hush after the notice before; and what is
// not after ever longer pauses, for the first ones may have been taken by peers that were few, or are
// gone. The zero value is ready for use.
type Posting struct {
	pace
	gist []byte
}

// Due tells whether to post something now whose gist is given; not empty. Jitter is in [0, 1).
func (p *Posting) Due(now time.Time, gist []byte, jitter float64) bool {
	if !bytes.Equal(gist, p.gist) {
		p.gist = bytes.Clone(gist)
		p.restart(now, soon)
	}
	return p.due(now, republish, jitter)
}

// End is told while this peer does not lead: what it posts when it leads again is news.
func (p *Posting) End() { p.gist = nil }

// Looking decides when a peer looks at the board: when it has known nobody that leads for some time,
// then after ever longer pauses. The zero value is ready for use.
type Looking struct {
	pace
	dry bool // nobody was known to lead when it was asked last
}

// Due tells whether to look now; led that somebody is known to lead. Jitter is in [0, 1).
func (l *Looking) Due(now time.Time, led bool, jitter float64) bool {
	switch {
	case led:
		l.dry = false
		return false
	case !l.dry:
		l.dry = true
		l.restart(now.Add(unled), hush)
	}
	return l.due(now, seldom, jitter)
}
