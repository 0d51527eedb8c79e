package client

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/client/fence"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Full names of the methods that tests fail.
const (
	lockMethod   = "/blackhole.api.v1.LockService/Lock"
	tryMethod    = "/blackhole.api.v1.LockService/TryLock"
	unlockMethod = "/blackhole.api.v1.LockService/Unlock"
	openMethod   = "/blackhole.api.v1.CoordinationService/OpenClient"
)

// lock returns the state of a lock in the group.
func (p *fixture) lock(name string) ops.LockState {
	states, _, err := ops.Of(p.solo).Locks(context.Background(), ops.LockQuery{Name: name})
	if fault.KindOf(err) == fault.NotFound {
		return ops.LockState{}
	}
	require.NoError(p.t, err)
	return states[0]
}

// holds takes a free lock.
func (p *fixture) holds(s *Session, name string) *Held {
	h, err := s.TryLock(p.t.Context(), name)
	require.NoError(p.t, err)
	return h
}

// inside counts the locks that a session holds or claims.
func (s *Session) inside() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.gates)
}

func TestLock(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		alice, bob := p.session(p.open("alice"), 10*time.Second), p.session(p.open("bob"), 10*time.Second)
		type key struct{}
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
		held, err := alice.Lock(ctx, "db", Metadata([]byte("migration")))
		require.NoError(t, err)
		cancel()
		require.NoError(t, held.Context().Err(), "waiting has an end of its own")
		require.Equal(t, "value", held.Context().Value(key{}))
		require.Equal(t, []any{"db", coord.LockKey("db", coord.LeaseID(alice.Lease())), alice.Lease()}, []any{held.Name(), held.Key(), held.Lease()})
		state := p.lock("db").Holding[0]
		require.Equal(t, []any{coord.Token(held.Token()), uint32(1), "migration"}, []any{state.Token, state.Count, string(state.Metadata)})
		require.NoError(t, held.Check())

		_, err = bob.TryLock(t.Context(), "db")
		require.ErrorIs(t, err, ErrNotAcquired)
		began := p.now()
		_, err = bob.Lock(t.Context(), "db", Wait(0))
		require.ErrorIs(t, err, ErrNotAcquired)
		require.Equal(t, began, p.now(), "no wait")
		_, err = bob.Lock(t.Context(), "db", Wait(7*time.Second))
		require.ErrorIs(t, err, ErrNotAcquired)
		require.Equal(t, began+7*time.Second, p.now())
		require.Empty(t, p.lock("db").Waiting)

		var next *Held
		var waits sync.WaitGroup
		waits.Go(func() {
			var err error
			next, err = bob.Lock(t.Context(), "db")
			assert.NoError(t, err)
		})
		time.Sleep(time.Hour)
		require.NoError(t, held.Unlock(t.Context()))
		require.ErrorIs(t, context.Cause(held.Context()), fault.Canceled)
		require.ErrorIs(t, held.Check(), fault.Canceled)
		require.Zero(t, held.Remaining())
		require.NoError(t, held.Unlock(t.Context()), "again does nothing")
		waits.Wait()
		require.Greater(t, next.Token(), held.Token())
		require.NoError(t, bob.Close(t.Context()))
		require.ErrorIs(t, context.Cause(next.Context()), fault.Canceled)
		require.Empty(t, p.lock("db"))
	})
}

func TestLockModes(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		c := p.open("alice")
		one, two, three := p.session(c, 10*time.Second), p.session(c, 10*time.Second), p.session(c, 10*time.Second)
		for _, s := range []*Session{one, two} {
			_, err := s.Lock(t.Context(), "shared", Shared())
			require.NoError(t, err)
			_, err = s.Lock(t.Context(), "pool", Permits(2))
			require.NoError(t, err)
		}
		_, err := three.TryLock(t.Context(), "shared")
		require.ErrorIs(t, err, ErrNotAcquired)
		_, err = three.TryLock(t.Context(), "pool", Permits(2))
		require.ErrorIs(t, err, ErrNotAcquired)
		_, err = three.TryLock(t.Context(), "pool", Permits(3))
		require.ErrorIs(t, err, fault.Conflict)
		require.NotErrorIs(t, err, ErrNotAcquired)
		require.Equal(t, "permits", fault.FieldOf(err))
		_, err = three.Lock(t.Context(), "\xff")
		require.ErrorIs(t, err, fault.Invalid)
	})
}

