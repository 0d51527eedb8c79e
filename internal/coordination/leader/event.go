package leader

import (
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

// Event is an input of a Tracker.
type Event interface {
	// apply returns the peers to ask.
	apply(t *Tracker, now time.Duration) []peer.ID
}

// Peers lists the peers that may know the leader, this peer excluded, from now on. The first list
// starts the questions.
type Peers []peer.ID

func (e Peers) apply(t *Tracker, now time.Duration) (ask []peer.ID) {
	t.peers = slices.Clone(e[:min(len(e), maxPeers)])
	switch {
	case t.known.Peer != "":
		return nil
	case t.round == 0:
		return t.poll(now)
	}
	for _, p := range t.peers {
		if t.questions[p] == nil {
			ask = append(ask, t.ask(p)...)
		}
	}
	return ask
}

// Answer is a peer's answer to a question: the peer's term, and its leader as far as the peer knows.
type Answer struct {
	From peer.ID
	Leadership
}

func (e Answer) apply(t *Tracker, now time.Duration) []peer.ID {
	q := t.questions[e.From]
	if q == nil || !q.open {
		return nil
	}
	t.open--
	q.open, q.answered = false, true
	renewed := t.renew(e.Incarnation)
	switch {
	case q.round < t.since: // from before the loss
		if t.known.Peer != "" && !(t.checking && t.known.Peer == e.From) {
			return nil
		}
		return t.ask(e.From)
	case e.Peer == e.From && t.confirm(now, e.Leadership):
		return nil
	case renewed:
		return append(t.poll(now), t.consider(e.Leadership)...)
	case t.checking && e.From == t.known.Peer:
		return append(t.lose(now), t.consider(e.Leadership)...)
	}
	return t.consider(e.Leadership)
}

// Failed ends a question to a peer that gave no answer.
type Failed struct{ From peer.ID }

func (e Failed) apply(t *Tracker, now time.Duration) []peer.ID {
	q := t.questions[e.From]
	if q == nil || !q.open {
		return nil
	}
	t.open--
	q.open = false
	if t.checking && e.From == t.known.Peer && q.round == t.round {
		return t.lose(now)
	}
	return nil
}

// Claim is what a peer says unasked, such as an announcement.
type Claim struct {
	From peer.ID
	Leadership
}

func (e Claim) apply(t *Tracker, now time.Duration) []peer.ID {
	renewed := t.renew(e.Incarnation)
	switch {
	case e.Peer != "" && e.Peer == e.From && t.confirm(now, e.Leadership):
		return nil
	case renewed:
		return append(t.poll(now), t.consider(e.Leadership)...)
	case e.Peer == "" && e.From == t.known.Peer && e.From != "" && e.From != t.config.Self && !e.olderThan(t.known):
		return t.lose(now) // it gave up
	}
	return t.consider(e.Leadership)
}

// Member is the belief of this peer's own Raft member. Its Peer is empty without a leader, or without a
// member.
type Member struct {
	Leadership
	// Votes marks a voter, which drops a silent leader after an election timeout. A learner or a removed
	// member believes in its last leader forever.
	Votes bool
}

func (e Member) apply(t *Tracker, now time.Duration) []peer.ID {
	was := t.member
	if t.member = e; e.Leadership == was.Leadership {
		return nil
	}
	if e.Peer != "" && t.confirm(now, e.Leadership) {
		return nil
	}
	if was.Leadership == t.known && t.known.Peer != "" {
		return t.lose(now)
	}
	return nil
}

// Suspect reports a leader without an answer to a caller. The leader is asked again.
type Suspect struct{ Leader peer.ID }

func (e Suspect) apply(t *Tracker, now time.Duration) []peer.ID {
	if e.Leader == "" || e.Leader != t.known.Peer || e.Leader == t.config.Self || t.checking {
		return nil
	}
	return t.check(now)
}

// Refused reports a leader that refused a call or was unreachable. All peers are asked.
type Refused struct{ Leader peer.ID }

func (e Refused) apply(t *Tracker, now time.Duration) []peer.ID {
	if e.Leader == "" || e.Leader != t.known.Peer || t.member.Leadership == t.known && e.Leader == t.config.Self {
		return nil
	}
	return t.lose(now)
}

// Needed reports a caller's need of the leader.
type Needed struct{}

func (Needed) apply(t *Tracker, now time.Duration) []peer.ID {
	if t.known.Peer != "" {
		return nil
	}
	if t.round > 0 && now < t.began+minRepeat {
		t.next = min(t.next, t.began+minRepeat)
		return nil
	}
	return t.poll(now)
}

// Called reports the begin of a call to the leader. A Tick follows soon, which says whether the call still waits.
type Called struct{}

func (Called) apply(t *Tracker, now time.Duration) []peer.ID {
	if !t.calling {
		t.calling, t.called = true, now
	}
	return nil
}

// Tick reports the time. It may come early, and more than once.
type Tick struct {
	// Waiting says that calls wait for an answer of the leader. It is checked often then, because a cut-off leader
	// does not end them.
	Waiting bool
	// Watching says that watches are open at the leader, which are silent for long without a fault. It is checked less
	// often: they are open all the time, at every client of the group.
	Watching bool
}

func (e Tick) apply(t *Tracker, now time.Duration) []peer.ID {
	Called{}.apply(t, now)
	t.calling, t.watching = e.Waiting, e.Watching
	switch {
	case t.round == 0 && t.known.Peer == "":
		return t.poll(now)
	case t.known.Peer == "" && now >= t.next:
		t.backOff()
		return t.poll(now)
	case t.known.Peer == "":
		return nil
	case t.checking && now >= t.next:
		return t.lose(now)
	case t.checking || t.quiet():
		return nil
	case now >= t.next || e.Waiting && now >= t.began+2*t.config.Least || e.Watching && now >= t.began+8*t.config.Least:
		return t.check(now)
	}
	return nil
}
