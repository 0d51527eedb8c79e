package client

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/attempt"
	"github.com/blackhole/blackhole/pkg/client/fence"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// ErrNotAcquired is the template of the error of Lock and TryLock for a lock that others hold.
var ErrNotAcquired = &fault.Error{Op: "client.Lock", Kind: fault.Conflict, Field: "name", Err: errors.New("others hold the lock")}

// LockOption is an option of Lock and TryLock.
type LockOption func(*lockOptions)

type lockOptions struct {
	mode     coord.Mode
	permits  uint32
	wait     time.Duration
	metadata []byte
	others   []string
}

// Shared shares the lock with other shared claims, like a reader.
func Shared() LockOption { return func(o *lockOptions) { o.mode = coord.Shared } }

// Permits claims one of n permits, with the lock as a semaphore. All claims on a lock must use
// the same n.
func Permits(n uint32) LockOption {
	return func(o *lockOptions) { o.mode, o.permits = coord.Permit, n }
}

// Wait bounds the wait of Lock. Zero does not wait, as TryLock. A negative duration, and no Wait at
// all, mean no bound besides the context.
func Wait(d time.Duration) LockOption { return func(o *lockOptions) { o.wait = d } }

// Metadata adds a description to the claim, for people and tools that inspect the lock.
func Metadata(b []byte) LockOption { return func(o *lockOptions) { o.metadata = b } }

// Also locks further names in the same moment: all or none. Whoever locks several names by one call never waits in
// a circle, in whatever order callers name them. All have one token. At most 64 names; each once.
func Also(names ...string) LockOption {
	return func(o *lockOptions) { o.others = append(o.others, names...) }
}

// Held is a held lock, with those of Also. It is safe for concurrent use.
type Held struct {
	session *Session
	name    string
	names   []string // sorted, with those of Also: all claims of a request have one token
	key     string
	token   fence.Token
	ctx     context.Context
	end     context.CancelCauseFunc
	over    atomic.Bool
}

// Lock waits until the session holds a lock. Claims are served in order. While the group is
// unreachable, Lock repeats the request, but makes only one claim.
//
// A session holds a lock at most once: a second Lock of the same name waits for the first Unlock,
// like a sync.Mutex. Several shared claims or permits need several sessions.
//
// A lock excludes others only while its holder knows the time. The resource behind the lock
// should check the token (see package fence), and work should end with Context.
//
// Errors: ErrNotAcquired after Wait; ErrLost for a session that ended first; Unavailable if the
// group was unreachable until ctx ended; the errors of a command Lock.
func (s *Session) Lock(ctx context.Context, name string, opts ...LockOption) (*Held, error) {
	return s.claim(ctx, name, true, opts)
}

// TryLock takes a free lock, and otherwise changes nothing. Errors: ErrNotAcquired; otherwise as
// Lock.
func (s *Session) TryLock(ctx context.Context, name string, opts ...LockOption) (*Held, error) {
	return s.claim(ctx, name, false, opts)
}

// slack is added to the requested wait, for the answer to arrive.
const slack = 2 * time.Second

func (s *Session) claim(ctx context.Context, name string, wait bool, opts []LockOption) (*Held, error) {
	const op = "client.Lock"
	o := lockOptions{wait: coord.NoLimit}
	for _, apply := range opts {
		apply(&o)
	}
	wait = wait && o.wait != 0
	w := &waiter{session: s, waits: wait, lock: &api.LockRequest{
		Name: name, LeaseId: int64(s.id), Mode: api.ShareMode(o.mode), Permits: o.permits, Metadata: o.metadata, Others: o.others,
	}}
	w.names = []string{name}
	if len(o.others) > 0 {
		w.names = slices.Compact(slices.Sorted(slices.Values(append(w.names, o.others...)))) // the group refuses one that comes twice
	}
	if wait && o.wait > 0 {
		w.until = s.client.clock() + o.wait
	}
	lives, cancel := s.whileLives(ctx)
	defer cancel()
	r, err := w.run(lives)
	if err == nil && s.Remaining() > 0 {
		return s.held(ctx, w, r), nil
	}
	if s.ctx.Err() != nil {
		err = context.Cause(s.ctx)
	}
	return nil, fault.Wrap(op, err)
}

