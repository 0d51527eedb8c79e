package client

import (
	"context"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// How long to wait before a command is sent again.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
)

// slots lend identities to commands, so that each can be sent again and is applied once. An
// identity carries one command at a time. Two bounds keep two kinds apart: those that end soon
// wait for a slot, those that may wait for others' locks are refused one above the bound, for
// the locks that they wait for may be held by who waits for a slot.
type slots struct {
	limit int
	open  func(ctx context.Context) (coord.ClientID, error) // makes an identity in the group

	mu   sync.Mutex
	lent int
	free []slot        // the last one given back is lent first, so that few stay in use
	gave chan struct{} // capacity 1: a slot was given back while somebody waited
}

// slot is one identity.
type slot struct {
	client   coord.ClientID
	sequence uint64 // of its last command
}

// take lends a slot. With wait it waits for one.
func (s *slots) take(ctx context.Context, wait bool) (slot, error) {
	const op = "client.slots"
	for {
		s.mu.Lock()
		if s.lent < s.limit {
			break
		}
		s.mu.Unlock()
		if !wait {
			return slot{}, fault.New(op, fault.LimitReached, "%d locks are waited for already", s.limit)
		}
		select {
		case <-s.gave:
		case <-ctx.Done():
			return slot{}, fault.Wrap(op, ctx.Err())
		}
	}
	s.lent++
	if n := len(s.free); n > 0 {
		taken := s.free[n-1]
		s.free = s.free[:n-1]
		s.mu.Unlock()
		s.notify() // another may be free
		return taken, nil
	}
	s.mu.Unlock()
	s.notify()
	id, err := s.open(ctx)
	if err != nil {
		s.give(slot{})
		return slot{}, err
	}
	return slot{client: id}, nil
}

// give takes a slot back; the zero slot, when there is nothing to lend again.
func (s *slots) give(used slot) {
	s.mu.Lock()
	s.lent--
	if used.client != 0 {
		s.free = append(s.free, used)
	}
	s.mu.Unlock()
	s.notify()
}

func (s *slots) notify() {
	select {
	case s.gave <- struct{}{}:
	default:
	}
}

// attempt is a command with an identity of its own until its result is known.
type attempt struct {
	c    *Client
	pool *slots
	wait bool
	cmd  coord.Command
	// unknown says that the command was sent and may be applied, now or later.
	unknown bool
}

// try sends a command once.
type try func(ctx context.Context, cmd coord.Command) (coord.Result, error)

// attempt prepares an operation. End it.
func (c *Client) attempt(op coord.Op) *attempt {
	o, lock := op.(*coord.Lock)
	a := &attempt{c: c, pool: &c.calls, wait: true, cmd: coord.Command{Op: op}}
	if lock && o.Wait {
		a.pool, a.wait = &c.waits, false
	}
	return a
}

// run sends the command until its result is known, for as long as the group cannot be
// reached and the context lasts. The error is then that of the last try; of an operation that ends soon, of
// the last one that was answered before the deadline. It may be called again after it failed.
func (a *attempt) run(ctx context.Context, send try) (coord.Result, error) {
	var told error
	for delay := firstPause; ; delay = min(2*delay, lastPause) {
		r, err := a.once(ctx, send)
		if err == nil || !a.c.passing(ctx, err) {
			if a.wait && told != nil && fault.KindOf(err) == fault.Timeout { // which tells nothing
				err = told
			}
			return r, err
		}
		told = err
		if pause(ctx, a.c.vary(delay)) != nil {
			return coord.Result{}, err
		}
	}
}

// once sends the command once, with an identity. One that the group has forgotten is replaced:
// what it sent before is refused from then on or was applied, and the command is one that
// may be applied twice if it must.
func (a *attempt) once(ctx context.Context, send try) (coord.Result, error) {
	for forgotten := 0; ; forgotten++ {
		if a.cmd.Client == 0 {
			s, err := a.pool.take(ctx, a.wait)
			if err != nil {
				return coord.Result{}, err
			}
			a.cmd.Client, a.cmd.Sequence = s.client, s.sequence+1
		}
		before := a.unknown
		a.unknown = true
		r, err := send(ctx, a.cmd)
		if fault.KindOf(err) == fault.NotFound && fault.FieldOf(err) == "client" && forgotten < 3 {
			a.forget()
			continue
		}
		// A peer's own bound says nothing of what went through before.
		a.unknown = err != nil && (uncertain(err) || before && fault.KindOf(err) == fault.LimitReached)
		return r, err
	}
}

// again makes the next run a new command rather than a repetition.
func (a *attempt) again() { a.cmd.Sequence++ }

func (a *attempt) forget() {
	a.pool.give(slot{})
	a.cmd.Client, a.cmd.Sequence = 0, 0
}

// end gives the identity back. A command whose result is not known is then either applied
// before the next one of the identity or never.
func (a *attempt) end() {
	if a.cmd.Client != 0 {
		a.pool.give(slot{client: a.cmd.Client, sequence: a.cmd.Sequence})
		a.cmd.Client = 0
	}
}

// uncertain reports whether a command that ended with err may have been applied.
func uncertain(err error) bool {
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.Timeout, fault.Canceled, fault.Internal:
		return true
	}
	return false
}

// passing reports whether err may be gone at the next try, and there is time for one.
func (c *Client) passing(ctx context.Context, err error) bool {
	if ctx.Err() != nil || c.sessions.ctx.Err() != nil { // the second: the client is closed
		return false
	}
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.Timeout, fault.Canceled: // the last two were the peer's
		return true
	}
	return false
}

// do executes an operation that ends soon, once.
func (c *Client) do(ctx context.Context, op coord.Op) (coord.Result, error) {
	a := c.attempt(op)
	defer a.end()
	return a.run(ctx, c.send)
}

func (c *Client) send(ctx context.Context, cmd coord.Command) (coord.Result, error) {
	r, _, err := c.coordination.Do(ctx, cmd)
	return r, err
}

// openSlot makes an identity in the group.
func (c *Client) openSlot(ctx context.Context) (coord.ClientID, error) {
	r, err := c.send(ctx, coord.Command{Op: &coord.ClientOpen{}})
	return r.Client, err
}

// closeSlots forgets identities in the group, as far as that is quick: those left are
// forgotten when they were idle for long.
func (c *Client) closeSlots(ctx context.Context) {
	var all sync.WaitGroup
	for _, s := range []*slots{&c.calls, &c.waits} {
		s.mu.Lock()
		free := s.free[:min(len(s.free), 64)]
		s.free = nil
		s.mu.Unlock()
		for _, one := range free {
			all.Go(func() {
				_, _ = c.send(ctx, coord.Command{Client: one.client, Sequence: one.sequence + 1, Op: &coord.ClientClose{}})
			})
		}
	}
	all.Wait()
}
