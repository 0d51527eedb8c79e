package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// DefaultTTL is the default time to live of a session's lease.
const DefaultTTL = 15 * time.Second

// ErrLost is the template of the error of a lost session: its lease was not renewed in time, or
// the group has ended it. Other clients may hold its locks from now on. The cause has details.
var ErrLost = &fault.Error{Op: "client.Session", Kind: fault.Unavailable, Field: "lease", Err: errors.New("the lease is lost")}

// Session is a lease with automatic renewal, and the owner of locks. All sessions of a client
// share one stream of renewals.
//
// A session ends before the group can give its locks to others: its lifetime starts at the
// sending of the last successful renewal, less a margin of 5 % or 50 ms for clocks with different
// speeds.
type Session struct {
	client  *Client
	id      LeaseID
	ttl     time.Duration
	renewal // guarded by the renewer; its context ends with the session

	close sync.Once

	mu    sync.Mutex // guards gates
	gates map[string]*gate
}

// SessionOption is an option of Locks.Session.
type SessionOption func(*sessionOptions)

type sessionOptions struct {
	ttl         time.Duration
	application string
}

// TTL sets the time to live of a session's lease: others wait this long after the death of a
// holder. The group limits it, by default to 5 s to 24 h.
func TTL(ttl time.Duration) SessionOption {
	return func(o *sessionOptions) { o.ttl = ttl }
}

// Application sets the name of the session's owner in lists of locks and leases, for people. The default is
// the name of the program's file.
func Application(name string) SessionOption {
	return func(o *sessionOptions) { o.application = name }
}

// Locks is the part of the coordination plane with an owner: sessions, which hold locks and lead elections, and
// leases. It is safe for concurrent use.
type Locks struct{ client *Client }

// Locks returns the locks, elections and leases of the group. It ends with the client.
func (c *Client) Locks() Locks { return Locks{c} }

// LeaseID names a lease. Ids are positive and random; 0 means no lease. The id of a lease of a caller without a
// name is its credential.
type LeaseID int64

// MarshalText implements encoding.TextMarshaler: the id in decimal, which has more digits than a JavaScript number, or
// "hidden" for an id that the caller may not learn.
func (id LeaseID) MarshalText() ([]byte, error) { return coord.LeaseID(id).MarshalText() }

// Session grants a lease and keeps it alive until Close. It retries until ctx ends while the
// group is unreachable. Errors: the errors of a grant; Unavailable if no group was reachable in
// time.
func (l Locks) Session(ctx context.Context, opts ...SessionOption) (*Session, error) {
	const op = "client.Session"
	c := l.client
	o := sessionOptions{ttl: DefaultTTL, application: c.application}
	for _, apply := range opts {
		apply(&o)
	}
	if o.ttl < time.Millisecond {
		return nil, fault.Wrap(op, fault.Invalidf("ttl", o.ttl, "must be at least 1ms"))
	}
	sent := c.clock()
	r, err := c.do(ctx, &api.LeaseGrantRequest{TtlMs: o.ttl.Milliseconds(), Application: o.application})
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	granted := r.GetLeaseGrant()
	s := &Session{
		client: c, id: LeaseID(granted.GetId()), ttl: time.Duration(granted.GetTtlMs()) * time.Millisecond, renewal: newRenewal(), gates: make(map[string]*gate),
	}
	s.start(sent, s.ttl/3)
	s.deadline = sent + s.ttl - margin(s.ttl)
	if err := c.sessions.add(s); err != nil {
		s.end(err)
		return nil, fault.Wrap(op, err)
	}
	if err := s.Err(); err != nil { // the answer came after the deadline
		return nil, fault.Wrap(op, err)
	}
	return s, nil
}

// Lease returns the id of the session's lease.
func (s *Session) Lease() LeaseID { return s.id }

// TTL returns the time to live from the group.
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
		r.drop(s, late(s.missedBy))
	}
	return max(left, 0)
}

// unknown implements renewable: the group has ended the lease.
func (s *Session) unknown() {
	s.client.sessions.drop(s, lost(fault.New("client.KeepAlive", fault.NotFound, "the group does not know the lease any more")))
}