// TestLockEndsBeforeItIsGivenBack expects the context to end before the group sees the release.
func TestLockEndsBeforeItIsGivenBack(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		held := p.holds(p.session(p.open("alice"), 10*time.Second), "db")
		p.setFault(func(method string, _ int) (before, after error) {
			if method == unlockMethod && held.Context().Err() == nil {
				before = fault.New("test", fault.Forbidden, "the work goes on")
			}
			return before, nil
		})
		require.NoError(t, held.Unlock(t.Context()))
	})
}

// TestLockOfOneSession expects goroutines with a common session to exclude each other, like a
// sync.Mutex.
func TestLockOfOneSession(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		s := p.session(p.open("alice"), 10*time.Second)
		inside, most := 0, 0
		var tokens []fence.Token
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				held, err := s.Lock(t.Context(), "db")
				if !assert.NoError(t, err) {
					return
				}
				inside++
				most = max(most, inside)
				tokens = append(tokens, held.Token())
				time.Sleep(time.Second)
				inside--
				assert.NoError(t, held.Unlock(t.Context()))
			})
		}
		synctest.Wait()
		_, err := s.TryLock(t.Context(), "db")
		require.ErrorIs(t, err, ErrNotAcquired)
		_, err = s.Lock(t.Context(), "db", Wait(500*time.Millisecond))
		require.ErrorIs(t, err, ErrNotAcquired)
		all.Wait()
		require.Equal(t, 1, most)
		require.IsIncreasing(t, tokens)
		require.Zero(t, s.inside())
	})
}

// TestLockEndsBeforeTheNext expects the holder to notice its loss before the next holder gets the
// lock.
func TestLockEndsBeforeTheNext(t *testing.T) {
	for cut := range 8 {
		t.Run(fmt.Sprint(cut), func(t *testing.T) {
			bubble(t, func(t *testing.T, p *fixture) {
				held := p.holds(p.session(p.open("alice"), 9*time.Second), "db")
				bob := ops.Command{Owner: "bob", Op: &ops.LeaseGrant{TTL: 3_600_000}}
				r, _, err := ops.Of(p.solo).Do(t.Context(), bob)
				require.NoError(t, err)
				var all sync.WaitGroup
				var ended, granted time.Duration
				all.Go(func() {
					<-held.Context().Done()
					ended = p.now()
				})
				all.Go(func() {
					cmd := ops.Command{Owner: "bob", Op: &ops.Lock{Name: "db", Lease: r.Lease, Wait: true}}
					_, _, err := ops.Of(p.solo).Acquire(t.Context(), cmd, coord.NoLimit)
					assert.NoError(t, err)
					granted = p.now()
				})
				time.Sleep(time.Duration(cut) * 700 * time.Millisecond)
				p.setFault(func(string, int) (error, error) { return nil, unreachable() }) // renewals succeed without an answer
				all.Wait()
				require.GreaterOrEqual(t, granted-ended, margin(9*time.Second))
				require.ErrorIs(t, context.Cause(held.Context()), ErrLost)
				require.ErrorIs(t, held.Check(), ErrLost)
				require.ErrorIs(t, held.Unlock(t.Context()), ErrLost)
			})
		})
	}
}

