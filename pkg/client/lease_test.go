package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// fixture is a group with the clock of a bubble, and its server.
type fixture struct {
	*wire
	solo  *coordtest.Solo
	began time.Time
	t     *testing.T
}

// bubble runs a test in virtual time.
func bubble(t *testing.T, f func(t *testing.T, p *fixture)) {
	synctest.Test(t, func(t *testing.T) {
		solo := coordtest.New(coordtest.Config{
			Now: time.Now, After: func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop },
		})
		p := &fixture{solo: solo, began: time.Now(), t: t}
		p.wire = serve(t, solo)
		f(t, p)
	})
}

func (p *fixture) now() time.Duration { return time.Since(p.began) }

// open returns a client with the clock of the bubble.
func (p *fixture) open(owner string) *Client { return p.client(owner, WithClock(p.now)) }

func (p *fixture) session(c *Client, ttl time.Duration) *Session {
	s, err := c.Locks().Session(p.t.Context(), TTL(ttl))
	require.NoError(p.t, err)
	return s
}

// cut fails every call before it reaches the group.
func (p *fixture) cut() {
	p.setFault(func(string, int) (error, error) { return unreachable(), nil })
}

func (p *fixture) mend() { p.setFault(nil) }

func (p *fixture) setFault(f func(method string, n int) (before, after error)) {
	p.mu.Lock()
	p.fault = f
	p.mu.Unlock()
}

func unreachable() error { return fault.New("test", fault.Unavailable, "no leader") }

func (p *fixture) leases() []coord.LeaseID {
	states, _, err := ops.Of(p.solo).Leases(context.Background(), ops.LeaseQuery{})
	require.NoError(p.t, err)
	ids := []coord.LeaseID{}
	for _, s := range states {
		ids = append(ids, s.ID)
	}
	return ids
}

func TestSessionLives(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		s := p.session(p.open("alice"), 10*time.Second)
		require.Equal(t, 10*time.Second, s.TTL())
		time.Sleep(10 * time.Minute)
		require.NoError(t, s.Err())
		require.Greater(t, s.Remaining(), 6*time.Second)
		require.Equal(t, []coord.LeaseID{coord.LeaseID(s.Lease())}, p.leases())
		require.NoError(t, s.Close(t.Context()))
		require.Empty(t, p.leases())
		require.ErrorIs(t, s.Err(), fault.Canceled)
		require.NotErrorIs(t, s.Err(), ErrLost)
		require.NoError(t, s.Close(t.Context()))
		before := p.count(keepAliveMethod)
		time.Sleep(time.Minute)
		require.Equal(t, before, p.count(keepAliveMethod))
	})
}

func TestSessionTTL(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		c := p.open("alice")
		require.Equal(t, 2*time.Second, p.session(c, time.Second).TTL(), "moved into the limits")
		_, err := c.Locks().Session(t.Context(), TTL(time.Microsecond))
		require.ErrorIs(t, err, fault.Invalid)
		require.Equal(t, "ttl", fault.FieldOf(err))
	})
}

// TestSessionEndsBeforeTheLease expects the client to end the session first, whenever the group
// stops answering.
func TestSessionEndsBeforeTheLease(t *testing.T) {
	for _, wait := range []time.Duration{0, 1, 3, 4, 5, 6, 9} {
		t.Run(fmt.Sprint(wait), func(t *testing.T) {
			bubble(t, func(t *testing.T, p *fixture) {
				s := p.session(p.open("alice"), 9*time.Second)
				time.Sleep(wait * time.Second)
				p.cut()
				<-s.Done()
				require.Equal(t, []coord.LeaseID{coord.LeaseID(s.Lease())}, p.leases(), "the group keeps it a little longer")
				require.ErrorIs(t, s.Err(), ErrLost)
				require.ErrorContains(t, s.Err(), "no leader")
				require.Zero(t, s.Remaining())
				time.Sleep(margin(9*time.Second) + 3*time.Second) // a request without an answer may have renewed the lease
				require.Empty(t, p.leases())
			})
		})
	}
}

