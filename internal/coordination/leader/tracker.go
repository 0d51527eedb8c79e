// Package leader tracks the leader of the coordination group. It is a peer's only place for this fact.
//
// A Tracker has two phases. Without a known leader it asks all peers that may know, again and again. A peer
// counts as leader only on its own word: its answer, its signed announcement, or its heartbeats to this peer's
// own Raft member. A leader named by others is asked. With a known leader the Tracker asks only this leader,
// more and more rarely, and a peer that others name for a later term, and nobody while a voting member of this peer receives the leader's heartbeats. A
// leader that fails a caller is asked again; a leader that refuses or stays silent is abandoned, and all peers
// are asked at once. A leader of a lower term than an earlier one is never believed.
//
// The two phases and the choice by epoch come from the design document "Service Discovery Race Condition".
package leader

import (
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

const (
	maxPeers  = 128                   // peers that are kept; twice as many questions may be open
	minRepeat = 20 * time.Millisecond // between two rounds that callers demand
)

// Leadership names the leader of a term. Terms count within an incarnation of the group: a forced
// recovery begins a new incarnation, and its terms start again.
type Leadership struct {
	Incarnation uint64
	Term        uint64
	Peer        peer.ID // empty: no leader
}

// olderThan compares incarnation and term.
func (l Leadership) olderThan(o Leadership) bool {
	return l.Incarnation < o.Incarnation || l.Incarnation == o.Incarnation && l.Term < o.Term
}

// Config configures a Tracker. Self and Jitter are required.
type Config struct {
	Self peer.ID
	// Least and Most bound the time between two rounds of questions. Zero: 250 ms and 5 s.
	Least, Most time.Duration
	// Patience is the time that a leader has for its answer. Zero: 1 s.
	Patience time.Duration
	// Jitter draws from [0, 1).
	Jitter func() float64
}

// Step lists the work after an event.
type Step struct {
	Ask  []peer.ID     // peers to ask; each question ends with one Answer or Failed
	Wake time.Duration // time of the next Tick; it replaces the previous one
}

// Tracker is the state machine. Time comes with the events, as a duration since any origin. A Tracker is for
// one goroutine at a time.
type Tracker struct {
	config Config
	known  Leadership // highest confirmed term; Peer is empty in the polling phase
	member Member     // last belief of this peer's own member, applied at its changes

	peers     []peer.ID
	questions map[peer.ID]*question
	open      int           // questions without an answer
	round     uint64        // number of the current round; 0 before the first peer is known
	since     uint64        // round that began after the last loss: older answers prove nothing
	began     time.Duration // of the round
	next      time.Duration // end of the pause between rounds, or of the leader's time to answer
	checking  bool          // the known leader was asked in this round
	calling   bool          // calls wait for an answer of the leader
	called    time.Duration // calls have waited since then, or for less long
	watching  bool          // watches are open at the leader
	base      time.Duration // of the pause, which lasts between base and twice base
}

// question is the last question to one peer.
type question struct {
	round    uint64
	times    int  // in the round, at most 2
	open     bool // without an answer
	answered bool // the last question was answered
}

// New makes a Tracker that knows no peer and no leader.
func New(c Config) *Tracker {
	if c.Least <= 0 {
		c.Least = 250 * time.Millisecond
	}
	if c.Most <= 0 {
		c.Most = 5 * time.Second
	}
	if c.Patience <= 0 {
		c.Patience = time.Second
	}
	c.Most = max(c.Most, 2*c.Least)
	return &Tracker{config: c, questions: make(map[peer.ID]*question), base: c.Least}
}

// Known returns the highest incarnation and term in which a leader was confirmed, and this leader. Peer is
// empty in the polling phase, and the term 0 in an incarnation without a confirmed leader.
func (t *Tracker) Known() Leadership { return t.known }

// Open returns the number of questions without an answer.
func (t *Tracker) Open() int { return t.open }

// Advance applies an event of this moment.
func (t *Tracker) Advance(now time.Duration, e Event) Step {
	ask := e.apply(t, now)
	return Step{Ask: ask, Wake: t.wake(now)}
}

// wake returns the time of the next Tick.
func (t *Tracker) wake(now time.Duration) time.Duration {
	switch {
	case t.known.Peer == "" || t.checking:
		return t.next
	case t.quiet():
		return now + t.config.Most
	}
	at := t.next
	if t.calling {
		at = min(at, max(t.called, t.began)+2*t.config.Least)
	}
	if t.watching {
		at = min(at, t.began+8*t.config.Least)
	}
	return at
}

// quiet reports whether Raft replaces questions: a voter drops a silent leader by itself.
func (t *Tracker) quiet() bool {
	return t.known.Peer != "" && (t.known.Peer == t.config.Self || t.member.Votes && t.member.Leadership == t.known)
}

// follow accepts a peer's own claim of the leadership.
func (t *Tracker) follow(now time.Duration, l Leadership) {
	if l == t.known {
		t.base = min(2*t.base, t.config.Most/2)
	} else {
		t.base = t.config.Least
	}
	t.known, t.checking = l, false
	t.began, t.next = now, now+t.pause()
}

// confirm follows a claimant, unless a newer leader is known. It reports whether the claimant is the known
// leader now.
func (t *Tracker) confirm(now time.Duration, l Leadership) bool {
	if l.olderThan(t.known) || t.known.Peer != "" && !t.known.olderThan(l) && l.Peer != t.known.Peer {
		return false
	}
	t.follow(now, l)
	return true
}

// renew forgets the leader of an older incarnation.
func (t *Tracker) renew(incarnation uint64) bool {
	if incarnation <= t.known.Incarnation {
		return false
	}
	t.known, t.checking, t.base = Leadership{Incarnation: incarnation}, false, t.config.Least
	return true
}

// lose enters the polling phase.
func (t *Tracker) lose(now time.Duration) []peer.ID {
	t.known.Peer, t.base, t.since = "", t.config.Least, t.round+1
	return t.poll(now)
}

// consider asks a peer that others name as the leader of a newer term.
func (t *Tracker) consider(l Leadership) []peer.ID {
	stale := l.olderThan(t.known) || t.known.Peer != "" && !t.known.olderThan(l)
	if l.Peer == "" || l.Peer == t.config.Self || stale || t.round == 0 {
		return nil
	}
	return t.ask(l.Peer)
}

// poll begins a round with all peers, except those with an open question.
func (t *Tracker) poll(now time.Duration) []peer.ID {
	t.checking, t.next = false, now+t.pause()
	if len(t.peers) == 0 {
		return nil
	}
	t.begin(now)
	var asked []peer.ID
	for _, p := range t.peers {
		asked = append(asked, t.ask(p)...)
	}
	return asked
}

// check begins a round with the known leader alone.
func (t *Tracker) check(now time.Duration) []peer.ID {
	t.begin(now)
	t.checking, t.next = true, now+t.config.Patience
	if q := t.questions[t.known.Peer]; q != nil && q.open && q.round >= t.since {
		q.round = t.round // its answer serves this round too
	}
	return t.ask(t.known.Peer)
}

func (t *Tracker) begin(now time.Duration) {
	t.round++
	t.began = now
	for p, q := range t.questions {
		if q.times = 0; !q.open && !slices.Contains(t.peers, p) {
			delete(t.questions, p)
		}
	}
}

// ask asks a peer at most twice in a round, because two peers may each name the other.
func (t *Tracker) ask(p peer.ID) []peer.ID {
	q := t.questions[p]
	switch {
	case q == nil && len(t.questions) >= 2*maxPeers:
		return nil
	case q == nil:
		q = new(question)
		t.questions[p] = q
	case q.open || q.times >= 2:
		return nil
	}
	q.round, q.times, q.open, q.answered = t.round, q.times+1, true, false
	t.open++
	return []peer.ID{p}
}

// backOff lengthens the pause between rounds. It stays short while peers answer: then an election is
// under way, which ends soon.
func (t *Tracker) backOff() {
	most := t.config.Most / 2
	for _, q := range t.questions {
		if q.answered {
			most = min(most, 2*t.config.Least)
		}
	}
	t.base = min(2*t.base, most)
}

// pause is the time until the next round.
func (t *Tracker) pause() time.Duration {
	return t.base + time.Duration(t.config.Jitter()*float64(t.base))
}
