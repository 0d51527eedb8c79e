package coordination_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/formation"
	"github.com/blackhole/blackhole/pkg/fault"
)

// recover performs a forced recovery at a stopped peer, without the checks of an order.
func (p *node) recover() (formation.Recovery, error) {
	return formation.Recover(formation.RecoverConfig{Key: p.key, Dir: "data", FS: p.fs})
}

// locked takes the lock with a new lease through a peer, and returns its token.
func locked(t *testing.T, p *node, name string) coord.Token {
	t.Helper()
	id := lease(t, p, p.id(), time.Minute)
	r, _, err := ops.Of(p).Do(t.Context(), ops.Command{Owner: p.id(), Op: &ops.Lock{Name: name, Lease: id}})
	require.NoError(t, err)
	require.True(t, r.Lock.Granted)
	_, _, err = ops.Of(p).Do(t.Context(), ops.Command{Owner: p.id(), Op: &ops.LeaseRevoke{ID: id}})
	require.NoError(t, err)
	return r.Lock.Token
}

// TestRecover: the disk of one of three continues under the same id. The other two, restarted, take no part
// until their directories are cleared, and are members again afterwards.
func TestRecover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 4, 3)
		client, survivor := w.peers[3], w.peers[(w.leader()+1)%3]
		token := locked(t, client, "n")
		old := w.state().ID
		_, err := survivor.recover()
		require.ErrorIs(t, err, fault.Conflict, "it runs")
		time.Sleep(time.Second)
		for _, p := range w.peers[:3] {
			p.stop(t)
		}
		done, err := survivor.recover()
		require.NoError(t, err)
		require.EqualValues(t, 1, done.Incarnation)
		_, err = survivor.recover()
		require.ErrorIs(t, err, fault.Conflict, "once is enough")

		w.start(w.index(survivor), w.listed(3))
		w.await("it leads", func() bool { return w.peers[w.index(survivor)].Stats().Leads })
		after := locked(t, client, "n")
		require.Greater(t, after, token+1<<39)
		state := w.state()
		require.Equal(t, old, state.ID)
		require.EqualValues(t, 1, state.Incarnation)
		require.Len(t, state.Voters, 1)

		for i, p := range w.peers[:3] {
			if p != survivor {
				w.start(i, w.listed(3))
			}
		}
		for _, p := range w.peers[:3] {
			if p == survivor {
				continue
			}
			w.await("it is outlived", func() bool { return w.phase(p) == "outlived" })
			require.Greater(t, locked(t, p, "n"), after, "it is a client like any other")
		}
		time.Sleep(time.Minute)
		require.Len(t, w.state().Voters, 1, "who is of the old incarnation is not taken")

		for i, p := range w.peers[:3] { // they remember, and begin nothing alone
			p.stop(t)
			if p != survivor {
				w.start(i, w.listed(3))
			}
		}
		time.Sleep(20 * time.Second)
		require.Equal(t, -1, w.leader())
		w.start(w.index(survivor), w.listed(3))
		w.await("it leads", func() bool { return w.leader() == w.index(survivor) })

		for i, p := range w.peers[:3] {
			if p != survivor {
				p.stop(t)
				require.NoError(t, p.fs.RemoveAll("data"))
				w.start(i, w.listed(3))
			}
		}
		w.await("three voters", func() bool { return len(w.state().Voters) == 3 })
		time.Sleep(time.Second) // the joint configuration ends: until then the group cannot lose the only old voter
		survivor.stop(t)
		w.await("another leads", func() bool { return w.leader() >= 0 })
		require.Greater(t, locked(t, client, "n"), after)
		require.EqualValues(t, 1, w.state().Incarnation)
		for i, p := range w.peers[:3] { // their disks hold the new incarnation
			if p != survivor {
				p.stop(t)
				w.start(i, w.listed(3))
			}
		}
		w.await("a leader", func() bool { return w.leader() >= 0 })
		require.Greater(t, locked(t, client, "n"), after)
	})
}

// TestRecoverTooEarly: the majority was not lost. It goes on until it learns of the new incarnation, which
// grants none of its tokens again.
func TestRecoverTooEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 4, 3)
		client, survivor := w.peers[3], w.peers[(w.leader()+1)%3]
		locked(t, client, "n")
		survivor.stop(t)
		w.await("the others go on", func() bool { return w.leader() >= 0 })
		_, err := survivor.recover()
		require.NoError(t, err)
		last := locked(t, client, "n")

		w.start(w.index(survivor), w.listed(3))
		for _, p := range w.peers[:3] {
			if p != survivor {
				w.await("it is outlived", func() bool { return w.phase(p) == "outlived" })
			}
		}
		w.await("one leader for all", func() bool { return w.leader() == w.index(survivor) })
		require.Greater(t, locked(t, client, "n"), last)
	})
}

// TestRecoverOfTheReplaced: the recovery of a peer that was replaced without its knowledge has no effect on
// the living group and its clients.
func TestRecoverOfTheReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 5, 4)
		w.await("three voters and a learner", func() bool { return len(w.state().Voters) == 3 && len(w.state().Learners) == 1 })
		client, away := w.peers[4], w.peers[w.leader()]
		away.stop(t)
		w.await("another votes in its place", func() bool { s := w.state(); return len(s.Voters) == 3 && !has(s, away.id()) })
		token := locked(t, client, "n")
		_, err := away.recover()
		require.NoError(t, err, "it cannot know")
		w.start(w.index(away), w.listed(4))
		others := w.without(away)
		for range 20 {
			time.Sleep(5 * time.Second)
			require.Zero(t, others.state().Incarnation)
			now := locked(t, client, "n")
			require.Greater(t, now, token)
			require.Less(t, now, token+1<<39)
		}
		for _, p := range others.peers {
			require.NotEqual(t, "outlived", w.phase(p))
		}
	})
}

// TestRecoverRefuses a disk without a member, and a group without another voter.
func TestRecoverRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 2, 1)
		for _, p := range w.peers {
			p.stop(t)
		}
		_, err := w.peers[0].recover()
		require.ErrorIs(t, err, fault.Conflict)
		_, err = w.peers[1].recover()
		require.ErrorIs(t, err, fault.NotFound)
		other := &node{key: w.peers[1].key, fs: w.peers[0].fs}
		_, err = other.recover()
		require.ErrorIs(t, err, fault.Conflict)
	})
}

func (w *testCluster) index(p *node) int {
	for i := range w.peers {
		if w.peers[i] == p {
			return i
		}
	}
	return -1
}

func (w *testCluster) phase(p *node) string {
	s, err := p.Group(w.t.Context())
	require.NoError(w.t, err)
	return s.Phase
}
