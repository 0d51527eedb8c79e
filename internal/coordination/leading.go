package coordination

import (
	"context"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/leader"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Leading returns the highest term in which a leader of the group was confirmed, the leader's peer id,
// empty while none is known, and a channel that is closed when either changes. See package leader. The
// term goes back only after a forced recovery, which begins a new incarnation with terms of its own.
func (p *Plane) Leading() (term uint64, leader string, changed <-chan struct{}) {
	return p.finder.leading()
}

func (f *leaderFinder) leading() (term uint64, leader string, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tracker.Known().Term, f.name, f.changed
}

// finderConfig holds what a leaderFinder needs from its plane. The functions must not call the finder.
type finderConfig struct {
	self    peer.ID
	life    *goroutines
	peers   func() []peer.ID                                              // peers that may know the leader
	member  func() (believes leader.Member, changed <-chan struct{})      // this peer's own member
	ask     func(context.Context, peer.ID) (_ leader.Leadership, ok bool) // false: no answer that counts
	waiting func() leader.Tick                                            // the calls that wait for the leader
}

// leaderFinder runs the leader.Tracker of this peer: it asks its questions and hands it the events.
type leaderFinder struct {
	finderConfig
	start  time.Time
	timer  *time.Timer
	joined chan struct{} // receives when this peer's membership begins or ends

	mu       sync.Mutex // guards all below
	tracker  *leader.Tracker
	believed leader.Member // last one applied
	name     string        // of the known leader
	changed  chan struct{} // closed when the known leader or term changes
	settled  chan struct{} // closed when the last open question ends
	lost     time.Time     // when the last leader was lost; zero while one is known
	ended    bool          // another plane goes on
	session  session
}

// session lasts from the confirmation of a leader until another peer is confirmed. It ends calls to a
// leader that is cut off and so does not answer.
type session struct {
	context.Context
	of  peer.ID
	end context.CancelFunc
}

func newLeaderFinder(c finderConfig) *leaderFinder {
	return &leaderFinder{
		finderConfig: c, start: time.Now(), timer: time.NewTimer(time.Hour), joined: make(chan struct{}, 1),
		tracker: leader.New(leader.Config{Self: c.self, Jitter: newRand().Float64}),
		changed: make(chan struct{}), settled: make(chan struct{}), lost: time.Now(),
	}
}

// run feeds the tracker until the life of the plane ends.
func (f *leaderFinder) run() {
	for {
		_, moved := f.member()
		peers, tick := f.peers(), f.waiting()
		f.mu.Lock()
		f.believe()
		f.apply(leader.Peers(peers))
		f.apply(tick)
		f.mu.Unlock()
		select {
		case <-moved:
		case <-f.timer.C:
		case <-f.joined:
		case <-f.life.Done():
			return
		}
	}
}

// wake makes run check this peer's member again.
func (f *leaderFinder) wake() {
	select {
	case f.joined <- struct{}{}:
	default:
	}
}

// advance applies an event.
func (f *leaderFinder) advance(e leader.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.apply(e)
}

// believe applies a change of the member's belief. Call it with mu held, so that beliefs arrive in order.
func (f *leaderFinder) believe() {
	if now, _ := f.member(); now != f.believed {
		f.believed = now
		f.apply(now)
	}
}

// apply applies an event with mu held.
func (f *leaderFinder) apply(e leader.Event) {
	before, open := f.tracker.Known(), f.tracker.Open()
	step := f.tracker.Advance(f.now(), e)
	for _, p := range step.Ask {
		f.life.start(func() { f.question(p) }) // refused at the end, when no caller waits
	}
	f.timer.Reset(max(step.Wake-f.now(), time.Millisecond))
	if open > 0 && f.tracker.Open() == 0 {
		close(f.settled)
		f.settled = make(chan struct{})
	}
	if now := f.tracker.Known(); now != before {
		f.publish(now)
	}
}

func (f *leaderFinder) publish(now leader.Leadership) {
	if f.ended {
		return
	}
	close(f.changed)
	f.changed = make(chan struct{})
	if now.Peer == "" {
		f.name = ""
		if f.lost.IsZero() {
			f.lost = time.Now()
		}
		return
	}
	f.name, f.lost = now.Peer.String(), time.Time{}
	if f.session.of == now.Peer {
		return
	}
	if f.session.end != nil {
		f.session.end()
	}
	f.session = session{of: now.Peer}
	f.session.Context, f.session.end = context.WithCancel(f.life)
}

// end sends everybody who waits for a change to the next plane, for good.
func (f *leaderFinder) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	close(f.changed)
}

// now is the time since start, as the tracker counts it.
func (f *leaderFinder) now() time.Duration { return time.Since(f.start) }

// question asks one peer and applies its answer.
func (f *leaderFinder) question(p peer.ID) {
	ctx, cancel := context.WithTimeout(f.life, askTime)
	defer cancel()
	if said, ok := f.ask(ctx, p); ok {
		f.advance(leader.Answer{From: p, Leadership: said})
	} else {
		f.advance(leader.Failed{From: p})
	}
}

// find returns the leader. Without a known one it has the peers asked and waits for their answers. Errors:
// Unavailable if they know none; Timeout, Canceled.
func (f *leaderFinder) find(ctx context.Context) (peer.ID, error) {
	f.mu.Lock()
	f.believe()
	if f.tracker.Known().Peer == "" {
		f.apply(leader.Needed{})
	}
	for {
		known, open := f.tracker.Known().Peer, f.tracker.Open()
		changed, settled := f.changed, f.settled
		f.mu.Unlock()
		switch {
		case known != "":
			return known, nil
		case open == 0:
			return "", fault.New("group.leader", fault.Unavailable, "no peer that answers knows a leader")
		}
		select {
		case <-changed:
		case <-settled:
		case <-ctx.Done():
			return "", fault.Wrap("group.leader", ctx.Err())
		case <-f.life.Done():
			return "", fault.New("group.leader", fault.Unavailable, "this peer is shutting down")
		}
		f.mu.Lock()
	}
}

// changes returns a channel that is closed when another leader or term is known.
func (f *leaderFinder) changes() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// during returns the context of a call: it also ends when a peer other than at is the leader.
func (f *leaderFinder) during(ctx context.Context, at peer.ID) (context.Context, context.CancelFunc) {
	f.mu.Lock()
	f.apply(leader.Called{})
	now := f.session
	f.mu.Unlock()
	bounded, cancel := context.WithCancel(ctx)
	switch now.of {
	case "":
		return bounded, cancel
	case at:
		stop := context.AfterFunc(now.Context, cancel)
		return bounded, func() { stop(); cancel() }
	}
	cancel()
	return bounded, cancel
}

// replaced returns a channel that is closed when a peer other than at is the leader.
func (f *leaderFinder) replaced(at peer.ID) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.session.of != at {
		return f.changed
	}
	return f.session.Done()
}

// leaderless returns the time without a known leader; 0 with one.
func (f *leaderFinder) leaderless() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lost.IsZero() {
		return 0
	}
	return time.Since(f.lost)
}

func (f *leaderFinder) known() leader.Leadership {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tracker.Known()
}
