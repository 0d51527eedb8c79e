package coordination_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/pkg/fault"
)

// startPair starts a founder and a peer that joined it: one voter and one learner.
func startPair(t *testing.T, peers int) *testCluster {
	w := newTestCluster(t, peers)
	w.connect()
	w.peers[0].policy = first()
	w.start(0, unlisted())
	w.peers[1].policy = joiner()
	w.start(1, unlisted())
	w.await("one voter and one learner", func() bool {
		s := w.state()
		return len(s.Voters) == 1 && len(s.Learners) == 1 && s.Learners[0].Lag == 0
	})
	return w
}

// alone orders a peer to go on without the others.
func (p *node) alone() coord.MemberChange {
	return coord.MemberChange{Action: coord.PromoteMember, Peer: p.id(), Force: true}
}

// succeed lets a peer go on alone, and waits until it leads.
func (w *testCluster) succeed(p *node) {
	w.t.Helper()
	time.Sleep(time.Minute)
	done, err := p.ChangeMembers(w.t.Context(), p.alone())
	require.NoError(w.t, err)
	require.True(w.t, done.Done)
	w.await("it leads", func() bool { return p.Stats().Leads })
}

// TestPromoteWithoutLeader: the learner of a group whose only voter is gone goes on by order, keeps what it has, says what is
// lost, and its tokens are above all earlier ones. Nothing happens without force, too early, or by an order to another peer.
func TestPromoteWithoutLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startPair(t, 3)
		voter, learner, client := w.peers[0], w.peers[1], w.peers[2]
		token := locked(t, learner, "n")
		id := lease(t, learner, learner.id(), time.Hour)
		held, _, err := ops.Of(learner).Do(t.Context(), ops.Command{Owner: learner.id(), Op: &ops.Lock{Name: "held", Lease: id}})
		require.NoError(t, err)
		time.Sleep(time.Second)
		voter.stop(t)
		time.Sleep(3 * time.Second)

		_, err = learner.ChangeMembers(t.Context(), learner.alone())
		require.ErrorIs(t, err, fault.Conflict)
		require.ErrorContains(t, err, "and an election or a restart can bring one: order again in")
		time.Sleep(time.Minute)
		order := learner.alone()
		order.Force = false
		_, err = learner.ChangeMembers(t.Context(), order)
		require.Equal(t, "force", fault.FieldOf(err))
		require.ErrorContains(t, err, "lose every write that only "+voter.id()+" (host-0) had")
		order.Peer = voter.id()
		_, err = learner.ChangeMembers(t.Context(), order)
		require.ErrorIs(t, err, fault.Unavailable)
		require.ErrorContains(t, err, "only promotes itself")
		order = learner.alone()
		order.DryRun = true
		would, err := learner.ChangeMembers(t.Context(), order)
		require.NoError(t, err)
		require.False(t, would.Done)
		require.Equal(t, []string{"0 of 1 voter: no majority", "1 of 1 voter: no failure"}, []string{would.Before, would.After})
		require.Contains(t, would.Steps[1], "keep 1 leases")
		require.False(t, learner.Stats().Leads, "a dry run changes nothing")

		w.succeed(learner)
		s := w.state()
		require.EqualValues(t, 1, s.Incarnation)
		require.Len(t, s.Voters, 1)
		require.Greater(t, locked(t, learner, "n"), token+1<<39)
		locks, _, err := ops.Of(learner).Locks(t.Context(), ops.LockQuery{Name: "held"})
		require.NoError(t, err)
		require.Equal(t, held.Lock.Token, locks[0].Holding[0].Token, "a holder stays")

		client.policy = joiner()
		w.start(2, unlisted())
		w.await("it grows again", func() bool { return len(w.state().Learners) == 1 })
	})
}

