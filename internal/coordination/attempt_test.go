package coordination_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
)

// held returns the tokens of the claims that hold a lock.
func held(t *testing.T, p *node, name string) (tokens []coord.Token) {
	t.Helper()
	locks, _, err := ops.Of(p).Locks(t.Context(), ops.LockQuery{Name: name})
	if fault.KindOf(err) == fault.NotFound {
		return nil
	}
	require.NoError(t, err)
	for _, l := range locks {
		for _, c := range l.Holding {
			tokens = append(tokens, c.Token)
		}
	}
	return tokens
}

// TestRepeatedAtAnotherPeer: a peer that loses a call leaves its claim, if the caller can repeat the call elsewhere: the
// repeated call says "held", and it is.
func TestRepeatedAtAnotherPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 4, 3)
		first, leader := w.peers[3], w.peers[w.leader()]
		owner := first.id()
		opened, _, err := ops.Of(first).Do(t.Context(), ops.Command{Owner: owner, Op: &ops.ClientOpen{}})
		require.NoError(t, err)
		cmd := ops.Command{
			Owner: owner, Client: opened.Client, Sequence: 1, Op: &ops.Lock{Name: "n", Lease: lease(t, first, owner, time.Hour), Wait: true},
		}
		leader.door.deaf.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		gone := acquire(ctx, first.Seat, cmd)
		w.await("the claim", func() bool { return len(held(t, first, "n")) == 1 })
		leader.door.deaf.Store(false)
		cancel() // the peer stops, or its connection with the caller breaks
		require.ErrorIs(t, (<-gone).err, fault.Canceled)
		time.Sleep(10 * time.Second)

		again, _, err := ops.Of(leader).Acquire(t.Context(), cmd, coord.NoLimit)
		require.NoError(t, err)
		require.True(t, again.Lock.Granted)
		require.Equal(t, []coord.Token{again.Lock.Token}, held(t, first, "n"))
	})
}

// TestRepeatedBeforeTheEnd: the first call of a claim that waits ends just when the claim holds. The second one, through
// another peer, says "held", and it is.
func TestRepeatedBeforeTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 4, 3)
		leader, second := w.peers[w.leader()], w.peers[3]
		owner := leader.id()
		holder := lease(t, leader, owner, time.Hour)
		before, _, err := ops.Of(leader).Do(t.Context(), ops.Command{Owner: owner, Op: &ops.Lock{Name: "n", Lease: holder}})
		require.NoError(t, err)
		opened, _, err := ops.Of(leader).Do(t.Context(), ops.Command{Owner: owner, Op: &ops.ClientOpen{}})
		require.NoError(t, err)
		cmd := ops.Command{
			Owner: owner, Client: opened.Client, Sequence: 1, Op: &ops.Lock{Name: "n", Lease: lease(t, leader, owner, time.Hour), Wait: true},
		}
		ctx, cancel := context.WithCancel(t.Context())
		gone := acquire(ctx, leader.Seat, cmd)
		got := acquire(t.Context(), second.Seat, cmd)
		time.Sleep(time.Second)
		go func() {
			_, _, err := ops.Of(leader).Do(t.Context(), ops.Command{Owner: owner, Op: &ops.Unlock{Name: "n", Lease: holder, Token: before.Lock.Token}})
			assert.NoError(t, err)
		}()
		time.Sleep(time.Millisecond) // of the two that the entry takes
		cancel()
		require.ErrorIs(t, (<-gone).err, fault.Canceled)
		outcome := <-got
		require.NoError(t, outcome.err)
		require.True(t, outcome.Lock.Granted)
		time.Sleep(10 * time.Second)
		require.Equal(t, []coord.Token{outcome.Lock.Token}, held(t, leader, "n"))
	})
}

type outcome struct {
	ops.Result
	err error
}

// acquire makes a call in the background.
func acquire(ctx context.Context, p *coordination.Seat, cmd ops.Command) <-chan outcome {
	got := make(chan outcome, 1)
	go func() {
		r, _, err := ops.Of(p).Acquire(ctx, cmd, coord.NoLimit)
		got <- outcome{r, err}
	}()
	return got
}