// TestLockOnce expects one claim and one release in spite of lost answers.
func TestLockOnce(t *testing.T) {
	for name, method := range map[string]string{"lock": lockMethod, "unlock": unlockMethod, "try": tryMethod, "open": openMethod} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " answer lost ", lost), func(t *testing.T) {
				bubble(t, func(t *testing.T, p *fixture) {
					s := p.session(p.open("alice"), 10*time.Second)
					p.setFault(func(called string, n int) (before, after error) {
						if called != method || n%4 == 0 {
							return nil, nil
						}
						if lost {
							return nil, unreachable()
						}
						return unreachable(), nil
					})
					last := fence.Token(0)
					for i := range 10 {
						claim := s.Lock
						if i%2 == 0 {
							claim = s.TryLock
						}
						held, err := claim(t.Context(), "db")
						require.NoError(t, err)
						require.Greater(t, held.Token(), last)
						last = held.Token()
						require.Equal(t, uint32(1), p.lock("db").Holding[0].Count)
						require.NoError(t, held.Unlock(t.Context()))
						require.Empty(t, p.lock("db"))
					}
				})
			})
		}
	}
}

// TestLockOfForgottenClient expects a new identity after the group has forgotten the old one.
func TestLockOfForgottenClient(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		s := p.session(p.open("alice"), 10*time.Second)
		for range 3 {
			_, _, err := ops.Of(p.solo).Do(t.Context(), ops.Command{Op: &ops.ClientsExpire{Term: 3, IdleSince: 1 << 60}})
			require.NoError(t, err)
			held := p.holds(s, "db")
			_, _, err = ops.Of(p.solo).Do(t.Context(), ops.Command{Op: &ops.ClientsExpire{Term: 3, IdleSince: 1 << 60}})
			require.NoError(t, err)
			require.NoError(t, held.Unlock(t.Context()))
		}
	})
}

// TestLockGivenUp expects no claim after a caller has given up, even with lost answers.
func TestLockGivenUp(t *testing.T) {
	for name, from := range map[string]error{"unreachable": unreachable(), "internal": fault.New("test", fault.Internal, "broken")} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, p *fixture) {
				s := p.session(p.open("alice"), 10*time.Second)
				p.setFault(func(method string, _ int) (before, after error) {
					if method == lockMethod {
						after = from
					}
					return nil, after
				})
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				_, err := s.Lock(ctx, "db")
				require.ErrorIs(t, err, fault.KindOf(from))
				require.Len(t, p.lock("db").Holding, 1)
				p.mend()
				time.Sleep(5 * time.Second)
				require.Empty(t, p.lock("db"))
				require.Zero(t, s.inside())
				require.NoError(t, p.holds(s, "db").Unlock(t.Context()))
			})
		})
	}
}

func TestLockCanceled(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		p.holds(p.session(p.open("alice"), 10*time.Second), "db")
		bob := p.session(p.open("bob"), 10*time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := bob.Lock(ctx, "db")
		require.ErrorIs(t, err, fault.Timeout)
		require.Equal(t, time.Minute, p.now())
		synctest.Wait()
		time.Sleep(time.Second)
		require.Empty(t, p.lock("db").Waiting)
	})
}

// TestTimedWaitsAtOnce: the second wait has no free client id, so it opens one in the group first.
func TestTimedWaitsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		alice, bob := p.session(p.open("alice"), time.Minute), p.session(p.open("bob"), time.Minute)
		first := make(chan error, 1)
		p.holds(alice, "a")
		p.holds(alice, "b")
		go func() { // ends with its wait
			_, err := bob.Lock(t.Context(), "a", Wait(3*time.Second))
			first <- err
		}()
		synctest.Wait()
		_, err := bob.Lock(t.Context(), "b", Wait(2*time.Second))
		require.ErrorIs(t, err, ErrNotAcquired)
		require.ErrorIs(t, <-first, ErrNotAcquired)
	})
}