// TestOldVoterReturns: the voter that was gone returns with its disk. It takes no part, says so, and serves its callers through
// the group that went on; no token comes twice, though it gave some alone before it heard of that.
func TestOldVoterReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startPair(t, 2)
		voter, learner := w.peers[0], w.peers[1]
		token := locked(t, voter, "n")
		time.Sleep(time.Second)
		voter.stop(t)
		w.succeed(learner)
		next := locked(t, learner, "n")
		require.Greater(t, next, token)

		learner.stop(t)
		w.start(0, unlisted()) // it cannot know
		w.await("it leads the old incarnation", func() bool { return voter.Stats().Leads })
		require.Less(t, locked(t, voter, "n"), next)
		w.start(1, unlisted())
		w.await("it is outlived", func() bool { return w.phase(voter) == "outlived" })
		require.Equal(t, []string{string(condition.MemberStopped)}, voter.conditions.ActiveNames())
		w.await("one leader for both", func() bool { return w.leader() == 1 })
		last := locked(t, voter, "n")
		require.Greater(t, last, next)
		require.Greater(t, locked(t, learner, "n"), last)

		voter.stop(t)
		w.start(0, unlisted())
		time.Sleep(time.Minute)
		require.Equal(t, "outlived", w.phase(voter))
		require.Len(t, w.state().Voters, 1)

		voter.stop(t)
		require.NoError(t, voter.fs.RemoveAll("data"))
		voter.policy = joiner()
		w.start(0, unlisted())
		w.await("it is a learner", func() bool { return len(w.state().Learners) == 1 })
		require.Empty(t, voter.conditions.ActiveNames())
	})
}

// TestPromoteBehindCut: the voter was only cut off, and gave tokens on its own side. When the network heals, its callers get
// tokens of the group that went on, above all of its own; its own leases are gone.
func TestPromoteBehindCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startPair(t, 2)
		voter, learner := w.peers[0], w.peers[1]
		locked(t, voter, "n")
		time.Sleep(time.Second)
		voter.cut.Store(true)
		learner.cut.Store(true)
		w.succeed(learner)
		own := lease(t, voter, voter.id(), time.Hour)
		mine, _, err := ops.Of(voter).Do(t.Context(), ops.Command{Owner: voter.id(), Op: &ops.Lock{Name: "n", Lease: own}})
		require.NoError(t, err)
		next := locked(t, learner, "n")
		require.Greater(t, next, mine.Lock.Token)

		voter.cut.Store(false)
		learner.cut.Store(false)
		w.await("it is outlived", func() bool { return w.phase(voter) == "outlived" })
		w.await("one leader for both", func() bool { return w.leader() == 1 })
		require.Greater(t, locked(t, voter, "n"), next)
		renewals, _, err := ops.Of(voter).KeepAlive(t.Context(), voter.id(), []coord.LeaseID{own})
		require.NoError(t, err)
		require.Zero(t, renewals[0].TTL, "its holder learns that it lost")
	})
}

// TestPromoteChoosesTheFullest: of two survivors the one with less of the log is refused, and the other one goes on.
func TestPromoteChoosesTheFullest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 4, 4)
		w.await("three voters and a learner", func() bool {
			s := w.state()
			return len(s.Voters) == 3 && len(s.Learners) == 1 && s.Learners[0].Lag == 0
		})
		var learner, voter *node
		for _, p := range w.peers {
			switch {
			case p.id() == w.state().Learners[0].Peer:
				learner = p
			case !p.Stats().Leads:
				voter = p
			}
		}
		_, err := voter.ChangeMembers(t.Context(), voter.alone())
		require.ErrorIs(t, err, fault.Exists, "it votes already, says the leader")
		learner.cut.Store(true)
		time.Sleep(20 * time.Second) // what it still receives ends with its streams
		token := locked(t, voter, "n")
		time.Sleep(time.Second)
		for _, p := range w.peers {
			if p != voter && p != learner {
				p.stop(t)
			}
		}
		time.Sleep(10 * time.Second) // the voter leads no more
		learner.cut.Store(false)
		time.Sleep(time.Minute)
		_, err = learner.ChangeMembers(t.Context(), learner.alone())
		require.ErrorIs(t, err, fault.Conflict)
		require.ErrorContains(t, err, "has more of the log")
		w.succeed(voter)
		require.Greater(t, locked(t, voter, "n"), token)
		w.await("the learner is left behind", func() bool { return w.phase(learner) == "outlived" })
	})
}