// TestSessionCountsFromSending expects the lifetime to start at the sending of a slow request.
func TestSessionCountsFromSending(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		s := p.session(p.open("alice"), 12*time.Second)
		p.mu.Lock()
		p.hold = func(ctx context.Context, method string, _ int) {
			if method == keepAliveMethod {
				_ = pause(ctx, 3*time.Second) // after the renewal in the group
			}
		}
		p.mu.Unlock()
		time.Sleep(7*time.Second + 500*time.Millisecond) // sent at 4 s, answered at 7 s
		require.Equal(t, 12*time.Second-margin(12*time.Second)-3500*time.Millisecond, s.Remaining())
		time.Sleep(10 * time.Minute)
		require.NoError(t, s.Err())
	})
}

func TestSessionOfAnEndedLease(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		s := p.session(p.open("alice"), 9*time.Second)
		_, _, err := ops.Of(p.solo).Do(t.Context(), ops.Command{Owner: "alice", Op: &ops.LeaseRevoke{ID: coord.LeaseID(s.Lease())}})
		require.NoError(t, err)
		<-s.Done()
		require.Equal(t, 3*time.Second, p.now(), "at the next renewal")
		require.ErrorIs(t, s.Err(), ErrLost)
		require.NoError(t, s.Close(t.Context()))
	})
}

func TestSessionSurvives(t *testing.T) {
	for _, trouble := range []string{"a cut", "lost connections", "lost answers"} {
		t.Run(trouble, func(t *testing.T) {
			bubble(t, func(t *testing.T, p *fixture) {
				s := p.session(p.open("alice"), 9*time.Second)
				for range 20 {
					p.suffer(trouble)
					time.Sleep(4 * time.Second)
					require.NoError(t, s.Err())
				}
				require.NoError(t, s.Close(t.Context()))
			})
		})
	}
}

func (p *fixture) suffer(trouble string) {
	switch trouble {
	case "a cut":
		p.cut()
		time.Sleep(4 * time.Second)
		p.mend()
	case "lost connections":
		for range 5 {
			p.restart()
			time.Sleep(time.Second)
		}
	case "lost answers":
		p.mu.Lock()
		p.hold = func(ctx context.Context, method string, n int) {
			if method == keepAliveMethod && n%2 == 1 {
				<-ctx.Done()
			}
		}
		p.mu.Unlock()
		time.Sleep(time.Minute)
	}
}

// TestSessionAfterSleep expects the clock to end sessions after a sleep of the machine, which
// stops Go's timers.
func TestSessionAfterSleep(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		var mu sync.Mutex
		asleep := time.Duration(0)
		c := p.client("alice", WithClock(func() time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return p.now() + asleep
		}))
		s := p.session(c, 30*time.Second)
		held, err := s.Lock(t.Context(), "db")
		require.NoError(t, err)
		require.NoError(t, held.Check())
		mu.Lock()
		asleep = time.Hour
		mu.Unlock()
		require.ErrorIs(t, held.Check(), ErrLost, "whoever asks is told at once")
		other := p.session(c, 30*time.Second)
		mu.Lock()
		asleep += time.Hour
		mu.Unlock()
		time.Sleep(watchful)
		synctest.Wait()
		require.Error(t, context.Cause(held.Context()))
		select {
		case <-other.Done():
		default:
			require.Fail(t, "the session goes on")
		}
	})
}

func TestSessionsShareMessages(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		c := p.open("alice")
		var all []*Session
		for range 100 {
			all = append(all, p.session(c, 9*time.Second))
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		before := p.count(keepAliveMethod)
		time.Sleep(time.Minute)
		require.LessOrEqual(t, p.count(keepAliveMethod)-before, 4*60/3, "and not a hundred times as many")
		for _, s := range all {
			require.NoError(t, s.Err())
		}
	})
}

func TestSessionWithoutGroup(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		p.solo.Halt("no majority")
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := p.open("alice").Locks().Session(ctx)
		require.ErrorIs(t, err, fault.Unavailable)
		require.ErrorContains(t, err, "no majority")
		require.Equal(t, 5*time.Second, p.now())
	})
}

