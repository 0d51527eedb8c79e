package attempt

import (
	"context"
	"sync"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Shares of a Pool. Commands that wait for locks have one of their own and do not wait for a place in it, because the
// holders of these locks may themselves wait for one.
const (
	maxShort = 1024 // other commands at once; more wait
	maxOwn   = 64   // commands of the owner of the pool, a peer, out of the reach of its callers; more wait
	maxLong  = 4096 // commands that wait for locks; more are refused

	maxClosed = 64 // identities that Close closes; the group forgets the rest after a long idle time
)

// Pool lends identities to commands. An identity carries one command at a time. Its sequence number outlives a command without
// a result. It is safe for concurrent use.
type Pool struct {
	owner            string
	short, long, own lane

	mu   sync.Mutex
	free []identity // a stack, so that few identities stay in use
}

// lane has one entry for each lent identity.
type lane chan struct{}

// identity is a client id of the group.
type identity struct {
	client   uint64
	sequence uint64 // of its last command
}

// NewPool returns a pool of identities of an owner; empty for an application, which its peer names.
func NewPool(owner string) *Pool { return newPool(owner, maxShort, maxLong) }

func newPool(owner string, short, long int) *Pool {
	return &Pool{owner: owner, short: make(lane, short), long: make(lane, long), own: make(lane, maxOwn)}
}

// laneOf returns the lane of a command.
func (p *Pool) laneOf(cmd *coordv1.Command) lane {
	switch {
	case cmd.GetLock().GetTimeoutMs() != 0:
		return p.long
	case p.owner != "" && cmd.GetOwner() == p.owner:
		return p.own
	}
	return p.short
}

// take lends an identity, and opens one in the group if none is free. Errors: PoolExhausted for too many waits for locks.
func (p *Pool) take(ctx context.Context, l lane, send Send) (identity, error) {
	const op = "attempt.take"
	select {
	case l <- struct{}{}:
	default:
		if l == p.long {
			return identity{}, fault.Exhausted(op, "waits", false, "%d locks are waited for already: give up one or retry later", cap(p.long))
		}
		select {
		case l <- struct{}{}:
		case <-ctx.Done():
			return identity{}, fault.Wrap(op, ctx.Err())
		}
	}
	if free, ok := p.pop(); ok {
		return free, nil
	}
	r, err := send(ctx, coord.CommandOf(p.owner, &apiv1.OpenClientRequest{}))
	if err != nil {
		<-l
		return identity{}, err
	}
	return identity{client: r.GetOpenClient().GetClient()}, nil
}

// give takes an identity back.
func (p *Pool) give(used identity, l lane) {
	p.mu.Lock()
	p.free = append(p.free, used)
	p.mu.Unlock()
	<-l
}

// forget drops a lent identity that the group has forgotten, and those that were idle for longer.
func (p *Pool) forget(l lane) {
	p.mu.Lock()
	p.free = nil
	p.mu.Unlock()
	<-l
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
