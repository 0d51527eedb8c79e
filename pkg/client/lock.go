package client

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// ErrNotAcquired is the template of an error of Lock and TryLock: others hold the lock.
var ErrNotAcquired = &fault.Error{Op: "client.Lock", Kind: fault.Conflict, Field: "name", Err: errors.New("others hold the lock")}

// LockOption changes how a lock is claimed.
type LockOption func(*lockOptions)

type lockOptions struct {
	mode     coord.Mode
	permits  uint32
	wait     time.Duration
	metadata []byte
}

// Shared claims the lock beside other shared claims: as a reader.
func Shared() LockOption { return func(o *lockOptions) { o.mode = coord.Shared } }

// Permits claims one of n permits: the lock is a semaphore. All claims on a lock must agree
// about n.
func Permits(n uint32) LockOption {
	return func(o *lockOptions) { o.mode, o.permits = coord.Permit, n }
}

// Wait bounds how long Lock waits; 0 or less is as long as its context lasts.
func Wait(d time.Duration) LockOption { return func(o *lockOptions) { o.wait = d } }

// Metadata goes with the claim, for people and tools that look at the lock.
func Metadata(b []byte) LockOption { return func(o *lockOptions) { o.metadata = b } }

// Held is a lock that is held. It is safe for concurrent use.
type Held struct {
	session *Session
	name    string
	key     string
	token   coord.Token
	ctx     context.Context
	end     context.CancelCauseFunc
	over    atomic.Bool
}

// Lock waits until the session holds a lock. Claims are served in their order. While the group
// cannot be reached it tries again; however often, the claim is made once.
//
// A session is one participant: it holds a lock once at most, and another Lock of the same
// name waits until the first is unlocked, as that of a sync.Mutex does. To hold several
// shared claims or permits, have several sessions.
//
// A lock keeps others out only as long as its holder knows the time. Let the resource behind it
// check the token (see package fence), and end the work when Context does.
//
// Errors: ErrNotAcquired after Wait; ErrLost when the session ended before; Unavailable when the
// group could not be reached until ctx ended; those of a command Lock.
func (s *Session) Lock(ctx context.Context, name string, opts ...LockOption) (*Held, error) {
	return s.claim(ctx, name, true, opts)
}

// TryLock takes a lock if nobody is in the way, and otherwise changes nothing. Errors:
// ErrNotAcquired; otherwise as Lock.
func (s *Session) TryLock(ctx context.Context, name string, opts ...LockOption) (*Held, error) {
	return s.claim(ctx, name, false, opts)
}

// slack is how much longer than it asked for a client waits for the answer.
const slack = 2 * time.Second

func (s *Session) claim(ctx context.Context, name string, wait bool, opts []LockOption) (*Held, error) {
	const op = "client.Lock"
	var o lockOptions
	for _, apply := range opts {
		apply(&o)
	}
	w := &waiter{session: s, lock: coord.Lock{
		Name: name, Lease: s.id, Mode: o.mode, Permits: o.permits, Wait: wait, Metadata: o.metadata,
	}}
	if wait && o.wait > 0 {
		w.until = s.client.clock() + o.wait
	}
	lives, cancel := s.whileLives(ctx)
	defer cancel()
	r, err := w.run(lives)
	if err == nil && s.Remaining() > 0 {
		return s.held(ctx, name, r.Lock), nil
	}
	if s.ctx.Err() != nil {
		err = context.Cause(s.ctx)
	}
	return nil, fault.Wrap(op, err)
}

// held is made of a claim that holds. It has the values of ctx, and lasts as the session does.
func (s *Session) held(ctx context.Context, name string, r coord.LockResult) *Held {
	h := &Held{session: s, name: name, key: r.Key, token: r.Token}
	h.ctx, h.end = context.WithCancelCause(valued{s.ctx, ctx})
	return h
}

// valued is a context with the values of another one as well.
type valued struct {
	context.Context
	values context.Context
}

// Value implements context.Context.
func (v valued) Value(key any) any {
	if own := v.Context.Value(key); own != nil {
		return own
	}
	return v.values.Value(key)
}

// waiter is one claim until it holds or not.
type waiter struct {
	session *Session
	lock    coord.Lock
	until   time.Duration // on the client's clock; 0: no bound
}

// run makes the claim. When it returns without an error the claim holds, and the gate of the
// lock is closed behind it; otherwise there is no claim, or soon there will be none.
func (w *waiter) run(ctx context.Context) (coord.Result, error) {
	s, name := w.session, w.lock.Name
	if err := w.bounded(ctx, 0, func(ctx context.Context) error { return s.enter(ctx, name, w.lock.Wait) }); err != nil {
		return coord.Result{}, err
	}
	a := s.client.attempt(&w.lock)
	var r coord.Result
	err := w.bounded(ctx, slack, func(ctx context.Context) (err error) {
		r, err = w.ask(ctx, a)
		return err
	})
	switch {
	case err == nil:
		a.end()
	case a.unknown:
		s.client.sessions.spawn(func() { w.withdraw(a) })
	default:
		a.end()
		s.leave(name)
	}
	return r, err
}

// bounded runs f for as long as the claim may wait and some more. When that is over the
// lock was not acquired.
func (w *waiter) bounded(ctx context.Context, more time.Duration, f func(context.Context) error) error {
	if w.until == 0 {
		return f(ctx)
	}
	limited, cancel := context.WithTimeout(ctx, w.left()+more)
	defer cancel()
	err := f(limited)
	if err != nil && ctx.Err() == nil && limited.Err() != nil && fault.KindOf(err) != fault.Unavailable {
		return ErrNotAcquired
	}
	return err
}

