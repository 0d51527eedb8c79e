package member

import (
	"context"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
)

// readIndexBatcher shares one ReadIndex among all requests that arrive before the loop starts it.
type readIndexBatcher struct {
	mu   sync.Mutex
	now  *readIndexBatch // nil without waiters
	wake chan struct{}   // room for one
}

type readIndexBatch struct {
	done   chan struct{} // closed after the answer
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
		pause.Wake(g.wake)
	}
	return g.now
}

// next starts another batch and returns the finished one; nil if it is empty.
func (g *readIndexBatcher) next() *readIndexBatch {
	g.mu.Lock()
	defer g.mu.Unlock()
	together := g.now
	g.now = nil
	return together
}

// Linger is the time for which a command that is not urgent waits for another command's turn.
const Linger = 2 * time.Millisecond

// piggybackQueue holds requests that join the next turn of another request.
type piggybackQueue struct {
	mu   sync.Mutex
	asks []request
	wake chan struct{} // room for one: the first request has waited long enough
}

// add queues a request, within a bound.
func (l *piggybackQueue) add(a request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.asks) >= maxRequests {
		return false
	}
	if l.asks = append(l.asks, a); len(l.asks) == 1 {
		time.AfterFunc(Linger, l.late) // a needless wake is harmless
	}
	return true
}

func (l *piggybackQueue) late() {
	pause.Wake(l.wake)
}

func (l *piggybackQueue) take() []request {
	l.mu.Lock()
	defer l.mu.Unlock()
	asks := l.asks
	l.asks = nil
	return asks
}

// claims holds the waiters for claims on locks.
type claims struct {
	mu      sync.Mutex
	waiting map[string]*claim // by key
}

type claim struct {
	moved chan struct{} // closed when the claim is granted or its key deleted
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

// wake wakes the waiters of a key. Call it with mu held.
func (c *claims) wake(key string) {
	if w := c.waiting[key]; w != nil {
		close(w.moved)
		delete(c.waiting, key)
	}
}

// applied wakes the waiters affected by a command.
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

// all wakes all waiters: a snapshot replaced the state.
func (c *claims) all() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.waiting {
		c.wake(key)
	}
}

// Granted waits until a claim holds its lock (true) or is gone (false). The state here must contain the claim:
// ask the member that proposed it, or call Barrier first.
//
// Errors: Timeout, Canceled; Unavailable at the member's end.
func (m *Member) Granted(ctx context.Context, lock string, lease coord.LeaseID, token coord.Token) (bool, coord.Header, error) {
	const op = "member.Granted"
	key := coord.LockKey(lock, lease)
	for {
		w := m.claims.join(key)
		var holds, there bool
		header := m.View(func(machine *machine.Machine) { holds, there = machine.Holds(lock, token) })
		if !there || holds {
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
