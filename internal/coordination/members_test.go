package coordination_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
)

// order gives an order at a peer, and waits for a leader that knows its members.
func (w *testCluster) order(at int, c coord.MemberChange) coord.MemberOutcome {
	w.t.Helper()
	var done coord.MemberOutcome
	w.await(string(c.Action)+" is done", func() (ok bool) {
		var err error
		done, err = w.peers[at].ChangeMembers(w.t.Context(), c)
		if fault.KindOf(err) != fault.Unavailable {
			require.NoError(w.t, err)
		}
		return err == nil
	})
	return done
}

func (w *testCluster) roles() (voters, learners []string) {
	s := w.state()
	for _, m := range s.Voters {
		voters = append(voters, m.Name)
	}
	for _, m := range s.Learners {
		learners = append(learners, m.Name)
	}
	return voters, learners
}

// TestLeave: a leader that leaves hands over first, and does not come back before an operator adds it.
func TestLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 3, 3)
		owner := w.peers[0].id()
		id := lease(t, w.peers[0], owner, time.Hour)
		held, _, err := ops.Of(w.peers[0]).Do(t.Context(), ops.Command{Owner: owner, Op: &ops.Lock{Name: "n", Lease: id}})
		require.NoError(t, err)

		lead := w.leader()
		would := w.order(lead, coord.MemberChange{Action: coord.LeaveGroup, DryRun: true})
		require.False(t, would.Done)
		require.Len(t, would.Steps, 1)
		require.Contains(t, would.Steps[0], "hand the leadership to")
		voters, _ := w.roles()
		require.Len(t, voters, 3, "a dry run changes nothing")

		done := w.order(lead, coord.MemberChange{Action: coord.LeaveGroup})
		require.True(t, done.Done)
		require.Equal(t, "2 of 2 voters: no failure", done.After)
		w.await("two voters", func() bool { return w.leader() >= 0 && len(w.state().Voters) == 2 })
		require.NotEqual(t, lead, w.leader())
		locks, _, err := ops.Of(w.peers[lead]).Locks(t.Context(), ops.LockQuery{Name: "n"})
		require.NoError(t, err)
		require.Equal(t, held.Lock.Token, locks[0].Holding[0].Token, "a client reads on")

		time.Sleep(5 * time.Minute) // virtual; the group adds a candidate within a minute
		_, learners := w.roles()
		require.Empty(t, learners)

		back := w.order((lead+1)%3, coord.MemberChange{Action: coord.AddMember, Peer: w.peers[lead].id()})
		require.Equal(t, coord.Wanted, back.Standing)
		w.await("three voters", func() bool { return len(w.state().Voters) == 3 })
	})
}

// TestOrders: an operator promotes, replaces and removes; a refusal changes nothing.
func TestOrders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 5, 5)
		w.await("a learner", func() bool { return len(w.state().Learners) == 1 && len(w.state().Voters) == 3 })
		w.await("each says where it answers clients of etcd", func() bool {
			s := w.state()
			return !slices.ContainsFunc(slices.Concat(s.Voters, s.Learners), func(m coord.Member) bool { return !strings.HasPrefix(m.Etcd, "http://10.0.0.") })
		})
		s := w.state()
		follower := s.Voters[0].Peer
		if follower == s.Leader {
			follower = s.Voters[1].Peer
		}
		stand := s.Learners[0].Peer
		time.Sleep(5 * time.Second)
		w.order(0, coord.MemberChange{Action: coord.ReplaceMember, Peer: follower, With: stand})
		w.await("it votes instead", func() bool { // until the change of two has ended, four vote
			return len(w.state().Voters) == 3 && slices.ContainsFunc(w.state().Voters, func(m coord.Member) bool { return m.Peer == stand })
		})

		w.order(0, coord.MemberChange{Action: coord.RemoveMember, Peer: stand})
		w.await("it is gone", func() bool { return len(w.state().Voters) >= 2 && w.state().NameOf(stand) == "" })
		w.await("another one votes", func() bool { return len(w.state().Voters) == 3 })
		require.Empty(t, w.state().NameOf(stand), "it is barred")
		require.Equal(t, []string{stand}, w.state().Removed)
		for _, p := range w.peers {
			w.await("it knows", func() bool { return (p.Standing().Phase == "removed") == (p.id() == stand) })
		}

		_, err := w.peers[0].ChangeMembers(t.Context(), coord.MemberChange{Action: coord.RemoveMember, Peer: stand + "x"})
		require.ErrorIs(t, err, fault.NotFound)
		lead := w.leader()
		w.peers[lead].stop(t)
		w.await("another leader", func() bool { now := w.leader(); return now >= 0 && now != lead })
		time.Sleep(2 * time.Minute)
		require.Empty(t, w.state().NameOf(stand), "the next leader keeps it barred")
	})
}

// TestOrdersOfClients: a peer that is not eligible gives no orders to the group.
func TestOrdersOfClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 4, 3)
		_, err := w.peers[3].ChangeMembers(t.Context(), coord.MemberChange{Action: coord.TransferLeadership, Peer: w.peers[0].id()})
		require.ErrorIs(t, err, fault.Forbidden)
	})
}
