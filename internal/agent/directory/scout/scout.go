// Package scout finds who leads the coordination group, by asking.
//
// It knows two phases. While no leader is known it asks all members at once, again and again. Of
// those that are said to lead the one of the highest term counts, and it must say so itself: what
// others say of it only leads to asking it too, for they may not have noticed yet that it is gone. Once a leader has
// spoken only the leader is asked, and when that fails, or it leads no more, all are asked again
// at once. A leader of a lower term than one known before is never believed again.
//
// A Scout only computes: time comes with the events, a duration since any origin; jitter is injected;
// what is to be asked is its answer. It is for one goroutine.
//
// The phases and the choice by epoch are those of the design document "Service Discovery Race
// Condition".
package scout

import (
	"slices"
	"time"
)

// maxMembers bounds whom a Scout asks at once.
const maxMembers = 128

// Config is what a Scout is made with.
type Config struct {
	// Least and Most bound the time between two rounds of questions. Zero: 250 ms and 5 s.
	Least, Most time.Duration
	// Patience is how long a leader may take to answer; zero: 1 s. Members that do not lead may
	// take until the next round.
	Patience time.Duration
	// Jitter draws from [0, 1).
	Jitter func() float64
}

// Phase is what a Scout is about.
type Phase uint8

const (
	// Polling asks all members, for no leader is known.
	Polling Phase = iota
	// Direct asks the leader alone.
	Direct
)

// String gives the name of the phase.
func (p Phase) String() string {
	if p == Direct {
		return "direct"
	}
	return "polling"
}

// State is what a Scout knows.
type State struct {
	Phase  Phase
	Leader string // "" while polling
	Term   uint64 // the highest in which a leader was known
}

// Event is what happened: Members, Answer, Failed, Hint, Doubt or Woke.
type Event interface{ event() }

// Members says whom to ask, from now on. A first one begins.
type Members struct{ Peers []string }

// Answer is what one that was asked said.
type Answer struct {
	From   string
	Round  uint64 // of the question
	Term   uint64 // that it is in
	Leader string // of that term, as far as it knows; "" for none
}

// Failed says that one that was asked will not answer.
type Failed struct {
	From  string
	Round uint64
}

// Hint is what was heard by the way of who leads, such as in a refusal of one that does not, or
// from this peer's own member.
type Hint struct {
	Term   uint64
	Leader string
}

// Doubt says that the leader failed somebody who called it. One of another term is passed over.
type Doubt struct{ Term uint64 }

// Woke says that the time has come that was asked for. It may come too early, and more than once.
type Woke struct{}

func (Members) event() {}
func (Answer) event()  {}
func (Failed) event()  {}
func (Hint) event()    {}
func (Doubt) event()   {}
func (Woke) event()    {}

// Step is what is to be done.
type Step struct {
	Ask   []string      // who is to be asked who leads
	Round uint64        // to be named with the answer
	Wake  time.Duration // when to send Woke at the latest; it replaces the last
}

// Scout is the state machine.
type Scout struct {
	config  Config
	state   State
	members []string
	round   uint64
	asked   map[string]*asking // in this round
	next    time.Duration      // when the next round begins, or patience with the leader ends
	waits   bool               // for the leader's answer
	base    time.Duration      // of the wait: it is between this and twice as much
}

// asking is how often one was asked in a round.
type asking struct {
	times    int
	answered bool // the last time
	failed   bool // the same
}

// New makes a Scout that knows nobody.
func New(c Config) *Scout {
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
	return &Scout{config: c, asked: make(map[string]*asking), base: c.Least}
}

// State tells what is known.
func (s *Scout) State() State { return s.state }

// Advance takes an event that happened now.
func (s *Scout) Advance(now time.Duration, e Event) Step {
	var ask []string
	switch e := e.(type) {
	case Members:
		ask = s.gather(now, e.Peers)
	case Answer:
		ask = s.hear(now, e)
	case Failed:
		if a := s.asked[e.From]; a != nil && e.Round == s.round {
			a.failed = true
		}
		if s.state.Phase == Direct && s.waits && e.Round == s.round && e.From == s.state.Leader {
			ask = s.fallBack(now)
		}
	case Hint:
		if a := s.asked[e.Leader]; a != nil { // it may have begun to lead since it was asked
			a.failed = true
		}
		ask = s.consider(e.Term, e.Leader)
	case Doubt:
		if s.state.Phase == Direct && e.Term == s.state.Term {
			ask = s.fallBack(now)
		}
	case Woke:
		ask = s.wake(now)
	}
	return Step{Ask: ask, Round: s.round, Wake: s.next}
}

