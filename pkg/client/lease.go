package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// DefaultTTL is the time to live of a session's lease unless told otherwise.
const DefaultTTL = 15 * time.Second

// ErrLost is the template of how a session ends against its user's will: its lease was not
// renewed in time, or the group does not know it any more. Whatever was held under it may be
// held by others from now on. The cause says more.
var ErrLost = &fault.Error{Op: "client.Session", Kind: fault.Unavailable, Field: "lease", Err: errors.New("the lease is lost")}

// Clock tells the time since some moment. It must go on while the machine sleeps.
type Clock func() time.Duration

// Session is a lease that is kept alive, and the participant in whose name locks are held. All
// sessions of a client share one stream of keepalives.
//
// The end of a session comes before the group can give away what it holds: it is counted
// from when the last renewal was sent, less a margin of 5 % or 50 ms for clocks that
// run at different speeds.
type Session struct {
	client  *Client
	id      coord.LeaseID
	ttl     time.Duration
	renewal // guarded by the renewer; its context ends with the session

	close sync.Once

	mu    sync.Mutex // guards gates
	gates map[string]*gate
}

// SessionOption changes how a session is made.
type SessionOption func(*sessionOptions)

type sessionOptions struct{ ttl time.Duration }

// TTL sets the time to live of a session's lease: how long others wait for a holder that
// died. The group moves it into its limits, by default 5 s to 24 h.
func TTL(ttl time.Duration) SessionOption {
	return func(o *sessionOptions) { o.ttl = ttl }
}

// Session begins a session: it has the group grant a lease, trying again while the group cannot be
// reached, until ctx ends. Close it. Errors: those of a lease's grant; Unavailable when no
// group was reached in time.
func (c *Client) Session(ctx context.Context, opts ...SessionOption) (*Session, error) {
	const op = "client.Session"
	o := sessionOptions{ttl: DefaultTTL}
	for _, apply := range opts {
		apply(&o)
	}
	if o.ttl < time.Millisecond {
		return nil, fault.Wrap(op, fault.Invalidf("ttl", o.ttl, "must be at least 1ms"))
	}
	sent := c.clock()
	granted, err := c.do(ctx, &coord.LeaseGrant{TTL: o.ttl.Milliseconds()})
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	s := &Session{
		client: c, id: granted.Lease, ttl: time.Duration(granted.TTL) * time.Millisecond, renewal: newRenewal(), gates: make(map[string]*gate),
	}
	s.start(sent, s.ttl/3)
	s.deadline = sent + s.ttl - margin(s.ttl)
	if err := c.sessions.add(s); err != nil {
		s.end(err)
		return nil, fault.Wrap(op, err)
	}
	if err := s.Err(); err != nil { // the answer came too late
		return nil, fault.Wrap(op, err)
	}
	return s, nil
}

// Lease gives the id of the session's lease.
func (s *Session) Lease() coord.LeaseID { return s.id }

// TTL gives the time to live that the group granted.
func (s *Session) TTL() time.Duration { return s.ttl }

// Remaining returns the certain lifetime of the lease without another renewal, or 0 after the
// end of the session. A call after the deadline ends the session.
func (s *Session) Remaining() time.Duration {
	r := s.client.sessions
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.ctx.Err() != nil {
		return 0
	}
	left := s.deadline - s.client.clock()
	if left <= 0 {
		r.drop(s, late(s.missed))
	}
	return max(left, 0)
}

// unknown implements renewable: the group has ended the lease.
func (s *Session) unknown() {
	s.client.sessions.drop(s, lost(fault.New("client.KeepAlive", fault.NotFound, "the group does not know the lease any more")))
}

// Done is closed when the session has ended.
func (s *Session) Done() <-chan struct{} { return s.ctx.Done() }

// Err tells why the session has ended: ErrLost, or Canceled after Close; nil while it goes on.
// It reads the clock.
func (s *Session) Err() error {
	if s.Remaining() > 0 {
		return nil
	}
	return context.Cause(s.ctx)
}

// Close ends the session and has the group revoke the lease, so that others need not wait for
// what the session holds. Stop using that before. When the group cannot be reached until
// ctx ends the lease runs out by itself; the error says so.
func (s *Session) Close(ctx context.Context) error {
	var err error
	s.close.Do(func() {
		over := s.ctx.Err() != nil
		s.client.sessions.remove(s, fault.New("client.Session", fault.Canceled, "the session was closed"))
		if over {
			return
		}
		_, err = s.client.do(ctx, &coord.LeaseRevoke{ID: s.id})
		if fault.KindOf(err) == fault.NotFound {
			err = nil // it has ended
		}
	})
	return fault.Wrap("client.Close", err)
}

// whileLives gives a context that ends with ctx and with the session.
func (s *Session) whileLives(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// gate admits one at a time to a lock: the group would count further claims of one lease as
// the same claim.
type gate struct {
	open  chan struct{} // capacity 1: full while somebody is inside
	users int           // guarded by the session: inside or before it
}

// enter waits for a gate; without wait it fails when somebody is inside.
func (s *Session) enter(ctx context.Context, name string, wait bool) error {
	s.mu.Lock()
	g := s.gates[name]
	if g == nil {
		g = &gate{open: make(chan struct{}, 1)}
		s.gates[name] = g
	}
	g.users++
	s.mu.Unlock()
	select {
	case g.open <- struct{}{}:
		return nil
	default:
	}
	if wait {
		select {
		case g.open <- struct{}{}:
			return nil
		case <-ctx.Done():
		}
	}
	s.forget(name, g)
	if !wait {
		return ErrNotAcquired
	}
	return ctx.Err()
}

// leave opens a gate to the next.
func (s *Session) leave(name string) {
	s.mu.Lock()
	g := s.gates[name]
	s.mu.Unlock()
	<-g.open
	s.forget(name, g)
}

func (s *Session) forget(name string, g *gate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.users--; g.users == 0 {
		delete(s.gates, name)
	}
}

// lost is the error of a session whose lease may have ended.
func lost(reason error) error {
	return &fault.Error{Op: ErrLost.Op, Kind: ErrLost.Kind, Field: ErrLost.Field, Err: reason}
}

// late is the error of a lease that was not renewed in time. missed is the last failure, or nil.
func late(missed error) error {
	if missed == nil {
		return lost(errors.New("not renewed in time"))
	}
	return lost(fault.As("client.KeepAlive", fault.KindOf(missed), missed))
}
