package member

import (
	"context"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// broadcast wakes all who wait.
type broadcast struct {
	mu   sync.Mutex
	next chan struct{} // nil while nobody waits
}

func (b *broadcast) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = make(chan struct{})
	}
	return b.next
}

func (b *broadcast) notify() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next != nil {
		close(b.next)
		b.next = nil
	}
}

// revisions is the present revision, for those who wait for the next.
type revisionNotifier struct {
	broadcast
	revision coord.Revision // guarded by mu
}

// set reports whether the revision has moved: then those who wait are to be notified.
func (p *revisionNotifier) set(revision coord.Revision) (moved bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	moved = revision != p.revision
	p.revision = revision
	return moved
}

func (p *revisionNotifier) get() coord.Revision {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.revision
}

// Revision is the present one of the state here.
func (m *Member) Revision() coord.Revision { return m.revisions.get() }

// After waits until the revision is above one, and gives it.
//
// Errors: Timeout, Canceled; Unavailable when the member stops.
func (m *Member) After(ctx context.Context, revision coord.Revision) (coord.Revision, error) {
	const op = "member.After"
	for {
		moved := m.revisions.wait()
		if now := m.revisions.get(); now > revision {
			return now, nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return 0, fault.Wrap(op, ctx.Err())
		case <-m.done:
			return 0, fault.Wrap(op, m.ended())
		}
	}
}

// readIndexBatcher lets those who want a linearizable point ask for it together: who comes before
// the loop has asked shares one answer.
type readIndexBatcher struct {
	mu   sync.Mutex
	now  *readIndexBatch // nil while nobody waits
	wake chan struct{}   // room for one
}

type readIndexBatch struct {
	done   chan struct{} // closed when answered
	answer replica.Answer
}

func (g *readIndexBatch) take(a replica.Answer) {
	g.answer = a
	close(g.done)
}

func (g *readIndexBatcher) join() *readIndexBatch {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.now == nil {
		g.now = &readIndexBatch{done: make(chan struct{})}
		select {
		case g.wake <- struct{}{}:
		default:
		}
	}
	return g.now
}

// next begins another gathering, and gives the one that ends; nil when nobody came.
func (g *readIndexBatcher) next() *readIndexBatch {
	g.mu.Lock()
	defer g.mu.Unlock()
	together := g.now
	g.now = nil
	return together
}

// Linger is how long a command that is not urgent waits for others to share a turn with.
const Linger = 2 * time.Millisecond

// piggyback are requests that take part in the next turn that somebody else needs.
type piggybackQueue struct {
	mu   sync.Mutex
	asks []request
	wake chan struct{} // room for one: the first has waited long enough
}

// add takes a request if there is room.
func (l *piggybackQueue) add(a request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.asks) >= maxRequests {
		return false
	}
	if l.asks = append(l.asks, a); len(l.asks) == 1 {
		time.AfterFunc(Linger, l.late) // it wakes for nothing when they were taken before
	}
	return true
}

func (l *piggybackQueue) late() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *piggybackQueue) take() []request {
	l.mu.Lock()
	defer l.mu.Unlock()
	asks := l.asks
	l.asks = nil
	return asks
}

// claims are those who wait for a claim to hold its lock, or to be gone.
type claims struct {
	mu      sync.Mutex
	waiting map[string]*claim // by key
}

type claim struct {
	moved chan struct{} // closed when the claim was granted or its key deleted
	users int
}

func (c *claims) join(key string) *claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.waiting[key]
	if w == nil {
		w = &claim{moved: make(chan struct{})}
		if c.waiting == nil {
			c.waiting = make(map[string]*claim)
		}
		c.waiting[key] = w
	}
	w.users++
	return w
}

func (c *claims) leave(key string, w *claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.users--; w.users == 0 && c.waiting[key] == w {
		delete(c.waiting, key)
	}
}

// wake lets those go on who wait for a key. mu is held.
func (c *claims) wake(key string) {
	if w := c.waiting[key]; w != nil {
		close(w.moved)
		delete(c.waiting, key)
	}
}

// applied looks at what a command did.
func (c *claims) applied(e machine.ApplyEffects) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 {
		return
	}
	for _, g := range e.Grants {
		c.wake(coord.LockKey(g.Lock, g.Lease))
	}
	for _, event := range e.Events {
		if event.Deletes() {
			c.wake(event.Key)
		}
	}
}

// all wakes everybody: the state is another one.
func (c *claims) all() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.waiting {
		c.wake(key)
	}
}

// Granted waits until a claim holds its lock, true, or is gone, false. The claim must be in
// the state here: ask the member that proposed it, or after a Barrier.
//
// Errors: Timeout, Canceled; Unavailable when the member stops.
func (m *Member) Granted(ctx context.Context, lock string, lease coord.LeaseID, token coord.Token) (bool, coord.Header, error) {
	const op = "member.Granted"
	key := coord.LockKey(lock, lease)
	for {
		w := m.claims.join(key)
		var stand coord.LockResult
		var there bool
		header := m.View(func(machine *machine.Machine) { stand, there = machine.ClaimResult(lock, token) })
		if !there || stand.Granted {
			m.claims.leave(key, w)
			return there, header, nil
		}
		var err error
		select {
		case <-w.moved:
		case <-ctx.Done():
			err = fault.Wrap(op, ctx.Err())
		case <-m.done:
			err = fault.Wrap(op, m.ended())
		}
		m.claims.leave(key, w)
		if err != nil {
			return false, header, err
		}
	}
}
