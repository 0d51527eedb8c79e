package directory

import (
	"context"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/agent/directory/scout"
)

// lookout asks who leads, as its Scout says.
type lookout struct {
	d    *Directory
	wake *time.Timer

	mu      sync.Mutex // guards what follows
	scout   *scout.Scout
	changed chan struct{} // closed when the state changes
	closed  bool
}

func newLookout(d *Directory) *lookout {
	l := &lookout{
		d: d, changed: make(chan struct{}),
		scout: scout.New(scout.Config{Least: least, Most: most, Jitter: d.Random}),
	}
	l.wake = time.AfterFunc(time.Hour, func() { l.advance(scout.Woke{}) })
	return l
}

// run tells the scout whom it may ask, and what the plane hears by the way.
func (l *lookout) run() {
	tick := time.NewTicker(most)
	defer tick.Stop()
	for {
		term, leader, changed := l.d.Group.Leading()
		l.advance(scout.Members{Peers: l.d.Group.Acquaintances()})
		if leader != "" {
			l.advance(scout.Hint{Term: term, Leader: leader})
		}
		select {
		case <-l.d.ctx.Done():
			return
		case <-changed:
		case <-tick.C:
		}
	}
}

func (l *lookout) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.wake.Stop()
}

// advance gives the scout an event, and does what it says.
func (l *lookout) advance(e scout.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	before := l.scout.State()
	step := l.scout.Advance(l.d.since(), e)
	for _, peer := range step.Ask {
		l.d.work.Go(func() { l.ask(peer, step.Round) })
	}
	l.wake.Reset(max(step.Wake-l.d.since(), time.Millisecond))
	if l.scout.State() != before {
		close(l.changed)
		l.changed = make(chan struct{})
		l.d.register.led()
	}
}

// ask asks one peer. The number of those under way is the scout's to bound.
func (l *lookout) ask(peer string, round uint64) {
	ctx, cancel := context.WithTimeout(l.d.ctx, calling)
	defer cancel()
	term, leader, err := l.d.Group.Who(ctx, peer)
	if err != nil {
		l.advance(scout.Failed{From: peer, Round: round})
		return
	}
	l.advance(scout.Answer{From: peer, Round: round, Term: term, Leader: leader})
}

// state tells who leads, and gives a channel that is closed when that changes.
func (l *lookout) state() (scout.State, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.scout.State(), l.changed
}
