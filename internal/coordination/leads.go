package coordination

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

const (
	following = 250 * time.Millisecond // between two looks at who leads, when nothing tells of a change
	seldom    = 5 * time.Second        // between two questions, at most
)

// standing is who leads, as it was last told.
type standing struct {
	mu      sync.Mutex
	term    uint64
	peer    peer.ID // "" when nobody is known
	name    string  // of peer
	changed chan struct{}
}

// Leading tells who leads the group: the highest term in which a leader is known to this peer, the
// leader's peer id, "" when none is known, and a channel that is closed when either changes. Both count,
// what this peer's own member knows and what others say: a peer that leads is named by itself only while
// its member does lead. The term goes back only when the group is recovered after a disaster, by which
// its terms begin anew.
//
// While nobody is known the peer asks all who may know, and while its own member knows nobody it asks the
// leader that it has heard of whether it still leads. One that does not answer is no longer known.
func (p *Plane) Leading() (term uint64, leader string, changed <-chan struct{}) {
	s := &p.standing
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.term, s.name, s.changed
}

// set takes in who leads.
func (s *standing) set(now leadership) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term == now.term && s.peer == now.peer {
		return
	}
	s.term, s.peer, s.name = now.term, now.peer, ""
	if now.peer != "" {
		s.name = now.peer.String()
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// follow keeps up with who leads, and asks while nobody is known to.
func (p *Plane) follow() {
	f := follower{plane: p, wait: following, jitter: newRand()}
	look := time.NewTicker(following)
	defer look.Stop()
	for {
		news, moved := p.seeker.heralded(), (<-chan struct{})(nil)
		l := p.here.Load()
		if l != nil {
			moved = l.member.Changed()
		}
		f.look(l)
		select {
		case <-moved:
		case <-news:
		case <-f.asked:
			f.asked = nil
		case <-look.C:
		case <-p.life.Done():
			return
		}
	}
}

// follower is what follow remembers.
type follower struct {
	plane  *Plane
	own    leadership    // that this peer's member last believed in; zero: in none
	asked  chan struct{} // closed when the round of questions under way is over; nil: there is none
	again  time.Time     // before which there is no other
	wait   time.Duration
	jitter *rand.Rand
}

func (f *follower) look(l *local) {
	s, was := f.plane.seeker, f.own
	if f.own, _ = l.believed(); f.own.peer == "" && was.peer != "" {
		s.lose(was)
	}
	now := s.leading(f.own, f.plane.self)
	f.plane.standing.set(now)
	switch due := f.asked == nil && time.Now().After(f.again); {
	case f.own.peer != "": // Raft tells of the next one
		f.wait, f.again = following, time.Time{}
	case due && now.peer != "":
		f.wait = following
		f.ask(seldom, func() { s.check(now) })
	case due:
		f.ask(f.wait, s.refresh)
		f.wait = min(2*f.wait, seldom)
	}
}

// ask begins questions; the next ones come after about a while.
func (f *follower) ask(while time.Duration, ask func()) {
	over := make(chan struct{})
	if f.plane.life.start(func() { defer close(over); ask() }) {
		f.asked = over
	}
	f.again = time.Now().Add(while/2 + time.Duration(f.jitter.Int64N(int64(while/2))))
}

// heralded is closed when a leader is known anew.
func (s *seeker) heralded() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.news
}

// leading is who leads, by what others say and by what this peer's own member believes, if anything.
func (s *seeker) leading(own leadership, self peer.ID) leadership {
	s.mu.Lock()
	defer s.mu.Unlock()
	if own.peer != "" && own != s.doubted {
		s.hear(own)
	}
	now := leadership{s.term, s.lead}
	switch {
	case own.peer == self && own.term >= now.term: // it is told by nobody else, and never in doubt
		return own
	case now.peer == self:
		now.peer = "" // it was
	}
	return now
}

// check asks a peer whether it still leads, and forgets it if it does not.
func (s *seeker) check(l leadership) {
	ctx, cancel := context.WithTimeout(s.plane.life, askTime)
	defer cancel()
	info, err := s.ask(ctx, l.peer, 0)
	if err == nil && info != nil {
		s.learn(l.peer, info)
	}
	if info.GetLeader() == 0 {
		s.lose(l)
	}
}

// lose forgets a leadership that is over, unless a later one is known.
func (s *seeker) lose(l leadership) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term == l.term && s.lead == l.peer {
		s.lead = ""
	}
}
