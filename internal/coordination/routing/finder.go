package routing

import (
	"context"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/leader"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
)

// finder runs the leader.Tracker of this peer: it asks its questions and hands it the events.
type finder struct {
	config  Config
	waiting func() leader.Tick // the calls that wait for the leader
	start   time.Time
	timer   *time.Timer
	joined  chan struct{} // receives when this peer's membership begins or ends

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

func newFinder(c Config, waiting func() leader.Tick) *finder {
	return &finder{
		config: c, waiting: waiting, start: time.Now(), timer: time.NewTimer(time.Hour), joined: make(chan struct{}, 1),
		tracker: leader.New(leader.Config{Self: c.Self, Jitter: c.Jitter}),
		changed: make(chan struct{}), settled: make(chan struct{}), lost: time.Now(),
	}
}

// Run feeds the tracker until the life of the plane ends.
func (f *finder) Run() {
	for {
		_, moved := f.belief()
		peers, tick := f.config.Peers(), f.waiting()
		f.mu.Lock()
		f.believe()
		f.apply(leader.Peers(peers))
		f.apply(tick)
		f.mu.Unlock()
		select {
		case <-moved:
		case <-f.timer.C:
		case <-f.joined:
		case <-f.config.Life.Done():
			return
		}
	}
}

// Wake makes Run check this peer's member again.
func (f *finder) Wake() {
	pause.Wake(f.joined)
}

// Advance applies an event.
func (f *finder) Advance(e leader.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.apply(e)
}

// believe applies a change of the member's belief. Call it with mu held, so that beliefs arrive in order.
func (f *finder) believe() {
	if now, _ := f.belief(); now != f.believed {
		f.believed = now
		f.apply(now)
	}
}

// apply applies an event with mu held.
func (f *finder) apply(e leader.Event) {
	before, open := f.tracker.Known(), f.tracker.Open()
	step := f.tracker.Advance(f.now(), e)
	for _, p := range step.Ask {
		f.config.Start(func() { f.question(p) }) // refused at the end, when no caller waits
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

// belief returns the leader according to this peer's own member, and a channel that is closed at the next change of the
// member.
func (f *finder) belief() (leader.Member, <-chan struct{}) {
	m := f.config.Member()
	if m == nil {
		return leader.Member{}, nil
	}
	changed := m.Changed()
	return m.Belief(), changed
}

func (f *finder) publish(now leader.Leadership) {
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
	f.session.Context, f.session.end = context.WithCancel(f.config.Life)
}

// HandOver sends everybody who waits for a change to the next plane, for good.
func (f *finder) HandOver() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	close(f.changed)
}

// now is the time since start, as the tracker counts it.
func (f *finder) now() time.Duration { return time.Since(f.start) }

// question asks one peer and applies its answer.
func (f *finder) question(p peer.ID) {
	ctx, cancel := context.WithTimeout(f.config.Life, askTime)
	defer cancel()
	if said, ok := f.config.Ask(ctx, p); ok {
		f.Advance(leader.Answer{From: p, Leadership: said})
	} else {
		f.Advance(leader.Failed{From: p})
	}
}

// find returns the leader. Without a known one it has the peers asked and waits for their answers. Errors:
// Unavailable if they know none; Timeout, Canceled.
func (f *finder) find(ctx context.Context) (peer.ID, error) {
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
			return "", fault.New("routing.leader", fault.Unavailable, "no peer that answers knows a leader")
		}
		select {
		case <-changed:
		case <-settled:
		case <-ctx.Done():
			return "", fault.Wrap("routing.leader", ctx.Err())
		case <-f.config.Life.Done():
			return "", fault.New("routing.leader", fault.Unavailable, "this peer is shutting down")
		}
		f.mu.Lock()
	}
}

// changes returns a channel that is closed when another leader or term is known.
func (f *finder) changes() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// Leading returns the highest term in which a leader of the group was confirmed, the leader's peer id,
// empty while none is known, and a channel that is closed when either changes. See package leader. The
// term goes back only after a forced recovery, which begins a new incarnation with terms of its own.
func (f *finder) Leading() (term uint64, leader string, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tracker.Known().Term, f.name, f.changed
}

// during returns the context of a call: it also ends when a peer other than at is the leader.
func (f *finder) during(ctx context.Context, at peer.ID) (context.Context, context.CancelFunc) {
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

// replaced returns a channel that is closed when the session with the leader at ends; without one, at the next change of leader or term.
func (f *finder) replaced(at peer.ID) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.session.of != at {
		return f.changed
	}
	return f.session.Done()
}

// Leaderless returns the time without a known leader; 0 with one.
func (f *finder) Leaderless() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lost.IsZero() {
		return 0
	}
	return time.Since(f.lost)
}

// Known returns the leader, and its term; the zero value while none is known.
func (f *finder) Known() leader.Leadership {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tracker.Known()
}