// Done is closed at the end of the session.
func (s *Session) Done() <-chan struct{} { return s.ctx.Done() }

// Err returns the cause of the end: ErrLost, or Canceled after Close. It is nil before the end.
// Err reads the clock.
func (s *Session) Err() error {
	if s.Remaining() > 0 {
		return nil
	}
	return context.Cause(s.ctx)
}

// Close ends the session and revokes its lease, so that others get its locks immediately. Stop
// all work under its locks first. If the group is unreachable until ctx ends, Close returns an
// error and the lease expires.
func (s *Session) Close(ctx context.Context) error {
	var err error
	s.close.Do(func() {
		over := s.ctx.Err() != nil
		s.client.sessions.remove(s, fault.New("client.Session", fault.Canceled, "the session was closed"))
		if over {
			return
		}
		_, err = s.client.do(ctx, &api.LeaseRevokeRequest{Id: int64(s.id)})
		if fault.KindOf(err) == fault.NotFound {
			err = nil // already ended
		}
	})
	return fault.Wrap("client.Close", err)
}

// whileLives returns a context that ends with ctx or the session.
func (s *Session) whileLives(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// gate is a mutex for one lock of a session: the group treats repeated claims of one lease as the
// same claim.
type gate struct {
	open  chan struct{} // capacity 1: full while entered
	users int           // goroutines inside or waiting; guarded by the session
}

// enter waits for a gate. Without wait it fails at an occupied gate.
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

// leave opens a gate for the next goroutine.
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

// Grant creates a lease that only Renew keeps alive. Most programs want a Session instead. Errors: Invalid;
// PoolExhausted; Unavailable if no group was reachable until ctx ended.
func (l Locks) Grant(ctx context.Context, ttl time.Duration) (LeaseID, time.Duration, error) {
	r, err := l.client.do(ctx, &api.LeaseGrantRequest{TtlMs: ttl.Milliseconds(), Application: l.client.application})
	granted := r.GetLeaseGrant()
	return LeaseID(granted.GetId()), time.Duration(granted.GetTtlMs()) * time.Millisecond, fault.Wrap("client.Locks.Grant", err)
}

// Renew restarts the lifetime of a lease and returns its time to live. Errors: NotFound for an
// unknown lease, or the lease of another owner.
func (l Locks) Renew(ctx context.Context, id LeaseID) (time.Duration, error) {
	const op = "client.Locks.Renew"
	r, err := l.client.link.Coordination.Execute(ctx, coord.CommandOf("", &api.LeaseKeepAliveRequest{Id: int64(id)}))
	if err != nil {
		return 0, fault.Wrap(op, err)
	}
	left := r.GetKeepAlive().GetTtlMs()
	if left <= 0 {
		return 0, fault.New(op, fault.NotFound, "lease %d is unknown, or belongs to another owner", id)
	}
	return time.Duration(left) * time.Millisecond, nil
}

// Revoke ends a lease with its locks and keys. Errors: NotFound; Forbidden for the lease of
// another owner.
func (l Locks) Revoke(ctx context.Context, id LeaseID) error {
	_, err := l.client.do(ctx, &api.LeaseRevokeRequest{Id: int64(id)})
	return fault.Wrap("client.Locks.Revoke", err)
}

// renewSessions is the sender of sessions.
func (c *Client) renewSessions(ctx context.Context, sessions []*Session) ([]time.Duration, error) {
	req := &api.LeaseKeepAliveRequest{Id: int64(sessions[0].id)}
	for _, s := range sessions[1:] {
		req.Ids = append(req.Ids, int64(s.id))
	}
	r, err := c.link.Coordination.Execute(ctx, coord.CommandOf("", req))
	if err != nil {
		return nil, err
	}
	ttls := make([]time.Duration, 0, len(sessions))
	for _, ttl := range append([]int64{r.GetKeepAlive().GetTtlMs()}, r.GetKeepAlive().GetTtlsMs()...) {
		ttls = append(ttls, time.Duration(ttl)*time.Millisecond)
	}
	return ttls, nil
}
