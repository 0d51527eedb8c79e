package attempt

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/platform/share"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// fakeGroup opens identities and answers commands.
type fakeGroup struct {
	mu     sync.Mutex
	opened uint64
	seen   []*apiv1.Attempt
	answer func(n int, cmd *coordv1.Command) error // of the nth command; nil: all succeed
}

func (g *fakeGroup) send(_ context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if cmd.GetOpenClient() != nil {
		g.opened++
		return &coordv1.Result{Response: &coordv1.Result_OpenClient{OpenClient: &apiv1.OpenClientResponse{Client: g.opened}}}, nil
	}
	g.seen = append(g.seen, &apiv1.Attempt{Client: cmd.GetAttempt().GetClient(), Sequence: cmd.GetAttempt().GetSequence()})
	if g.answer == nil {
		return &coordv1.Result{}, nil
	}
	return &coordv1.Result{}, g.answer(len(g.seen), cmd)
}

func command() *coordv1.Command {
	return coord.CommandOf("", &apiv1.UnlockRequest{Name: "db"})
}

func claim() *coordv1.Command {
	return coord.CommandOf("", &apiv1.LockRequest{Name: "db", TimeoutMs: -1})
}

func lacks(field string) error { return fault.Refused(fault.NotFound, field, "is unknown") }

// TestRepeated: a repeated command keeps its identity, and the next command gets it with the next number.
func TestRepeated(t *testing.T) {
	p, g := NewPool("", nil), &fakeGroup{answer: func(n int, _ *coordv1.Command) error {
		if n == 1 {
			return fault.New("test", fault.Unavailable, "broken")
		}
		return nil
	}}
	a := p.Attempt(command())
	_, err := a.Once(t.Context(), g.send)
	require.ErrorIs(t, err, fault.Unavailable)
	require.True(t, a.Unknown())
	_, err = a.Once(t.Context(), g.send)
	require.NoError(t, err)
	require.False(t, a.Unknown())
	a.End()
	b := p.Attempt(command())
	_, err = b.Once(t.Context(), g.send)
	require.NoError(t, err)
	b.End()
	require.Equal(t, []uint64{1, 1, 2}, []uint64{g.seen[0].GetSequence(), g.seen[1].GetSequence(), g.seen[2].GetSequence()})
	require.Equal(t, uint64(1), g.opened)
}

// TestBrought: the identity of a caller is sent as it came, and the pool lends none.
func TestBrought(t *testing.T) {
	p, g := NewPool("", nil), &fakeGroup{answer: func(int, *coordv1.Command) error { return lacks("client") }}
	cmd := command()
	cmd.Attempt = &apiv1.Attempt{Client: 7, Sequence: 9}
	a := p.Attempt(cmd)
	defer a.End()
	_, err := a.Once(t.Context(), g.send)
	require.ErrorIs(t, err, fault.NotFound)
	require.True(t, a.Brought())
	require.Len(t, g.seen, 1)
	require.Equal(t, uint64(7), g.seen[0].GetClient())
	require.Zero(t, g.opened)
}

// TestForgotten: a command under a forgotten identity is sent again under a new one, unless it may have been applied before.
// Identities that were idle for longer are dropped with it.
func TestForgotten(t *testing.T) {
	unreachable := fault.New("test", fault.Unavailable, "broken")
	for name, one := range map[string]struct {
		cmd     *coordv1.Command
		answers []error // then success
		sent    int
		ends    bool // with the last answer
	}{
		"at once":                  {command(), []error{lacks("client")}, 2, false},
		"too often":                {command(), []error{lacks("client"), lacks("client"), lacks("client"), lacks("client")}, 4, true},
		"after an unknown outcome": {command(), []error{unreachable, lacks("client")}, 2, true},
		"a claim":                  {claim(), []error{unreachable, lacks("client")}, 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			p, g := NewPool("", nil), &fakeGroup{}
			g.answer = func(n int, _ *coordv1.Command) error {
				if n > len(one.answers) {
					return nil
				}
				return one.answers[n-1]
			}
			a := p.Attempt(one.cmd)
			var err error
			for range one.answers {
				if _, err = a.Once(t.Context(), g.send); fault.KindOf(err) != fault.Unavailable {
					break
				}
			}
			require.Equal(t, one.ends, fault.KindOf(err) == fault.NotFound && err != nil, "%v", err)
			require.Len(t, g.seen, one.sent)
			a.End()
		})
	}
}

// TestUnknown: only an outcome of the group itself ends the doubt about an earlier call.
func TestUnknown(t *testing.T) {
	p, g := NewPool("", nil), &fakeGroup{}
	answers := []error{
		fault.New("test", fault.LimitReached, "full"), fault.New("test", fault.Timeout, "late"),
		fault.New("test", fault.LimitReached, "full"), lacks("name"),
	}
	g.answer = func(n int, _ *coordv1.Command) error { return answers[n-1] }
	a := p.Attempt(command())
	defer a.End()
	for i, unknown := range []bool{false, true, true, false} {
		_, err := a.Once(t.Context(), g.send)
		require.ErrorIs(t, err, answers[i])
		require.Equal(t, unknown, a.Unknown(), i)
	}
}