// held returns the lock of a granted claim. Its context has the values of ctx and the lifetime of
// the session.
func (s *Session) held(ctx context.Context, w *waiter, r *api.LockResponse) *Held {
	h := &Held{session: s, name: w.lock.GetName(), names: w.names, key: r.GetKey(), token: fence.Token(r.GetFencingToken())}
	h.ctx, h.end = context.WithCancelCause(valued{s.ctx, ctx})
	return h
}

// valued is a context with the values of a second context.
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

// waiter is a pending claim.
type waiter struct {
	session *Session
	lock    *api.LockRequest
	names   []string // of lock, sorted
	waits   bool
	until   time.Duration // deadline on the client's clock; 0 means none
}

// run makes the claim. After success the claim holds and the gate of the lock is closed. After an
// error no claim remains, or its withdrawal is in progress.
func (w *waiter) run(ctx context.Context) (*api.LockResponse, error) {
	s := w.session
	if err := w.bounded(ctx, 0, func(ctx context.Context) error { return s.enterAll(ctx, w.names, w.waits) }); err != nil {
		return nil, err
	}
	if w.waits {
		w.lock.TimeoutMs = -1
	}
	a := s.client.identities.Attempt(coord.CommandOf("", w.lock))
	var r *api.LockResponse
	err := w.bounded(ctx, slack, func(ctx context.Context) (err error) {
		r, err = w.ask(ctx, a)
		return err
	})
	switch {
	case err == nil:
		a.End()
	case a.Unknown():
		s.client.sessions.spawn(func() { w.withdraw(a) })
	default:
		a.End()
		s.leaveAll(w.names)
	}
	return r, err
}

// enterAll waits for the gates of sorted names, or for none.
func (s *Session) enterAll(ctx context.Context, names []string, wait bool) error {
	for i, name := range names {
		if err := s.enter(ctx, name, wait); err != nil {
			s.leaveAll(names[:i])
			return err
		}
	}
	return nil
}

func (s *Session) leaveAll(names []string) {
	for _, name := range names {
		s.leave(name)
	}
}

// bounded runs f until the deadline of the claim plus more. A later end means that the lock was
// not acquired.
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

// ask repeats the claim until it holds. It makes a new claim if the group has withdrawn the claim
// because it had lost contact to this client.
func (w *waiter) ask(ctx context.Context, a *attempt.Attempt) (*api.LockResponse, error) {
	for {
		answer, err := w.session.client.run(ctx, a, w.send)
		r := answer.GetLock()
		switch {
		case err == nil && r.GetAcquired():
			return r, nil
		case err == nil && (!w.waits || w.until > 0 && w.left() == 0):
			return r, ErrNotAcquired
		case err != nil && !attempt.IsWithdrawn(err):
			return r, w.session.blame(err)
		}
		if err := pause(ctx, w.session.client.vary(firstPause)); err != nil {
			return r, err
		}
		a.Again()
	}
}

// send sends the claim with the time that is left, or the opening of a client id before it.
func (w *waiter) send(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	if lock := cmd.GetLock(); lock != nil && w.until > 0 {
		lock.TimeoutMs = coord.WaitOf(w.left())
	}
	return w.session.client.link.Coordination.Execute(ctx, cmd)
}

// withdraw resolves the state of an abandoned claim, and releases it.
func (w *waiter) withdraw(a *attempt.Attempt) {
	s := w.session
	defer s.leaveAll(w.names)
	defer a.End()
	w.until = max(1, s.client.clock()) // do not wait again
	var r *coordv1.Result
	err := s.insist(func() (err error) {
		r, err = s.client.run(s.ctx, a, w.send)
		return err
	})
	if err == nil && r.GetLock().GetAcquired() {
		_ = s.insist(func() error { return s.release(s.ctx, w.names, fence.Token(r.GetLock().GetFencingToken())) }) // an error means the end of the session
	}
}

