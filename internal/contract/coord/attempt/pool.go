package attempt

import (
	"context"
	"slices"
	"sync"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Shares of a Pool. Commands that wait for locks have one of their own and do not wait for a place in it, because the
// holders of these locks may themselves wait for one.
const (
	maxShort = 1024 // other commands at once; more wait, and their owners take turns
	maxOwn   = 64   // commands of the owner of the pool, a peer, out of the reach of its callers; more wait
	maxLong  = 4096 // commands that wait for locks; more are refused

	maxClosed = 64 // identities that Close closes; the group forgets the rest after a long idle time
)

// Pool lends identities to commands. An identity carries one command at a time. Its sequence number outlives a command without
// a result. It is safe for concurrent use.
type Pool struct {
	owner            string
	short, long, own *lane

	mu   sync.Mutex
	free []identity // a stack, so that few identities stay in use
}

// lane has a place for each lent identity. Owners that wait for one take turns, so that one with many commands delays mainly itself.
type lane struct {
	total int
	fits  Fits // decides about owners that do not wait; nil: one owner may have all

	mu      sync.Mutex
	used    int
	of      map[string]int             // places of each owner that has any
	waiting map[string][]chan struct{} // of each owner that waits; each closes when its turn comes
	order   []string                   // owners that wait, the next one first
}

func newLane(total int, fits Fits) *lane {
	return &lane{total: total, fits: fits, of: map[string]int{}, waiting: map[string][]chan struct{}{}}
}

// try takes a place, if there is one for the owner.
func (l *lane) try(owner string) (own int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own = l.of[owner]
	if l.used >= l.total || l.fits != nil && !l.fits(uint64(own), 1, uint64(l.total-l.used)) {
		return own, false
	}
	l.used++
	l.of[owner]++
	return own, true
}

// enter takes a place when it is the owner's turn, or fails with the context.
func (l *lane) enter(ctx context.Context, owner string) error {
	l.mu.Lock()
	if l.used < l.total {
		l.used++
		l.of[owner]++
		l.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	if len(l.waiting[owner]) == 0 {
		l.order = append(l.order, owner)
	}
	l.waiting[owner] = append(l.waiting[owner], turn)
	l.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	at := slices.Index(l.waiting[owner], turn)
	if at >= 0 {
		l.wait(owner, slices.Delete(l.waiting[owner], at, at+1))
	}
	l.mu.Unlock()
	if at < 0 { // the turn came meanwhile
		l.leave(owner)
	}
	return ctx.Err()
}

// wait sets who waits of an owner. l.mu must be held.
func (l *lane) wait(owner string, turns []chan struct{}) {
	if l.waiting[owner] = turns; len(turns) == 0 {
		delete(l.waiting, owner)
		l.order = slices.DeleteFunc(l.order, func(other string) bool { return other == owner })
	}
}

// leave gives a place to the next owner that waits, or back.
func (l *lane) leave(owner string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of[owner]--; l.of[owner] == 0 {
		delete(l.of, owner)
	}
	if len(l.order) == 0 {
		l.used--
		return
	}
	next := l.order[0]
	l.order = append(l.order[1:], next)
	turns := l.waiting[next]
	l.of[next]++
	close(turns[0])
	l.wait(next, turns[1:])
}

// identity is a client id of the group.
type identity struct {
	client   uint64
	sequence uint64 // of its last command
}

// Fits reports whether one that has own places may have more, given the free ones before.
type Fits func(own, more, free uint64) bool

// NewPool returns a pool of identities of an owner; empty for an application, which its peer names. fits divides the waits for locks
// among the owners of commands; nil: one may have all.
func NewPool(owner string, fits Fits) *Pool { return newPool(owner, maxShort, maxLong, fits) }

func newPool(owner string, short, long int, fits Fits) *Pool {
	return &Pool{owner: owner, short: newLane(short, nil), long: newLane(long, fits), own: newLane(maxOwn, nil)}
}

// laneOf returns the lane of a command.
func (p *Pool) laneOf(cmd *coordv1.Command) *lane {
	switch {
	case cmd.GetLock().GetTimeoutMs() != 0:
		return p.long
	case p.owner != "" && cmd.GetOwner() == p.owner:
		return p.own
	}
	return p.short
}

// take lends an identity, and opens one in the group if none is free. Errors: PoolExhausted for too many waits for locks.
func (p *Pool) take(ctx context.Context, l *lane, owner string, send Send) (identity, error) {
	const op = "attempt.take"
	if l != p.long {
		if err := l.enter(ctx, owner); err != nil {
			return identity{}, fault.Wrap(op, err)
		}
	} else if own, ok := l.try(owner); !ok {
		return identity{}, fault.Exhausted(op, "waits", l.fits != nil && own > 0, "%d locks are waited for already, %d by this caller: give up one or retry later", l.total, own)
	}
	if free, ok := p.pop(); ok {
		return free, nil
	}
	r, err := send(ctx, coord.CommandOf(p.owner, &apiv1.OpenClientRequest{}))
	if err != nil {
		l.leave(owner)
		return identity{}, err
	}
	return identity{client: r.GetOpenClient().GetClient()}, nil
}

// give takes an identity back.
func (p *Pool) give(used identity, l *lane, owner string) {
	p.mu.Lock()
	p.free = append(p.free, used)
	p.mu.Unlock()
	l.leave(owner)
}

// forget drops a lent identity that the group has forgotten, and those that were idle for longer.
func (p *Pool) forget(l *lane, owner string) {
	p.mu.Lock()
	p.free = nil
	p.mu.Unlock()
	l.leave(owner)
}

// pop removes a free identity; false if there is none.
func (p *Pool) pop() (one identity, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.free)
	if n == 0 {
		return one, false
	}
	one, p.free = p.free[n-1], p.free[:n-1]
	return one, true
}

// Close closes identities in the group until ctx ends.
func (p *Pool) Close(ctx context.Context, send Send) {
	var all sync.WaitGroup
	for range maxClosed {
		one, ok := p.pop()
		if !ok {
			break
		}
		all.Go(func() {
			_, _ = send(ctx, coord.CommandOf(p.owner, &apiv1.CloseClientRequest{Client: one.client}))
		})
	}
	all.Wait()
}