// TestLockAcrossConnections expects a waiter to get the lock after lost connections.
func TestLockAcrossConnections(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		held := p.holds(p.session(p.open("alice"), time.Minute), "db")
		bob := p.session(p.open("bob"), time.Minute)
		var next *Held
		var waits sync.WaitGroup
		waits.Go(func() {
			var err error
			next, err = bob.Lock(t.Context(), "db")
			assert.NoError(t, err)
		})
		for range 3 {
			time.Sleep(5 * time.Second)
			p.restart()
		}
		time.Sleep(5 * time.Second)
		require.Len(t, p.lock("db").Waiting, 1)
		require.NoError(t, held.Unlock(t.Context()))
		waits.Wait()
		require.Equal(t, coord.Token(next.Token()), p.lock("db").Holding[0].Token)
		require.NoError(t, next.Unlock(t.Context()))
		require.Empty(t, p.lock("db"))
	})
}

func TestLockWaitsForGroup(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		s := p.session(p.open("alice"), 30*time.Second)
		p.solo.Halt("no majority")
		_, err := s.Lock(t.Context(), "db", Wait(5*time.Second))
		require.ErrorIs(t, err, fault.Unavailable)
		require.NotErrorIs(t, err, ErrLost)
		time.AfterFunc(4*time.Second, p.solo.Resume)
		held, err := s.Lock(t.Context(), "db", Wait(9*time.Second))
		require.NoError(t, err)
		p.solo.Halt("no majority")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, held.Unlock(ctx), fault.Unavailable)
		require.Equal(t, 1, s.inside(), "until it is unlocked")
		p.solo.Resume()
		time.Sleep(5 * time.Second)
		require.Empty(t, p.lock("db"))
		require.Zero(t, s.inside())
	})
}

func TestLockUnderLostSession(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		alice, bob := p.session(p.open("alice"), 10*time.Second), p.session(p.open("bob"), 10*time.Second)
		p.holds(alice, "db")
		var waits sync.WaitGroup
		waits.Go(func() {
			_, err := bob.Lock(t.Context(), "db")
			assert.ErrorIs(t, err, ErrLost)
		})
		synctest.Wait()
		_, _, err := ops.Of(p.solo).Do(t.Context(), ops.Command{Owner: "bob", Op: &ops.LeaseRevoke{ID: coord.LeaseID(bob.Lease())}})
		require.NoError(t, err)
		waits.Wait()
		_, err = bob.Lock(t.Context(), "other")
		require.ErrorIs(t, err, ErrLost)
	})
}

// Several locks are taken in one moment and given back together. Who names them in another order does not wait in a circle.
func TestSeveralLocks(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		alice, bob := p.session(p.open("alice"), 10*time.Second), p.session(p.open("bob"), 10*time.Second)
		held, err := alice.Lock(t.Context(), "a", Also("c", "b"))
		require.NoError(t, err)
		require.Equal(t, "a", held.Name())
		for _, name := range []string{"a", "b", "c"} {
			require.Equal(t, coord.Token(held.Token()), p.lock(name).Holding[0].Token, "one token for all")
		}
		_, err = bob.TryLock(t.Context(), "d", Also("b"))
		require.ErrorIs(t, err, ErrNotAcquired)
		_, err = bob.Lock(t.Context(), "d", Also("b"), Wait(time.Second))
		require.ErrorIs(t, err, ErrNotAcquired)
		require.Empty(t, p.lock("d").Holding, "all or none")
		_, err = alice.TryLock(t.Context(), "e", Also("b"))
		require.ErrorIs(t, err, ErrNotAcquired, "a session holds a lock once")
		_, err = alice.TryLock(t.Context(), "e", Also("f", "f"))
		require.ErrorIs(t, err, fault.Invalid)
		require.Equal(t, 3, alice.inside())

		next := make(chan *Held)
		go func() {
			held, err := bob.Lock(t.Context(), "c", Also("b", "a"))
			assert.NoError(t, err)
			next <- held
		}()
		synctest.Wait()
		require.NoError(t, held.Unlock(t.Context()))
		require.NoError(t, held.Unlock(t.Context()))
		other := <-next
		require.Greater(t, other.Token(), held.Token())
		require.Zero(t, alice.inside())
		require.NoError(t, other.Unlock(t.Context()))
		require.Empty(t, p.lock("a").Holding)
		require.Empty(t, p.lock("b").Holding)
	})
}