// insist repeats f until its outcome is certain, or the session ends.
func (s *Session) insist(f func() error) error {
	for {
		err := f()
		if err == nil || !attempt.Uncertain(err) || pause(s.ctx, s.client.vary(lastPause)) != nil {
			return err
		}
	}
}

// blame ends a session after the group has reported its lease as unknown.
func (s *Session) blame(err error) error {
	if fault.KindOf(err) == fault.NotFound && fault.FieldOf(err) == "lease" {
		s.client.sessions.remove(s, lost(err))
	}
	return err
}

// release releases all of the claims of a request. An unknown claim was released before.
func (s *Session) release(ctx context.Context, names []string, token fence.Token) error {
	for _, name := range names {
		for left := uint32(1); left > 0; {
			r, err := s.client.do(ctx, &api.UnlockRequest{Name: name, LeaseId: int64(s.id), FencingToken: int64(token)})
			if err != nil && fault.KindOf(err) != fault.NotFound {
				return err
			}
			left = r.GetUnlock().GetCount()
		}
	}
	return nil
}

// Name returns the name of the lock.
func (h *Held) Name() string { return h.name }

// Key returns the key of the claim.
func (h *Held) Key() string { return h.key }

// Token returns the fencing token, which exceeds the tokens of all earlier holders.
func (h *Held) Token() fence.Token { return h.token }

// Lease returns the lease of the session.
func (h *Held) Lease() LeaseID { return h.session.id }

// Context ends with the lock or its session, before the group can give the lock to others. Its
// cause is the cause of that end. It has the values of the context of Lock, but not its end.
func (h *Held) Context() context.Context { return h.ctx }

// Remaining returns the certain lifetime of the lock without further contact to the group, or 0
// after its end.
func (h *Held) Remaining() time.Duration {
	left := h.session.Remaining()
	if h.ctx.Err() != nil {
		return 0
	}
	return left
}

// Check returns the cause of the end of the lock, or nil before the end. It reads the clock, and
// is correct even immediately after a sleep of the machine. Call it before actions that need the
// lock and cannot be fenced.
func (h *Held) Check() error {
	if h.Remaining() > 0 {
		return nil
	}
	return fault.Wrap("client.Check", context.Cause(h.ctx))
}

// Guard is a comparison for a transaction: this claim still holds the lock. Nobody has held it since.
func (h *Held) Guard() Compare { return Compare{coord.WhileHeld(h.name, coord.Token(h.token))} }

// Unlock ends Context and releases the lock, with those of Also. If the group is unreachable until ctx ends, Unlock
// returns an error, and the release happens later or with the end of the session. A second Unlock
// does nothing.
//
// Errors: ErrLost if the session had ended before: others may have held the lock since.
func (h *Held) Unlock(ctx context.Context) error {
	const op = "client.Unlock"
	if h.over.Swap(true) {
		return nil
	}
	s := h.session
	h.end(fault.New(op, fault.Canceled, "the lock was unlocked"))
	lives, cancel := s.whileLives(ctx)
	defer cancel()
	err := s.release(lives, h.names, h.token)
	switch {
	case s.ctx.Err() != nil:
		s.leaveAll(h.names)
		if err != nil {
			err = context.Cause(s.ctx)
		}
	case err != nil && attempt.Uncertain(err):
		s.client.sessions.spawn(func() {
			defer s.leaveAll(h.names)
			_ = s.insist(func() error { return s.release(s.ctx, h.names, h.token) })
		})
	default:
		s.leaveAll(h.names)
	}
	return fault.Wrap(op, err)
}

// pause waits for a duration or the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return fault.Wrap("client.pause", ctx.Err())
	}
}