func (w *waiter) left() time.Duration { return max(0, w.until-w.session.client.clock()) }

// ask sends the claim until it holds. A claim that the group gave back before its time, for it
// had lost sight of this client, is made anew.
func (w *waiter) ask(ctx context.Context, a *attempt) (coord.Result, error) {
	for {
		r, err := a.run(ctx, w.send)
		switch {
		case err == nil && r.Lock.Granted:
			return r, nil
		case err == nil && (!w.lock.Wait || w.until > 0 && w.left() == 0):
			return r, ErrNotAcquired
		case err != nil && !withdrawn(err):
			return r, w.session.blame(err)
		}
		if err := pause(ctx, w.session.client.vary(firstPause)); err != nil {
			return r, err
		}
		a.again()
	}
}

// withdrawn reports whether the group gave a claim back that was made for this client.
func withdrawn(err error) bool {
	return fault.KindOf(err) == fault.NotFound && fault.FieldOf(err) == "token"
}

func (w *waiter) send(ctx context.Context, cmd coord.Command) (coord.Result, error) {
	if !w.lock.Wait {
		return w.session.client.send(ctx, cmd)
	}
	left := time.Duration(0)
	if w.until > 0 {
		left = max(time.Millisecond, w.left())
	}
	r, _, err := w.session.client.coordination.Acquire(ctx, cmd, left)
	return r, err
}

// withdraw finds out what became of a claim that nobody waits for any more, and gives it back.
func (w *waiter) withdraw(a *attempt) {
	s := w.session
	defer s.leave(w.lock.Name)
	defer a.end()
	w.until = max(1, s.client.clock()) // wait no more
	var r coord.Result
	err := s.insist(func() (err error) {
		r, err = a.run(s.ctx, w.send)
		return err
	})
	if err == nil && r.Lock.Granted {
		_ = s.insist(func() error { return s.release(s.ctx, w.lock.Name, r.Lock.Token) }) // or the session has ended
	}
}

// insist calls f until it is known what came of it, or the session has ended.
func (s *Session) insist(f func() error) error {
	for {
		err := f()
		if err == nil || !uncertain(err) || pause(s.ctx, s.client.vary(lastPause)) != nil {
			return err
		}
	}
}

// blame ends a session whose lease the group does not know.
func (s *Session) blame(err error) error {
	if fault.KindOf(err) == fault.NotFound && fault.FieldOf(err) == "lease" {
		s.client.sessions.remove(s, lost(err))
	}
	return err
}

// release gives back all of a claim. One that is not there was given back before.
func (s *Session) release(ctx context.Context, name string, token coord.Token) error {
	for {
		r, err := s.client.do(ctx, &coord.Unlock{Name: name, Lease: s.id, Token: token})
		if fault.KindOf(err) == fault.NotFound {
			return nil
		}
		if err != nil || r.Lock.Count == 0 {
			return err
		}
	}
}

// Name gives the lock's name.
func (h *Held) Name() string { return h.name }

// Key gives the key of the claim.
func (h *Held) Key() string { return h.key }

// Token gives the fencing token: greater than that of every holder before.
func (h *Held) Token() coord.Token { return h.token }

// Lease gives the lease that the lock is held under.
func (h *Held) Lease() coord.LeaseID { return h.session.id }

// Context ends when the lock is unlocked or its session ends, with that as its cause, and
// before the group can give the lock to others. It has the values of the context that Lock was
// called with, and not its end.
func (h *Held) Context() context.Context { return h.ctx }

// Remaining gives for how long the lock is known to be held if the group is not heard of again;
// 0 when it is not.
func (h *Held) Remaining() time.Duration {
	left := h.session.Remaining()
	if h.ctx.Err() != nil {
		return 0
	}
	return left
}

// Check tells why the lock is not held any more; nil while it is. It reads the clock, and so is
// right even when the machine has just woken up. Call it before what must not happen without
// the lock and cannot be fenced.
func (h *Held) Check() error {
	if h.Remaining() > 0 {
		return nil
	}
	return fault.Wrap("client.Check", context.Cause(h.ctx))
}

// Guard is a condition for a write to the keyspace: while this very claim holds the lock.
func (h *Held) Guard() coord.Guard { return coord.IfHolds(h.name, h.token) }

// Unlock gives the lock back and ends Context before. When the group cannot be reached until
// ctx ends the error says so, and the lock is given back as soon as it can be, or with the
// session. Unlocking again does nothing.
//
// Errors: ErrLost when the session had ended before: others may have held the lock since.
func (h *Held) Unlock(ctx context.Context) error {
	const op = "client.Unlock"
	if h.over.Swap(true) {
		return nil
	}
	s := h.session
	h.end(fault.New(op, fault.Canceled, "the lock was unlocked"))
	lives, cancel := s.whileLives(ctx)
	defer cancel()
	err := s.release(lives, h.name, h.token)
	switch {
	case s.ctx.Err() != nil:
		s.leave(h.name)
		if err != nil {
			err = context.Cause(s.ctx)
		}
	case err != nil && uncertain(err):
		s.client.sessions.spawn(func() {
			defer s.leave(h.name)
			_ = s.insist(func() error { return s.release(s.ctx, h.name, h.token) })
		})
	default:
		s.leave(h.name)
	}
	return fault.Wrap(op, err)
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fault.Wrap("client.pause", ctx.Err())
	}
}