// TestSessionUntilTheDeadline expects the cause of the first failure after a deadline in the
// middle of an attempt.
func TestSessionUntilTheDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		p.setFault(func(_ string, n int) (error, error) {
			if n == 1 {
				return unreachable(), nil
			}
			return nil, nil
		})
		p.mu.Lock()
		p.hold = func(ctx context.Context, _ string, _ int) { <-ctx.Done() }
		p.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := p.open("alice").Locks().Session(ctx)
		require.ErrorIs(t, err, fault.Unavailable)
		require.ErrorContains(t, err, "no leader")
		require.Equal(t, 5*time.Second, p.now())
	})
}

// TestSessionGrantedOnce expects one lease from a grant with a lost answer and four repetitions.
func TestSessionGrantedOnce(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		p.setFault(func(method string, n int) (error, error) {
			if n < 5 {
				return nil, unreachable()
			}
			return nil, nil
		})
		s := p.session(p.open("alice"), 30*time.Second)
		require.Equal(t, []coord.LeaseID{coord.LeaseID(s.Lease())}, p.leases())
		require.Less(t, s.Remaining(), 30*time.Second-margin(30*time.Second), "it may have been granted at the first time")
	})
}

func TestClientCloseEndsSessions(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		c := p.open("alice")
		s := p.session(c, 9*time.Second)
		held, err := s.Lock(t.Context(), "db")
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.ErrorIs(t, s.Err(), ErrLost)
		require.ErrorIs(t, context.Cause(held.Context()), ErrLost)
		require.ErrorIs(t, held.Unlock(t.Context()), ErrLost)
		_, err = c.Locks().Session(t.Context())
		require.ErrorIs(t, err, fault.Canceled)
		time.Sleep(10 * time.Second)
		require.Empty(t, p.leases())
	})
}

func TestRenewalsKeepTheirOrder(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		c := p.open("alice")
		var ids []coord.LeaseID
		for range 20 {
			r, err := c.do(t.Context(), &api.LeaseGrantRequest{TtlMs: 3_600_000})
			require.NoError(t, err)
			ids = append(ids, coord.LeaseID(r.GetLeaseGrant().GetId()))
		}
		var calls sync.WaitGroup
		for i := range 60 {
			calls.Go(func() {
				one := []coord.LeaseID{ids[i%20], 1 << 40, ids[i/3]}
				renewals, header, err := ops.Of(c.link.Coordination).KeepAlive(t.Context(), "", one)
				assert.NoError(t, err)
				assert.NotZero(t, header.Term)
				assert.Equal(t, []ops.Renewal{{ID: one[0], TTL: 3_600_000}, {ID: 1 << 40}, {ID: one[2], TTL: 3_600_000}}, renewals)
			})
		}
		calls.Wait()
		_, _, err := ops.Of(c.link.Coordination).KeepAlive(t.Context(), "", make([]coord.LeaseID, coord.MaxKeepAlive+1))
		require.ErrorIs(t, err, fault.Invalid)
	})
}

// TestRenewalsLeft expects later callers to get their own answers after one caller has timed out.
func TestRenewalsLeft(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		c := p.open("alice")
		r, err := c.do(t.Context(), &api.LeaseGrantRequest{TtlMs: 3_600_000})
		require.NoError(t, err)
		p.mu.Lock()
		p.hold = func(ctx context.Context, method string, n int) {
			if method == keepAliveMethod && n == 1 {
				_ = pause(ctx, 10*time.Second)
			}
		}
		p.mu.Unlock()
		renew := func(patience time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, _, err := ops.Of(c.link.Coordination).KeepAlive(ctx, "", []coord.LeaseID{coord.LeaseID(r.GetLeaseGrant().GetId())})
			return err
		}
		require.ErrorIs(t, renew(time.Second), fault.Timeout)
		begun := p.now()
		require.NoError(t, renew(time.Minute))
		require.Equal(t, begun, p.now(), "it waits for no other answer")
	})
}

func TestMargin(t *testing.T) {
	require.Equal(t, 50*time.Millisecond, margin(500*time.Millisecond))
	require.Equal(t, 750*time.Millisecond, margin(15*time.Second))
}

func TestSystemClock(t *testing.T) {
	clock := systemClock()
	first := clock()
	require.GreaterOrEqual(t, clock(), first)
}

func TestErrorsAreTemplates(t *testing.T) {
	require.NotErrorIs(t, ErrLost, ErrNotAcquired)
	require.ErrorIs(t, fault.Wrap("x", lost(errors.New("y"))), ErrLost)
}