// TestShares: commands wait for a place, waits for locks are refused, and neither takes a place of the other.
func TestShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, g := newPool("", 2, 3, nil), &fakeGroup{}
		take := func(cmd *coordv1.Command) *Attempt {
			a := p.Attempt(cmd)
			_, err := a.Once(t.Context(), g.send)
			require.NoError(t, err)
			return a
		}
		lent := []*Attempt{take(claim()), take(claim()), take(claim()), take(command()), take(command())}
		_, err := p.Attempt(claim()).Once(t.Context(), g.send)
		require.ErrorIs(t, err, fault.PoolExhausted)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = p.Attempt(command()).Once(ctx, g.send)
		require.ErrorIs(t, err, fault.Timeout)
		var work sync.WaitGroup
		for range 20 {
			work.Go(func() {
				a := p.Attempt(command())
				defer a.End()
				_, err := a.Once(t.Context(), g.send)
				assert.NoError(t, err)
			})
		}
		synctest.Wait()
		require.Len(t, g.seen, 5)
		for _, a := range lent {
			a.End()
		}
		work.Wait()
		require.Equal(t, uint64(5), g.opened)
	})
}

// TestOwnLane: the commands of a peer itself do not wait for those of its callers.
func TestOwnLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, g := newPool("peer", 1, 1, nil), &fakeGroup{}
		run := func(ctx context.Context, owner string) error {
			cmd := command()
			cmd.Owner = owner
			_, err := p.Attempt(cmd).Once(ctx, g.send)
			return err
		}
		require.NoError(t, run(t.Context(), "@caller"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, run(ctx, "@caller"), fault.Timeout)
		require.NoError(t, run(t.Context(), "peer"))
	})
}

// TestOwnersTakeTurns: the command of an owner waits for one command of others at most, however many theirs are, and one owner or five that
// wait for locks leave a place to another.
func TestOwnersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, g := newPool("peer", 2, 1024, share.Fits), &fakeGroup{}
		of := func(owner string, cmd *coordv1.Command) *Attempt {
			cmd.Owner = owner
			return p.Attempt(cmd)
		}
		var held []*Attempt
		for range 2 {
			held = append(held, of("@greedy", command()))
			_, err := held[len(held)-1].Once(t.Context(), g.send)
			require.NoError(t, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() { _, _ = of("@greedy", command()).Once(ctx, g.send) }) // it keeps its place
		}
		synctest.Wait()
		done := make(chan error, 1)
		honest := of("@honest", command())
		go func() {
			_, err := honest.Once(t.Context(), g.send)
			done <- err
		}()
		synctest.Wait()
		held[0].End()
		held[1].End()
		require.NoError(t, <-done)
		honest.End()
		cancel()
		all.Wait()
		require.LessOrEqual(t, p.short.used, 2)
		require.Empty(t, p.short.waiting)
		require.Empty(t, p.short.order)

		for _, greedy := range []string{"@a", "@b", "@c", "@d", "@e"} {
			var err error
			for err == nil {
				_, err = of(greedy, claim()).Once(t.Context(), g.send)
			}
			require.ErrorIs(t, err, fault.PoolExhausted)
			require.Equal(t, "pool.waits.share", fault.FieldOf(err))
			waits := of("@honest", claim())
			_, err = waits.Once(t.Context(), g.send)
			require.NoError(t, err)
			waits.End()
		}
	})
}

// TestPlaceAfterFailure: an identity that could not be opened takes no place.
func TestPlaceAfterFailure(t *testing.T) {
	p := newPool("", 1, 1, nil)
	for range 5 {
		_, err := p.Attempt(claim()).Once(t.Context(), func(context.Context, *coordv1.Command) (*coordv1.Result, error) {
			return nil, errors.New("no")
		})
		require.EqualError(t, err, "no")
	}
}

// TestClose closes free identities, and no lent one.
func TestClose(t *testing.T) {
	p, g := NewPool("", nil), &fakeGroup{}
	a, b := p.Attempt(command()), p.Attempt(command())
	for _, one := range []*Attempt{a, b} {
		_, err := one.Once(t.Context(), g.send)
		require.NoError(t, err)
	}
	a.End()
	var closed []uint64
	p.Close(t.Context(), func(_ context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
		closed = append(closed, cmd.GetCloseClient().GetClient())
		return &coordv1.Result{}, nil
	})
	require.Equal(t, []uint64{1}, closed)
	b.End()
}

// TestRepeat: pauses grow to the last one, progress begins anew, and the patience bounds the calls.
func TestRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		var pauses []time.Duration
		rules := Rules{
			First: time.Second, Last: 3 * time.Second, Patience: 10 * time.Second, Now: time.Now,
			Passing: func(_ context.Context, err error) bool { return errors.Is(err, broken) },
			Rest: func(_ context.Context, d time.Duration, _ <-chan struct{}) bool {
				pauses = append(pauses, d)
				time.Sleep(d)
				return true
			},
		}
		calls := 0
		run := rules.Begin()
		for run.Again(t.Context(), broken, nil) {
			if calls++; calls == 2 {
				run.Progress()
			}
		}
		require.Equal(t, []time.Duration{time.Second, 2 * time.Second, time.Second, 2 * time.Second, 3 * time.Second, 3 * time.Second, time.Second}, pauses)
		require.False(t, rules.passes(t, errors.New("final")))
	})
}

// passes reports whether a first error leads to another call.
func (r Rules) passes(t *testing.T, err error) bool {
	run := r.Begin()
	return run.Again(t.Context(), err, nil)
}