// gather changes whom to ask. Those who come anew while nobody is known to lead are asked at once.
func (s *Scout) gather(now time.Duration, peers []string) []string {
	s.members = slices.Clone(peers[:min(len(peers), maxMembers)])
	slices.Sort(s.members)
	s.members = slices.Compact(s.members)
	if s.state.Phase == Direct {
		return nil
	}
	if s.round == 0 {
		return s.poll(now)
	}
	var fresh []string
	for _, peer := range s.members {
		if s.asked[peer] == nil {
			fresh = append(fresh, s.also(peer)...)
		}
	}
	return fresh
}

// also asks one more in the present round, or once again who has answered, or could not, before what is now heard of it:
// not more often, for two may each name the other.
func (s *Scout) also(peer string) []string {
	a := s.asked[peer]
	switch {
	case a == nil && len(s.asked) < 2*maxMembers:
		s.asked[peer] = &asking{times: 1}
	case a != nil && (a.answered || a.failed) && a.times == 1:
		*a = asking{times: 2}
	default:
		return nil
	}
	return []string{peer}
}

// hear takes an answer. Those of earlier rounds are old, and say nothing.
func (s *Scout) hear(now time.Duration, a Answer) []string {
	asked := s.asked[a.From]
	if asked == nil || a.Round != s.round {
		return nil
	}
	asked.answered = true
	switch {
	case a.Leader != "" && a.Leader == a.From && a.Term >= s.state.Term:
		s.follow(now, a)
		return nil
	case s.state.Phase == Direct && a.From == s.state.Leader && s.waits:
		ask := s.fallBack(now)
		return append(ask, s.consider(a.Term, a.Leader)...)
	}
	return s.consider(a.Term, a.Leader)
}

// follow takes one at its word that it leads.
func (s *Scout) follow(now time.Duration, a Answer) {
	if s.state.Phase == Polling || a.Term > s.state.Term || a.Leader != s.state.Leader {
		s.base = s.config.Least
	} else {
		s.base = min(2*s.base, s.config.Most/2)
	}
	s.state = State{Phase: Direct, Leader: a.Leader, Term: a.Term}
	s.waits = false
	s.next = now + s.jitter()
}

// consider asks one that is said to lead, unless it is known not to be worth it.
func (s *Scout) consider(term uint64, leader string) []string {
	stale := term < s.state.Term || s.state.Phase == Direct && term == s.state.Term
	if leader == "" || stale || s.round == 0 {
		return nil
	}
	return s.also(leader)
}

// fallBack gives the leader up.
func (s *Scout) fallBack(now time.Duration) []string {
	s.state.Phase, s.state.Leader, s.base = Polling, "", s.config.Least
	return s.poll(now)
}

// wake begins a round if it is time to.
func (s *Scout) wake(now time.Duration) []string {
	switch {
	case s.round == 0 || now < s.next:
		return nil
	case s.state.Phase == Polling:
		s.backOff()
		return s.poll(now)
	case s.waits:
		return s.fallBack(now)
	}
	s.begin()
	s.waits, s.next = true, now+s.config.Patience
	return s.also(s.state.Leader)
}

// backOff lengthens the time between rounds. When somebody answers, a leader is being elected, which
// is soon over: the time then stays short.
func (s *Scout) backOff() {
	most := s.config.Most / 2
	for _, a := range s.asked {
		if a.answered {
			most = min(most, 2*s.config.Least)
		}
	}
	s.base = min(2*s.base, most)
}

// poll begins a round with all members.
func (s *Scout) poll(now time.Duration) []string {
	s.begin()
	s.waits, s.next = false, now+s.jitter()
	for _, peer := range s.members {
		s.asked[peer] = &asking{times: 1}
	}
	return slices.Clone(s.members)
}

func (s *Scout) begin() {
	s.round++
	clear(s.asked)
}

// jitter is the time to the next round.
func (s *Scout) jitter() time.Duration {
	return s.base + time.Duration(s.config.Jitter()*float64(s.base))
}
