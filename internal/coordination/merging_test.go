package coordination_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/pkg/fault"
)

// twoGroups starts two groups that do not know each other: of the first n peers, and of the others.
func twoGroups(t *testing.T, n, others int) *testCluster {
	w := newTestCluster(t, n+others)
	for i, p := range w.peers {
		founder := 0
		if i >= n {
			founder = n
		}
		p.policy = joiner()
		if i == founder {
			p.policy = first()
		} else {
			w.link(i, founder)
		}
		w.start(i, unlisted())
	}
	w.await("all voters", func() bool {
		for i, p := range w.peers {
			wanted := min(n, 3)
			if i >= n {
				wanted = min(others, 3)
			}
			if s, err := p.Group(t.Context()); err != nil || s.Leader == "" || len(s.Voters) != wanted-(wanted+1)%2 {
				return false
			}
		}
		return true
	})
	require.Len(t, w.groups(), 2)
	return w
}

func (w *testCluster) link(a, b int) {
	_, err := w.peers[a].host.Network().DialPeer(network.WithDialPeerTimeout(w.t.Context(), 1e9), w.peers[b].host.ID())
	require.NoError(w.t, err)
}

// holds takes a lock under a caller's lease, and returns both with the token.
func (p *node) holds(t *testing.T, lock string) (coord.LeaseID, coord.Token) {
	t.Helper()
	owner := "~" + p.id()
	id := lease(t, p, owner, time.Minute)
	r, _, err := ops.Of(p).Acquire(t.Context(), ops.Command{Owner: owner, Op: &ops.Lock{Name: lock, Lease: id, Wait: true}}, time.Second)
	require.NoError(t, err)
	require.True(t, r.Lock.Granted)
	return id, r.Lock.Token
}

func (p *node) troubled(by condition.Name) bool {
	return slices.Contains(p.conditions.ActiveNames(), string(by))
}

// message returns the sentence of a condition.
func (p *node) message(of condition.Name) string {
	for _, c := range p.conditions.Active() {
		if c.Name == of {
			return c.Message
		}
	}
	return ""
}

// oneGroup waits until all running peers use one group, and nobody complains.
func (w *testCluster) oneGroup(id string) {
	w.t.Helper()
	defer func() {
		if w.t.Failed() {
			for i, p := range w.peers {
				if p.Seat != nil {
					s, err := p.Group(context.Background())
					w.t.Log(i, p.ID(), s.Leader, s.Phase, s.Missing, err, p.conditions.Active())
				}
			}
		}
	}()
	w.await("one group", func() bool {
		for _, p := range w.peers {
			if p.Seat == nil {
				continue
			}
			if s, err := p.Group(w.t.Context()); err != nil || p.ID() != id || s.Leader == "" || p.troubled(condition.OtherGroup) {
				return false
			}
		}
		return true
	})
}

// revoke ends a lease of holds.
func (p *node) revoke(t *testing.T, id coord.LeaseID) {
	t.Helper()
	_, _, err := ops.Of(p).Do(t.Context(), ops.Command{Owner: "~" + p.id(), Op: &ops.LeaseRevoke{ID: id}})
	require.NoError(t, err)
}

// TestGroupWithoutDataGivesItselfUp: a group that holds no data of applications ends by itself, once the other one gives no token
// that is below one of its own. The other one keeps its locks, and watches of the former group begin anew.
func TestGroupWithoutDataGivesItselfUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := twoGroups(t, 3, 1)
		stays, goes := w.peers[0], w.peers[3]
		before := coord.Token(0)
		for range 40 { // its tokens become larger, and it holds nothing at the end
			var id coord.LeaseID
			id, before = goes.holds(t, "a")
			goes.revoke(t, id)
		}
		kept, held := stays.holds(t, "kept")
		require.Less(t, held, before)
		group := stays.ID()
		w.link(3, 0)
		w.await("both say so", func() bool { return stays.troubled(condition.OtherGroup) && goes.troubled(condition.OtherGroup) })
		time.Sleep(30 * time.Second)
		require.Len(t, w.groups(), 2, "the other group would give lower tokens")

		watched := make(chan error, 1)
		began := make(chan struct{})
		go func() {
			first := true
			watched <- ops.Of(goes).Events(t.Context(), coord.Watch{Span: coord.Under("a")}, func(coord.Batch, coord.Header) error {
				if first {
					close(began)
				}
				first = false
				return nil
			})
		}()
		<-began
		for held <= before {
			var id coord.LeaseID
			id, held = stays.holds(t, "b")
			stays.revoke(t, id)
		}
		w.oneGroup(group)
		var compacted *coord.Compacted
		require.ErrorAs(t, <-watched, &compacted)
		require.ErrorAs(t, ops.Of(goes).Events(t.Context(), coord.Watch{From: 3}, nil), &compacted, "a cursor of the former group")
		_, after := goes.holds(t, "a")
		require.Greater(t, after, before)
		renewed, _, err := ops.Of(goes).KeepAlive(t.Context(), "~"+stays.id(), []coord.LeaseID{kept})
		require.NoError(t, err)
		require.Positive(t, renewed[0].TTL)
		w.await("it is a member of the other group", func() bool {
			s, err := stays.Group(t.Context())
			return err == nil && among(append(s.Learners, s.Voters...), goes)
		})
	})
}

// TestEmptyGroupsBecomeOne: neighbours that founded apart, with equal revisions, need no operator.
func TestEmptyGroupsBecomeOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := twoGroups(t, 1, 1)
		w.link(1, 0)
		began := time.Now()
		w.await("one group", func() bool { return len(w.groups()) == 1 })
		require.Less(t, time.Since(began), 15*time.Second)
		w.oneGroup(w.groups()[0])
	})
}

// TestOperatorJoinsGroups: two groups with data stay, and both say so, until an operator gives one up. Its holders lose.
func TestOperatorJoinsGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := twoGroups(t, 1, 3)
		stays, goes := w.peers[0], w.peers[2]
		_, kept := stays.holds(t, "a")
		for range 20 {
			given, _ := goes.holds(t, "a")
			goes.revoke(t, given)
		}
		ended, lost := goes.holds(t, "a")
		require.Greater(t, lost, kept)
		w.link(1, 0)
		w.await("both say so", func() bool { return stays.troubled(condition.OtherGroup) && w.peers[1].troubled(condition.OtherGroup) })
		time.Sleep(time.Second) // the first look may have met a peer that lagged behind its group
		require.Contains(t, stays.message(condition.OtherGroup), "run blackholed group join")
		time.Sleep(30 * time.Second)
		require.Len(t, w.groups(), 2)

		group, former := stays.ID(), goes.ID()
		order := coord.MemberChange{Action: coord.JoinGroup, Group: group}
		_, err := goes.ChangeMembers(t.Context(), coord.MemberChange{Action: coord.JoinGroup, Group: former})
		require.Equal(t, "group_id", fault.FieldOf(err))
		_, err = goes.ChangeMembers(t.Context(), coord.MemberChange{Action: coord.JoinGroup, Group: "x"})
		require.ErrorIs(t, err, fault.Invalid)
		_, err = goes.ChangeMembers(t.Context(), order)
		require.ErrorIs(t, err, fault.Conflict)
		require.Equal(t, "force", fault.FieldOf(err))
		require.ErrorContains(t, err, "1 locks, 1 leases and 0 keys")
		order.Force, order.DryRun = true, true
		done, err := goes.ChangeMembers(t.Context(), order)
		require.NoError(t, err)
		require.False(t, done.Done)
		require.Contains(t, done.Steps[0], "end 1 locks")
		require.Equal(t, "1 of 1 voter: no failure", done.After)
		order.DryRun = false
		done, err = goes.ChangeMembers(t.Context(), order)
		require.NoError(t, err)
		require.True(t, done.Done)
		require.GreaterOrEqual(t, done.Revision, coord.Revision(lost))

		time.Sleep(time.Minute) // nobody goes over before the survivor is raised
		require.Len(t, w.groups(), 2)
		require.Contains(t, goes.message(condition.OtherGroup), "is frozen")
		_, _, err = ops.Of(goes).Do(t.Context(), ops.Command{Owner: "~" + goes.id(), Op: &ops.LeaseGrant{TTL: 10_000}})
		require.ErrorIs(t, err, fault.Unavailable)
		again, err := goes.ChangeMembers(t.Context(), order)
		require.NoError(t, err)
		require.Equal(t, done.Revision, again.Revision, "the final revision")
		raise := coord.MemberChange{Action: coord.RaiseGroup, Group: former, Revision: done.Revision}
		raised, err := stays.ChangeMembers(t.Context(), raise)
		require.NoError(t, err)
		require.GreaterOrEqual(t, raised.Revision, done.Revision)
		w.oneGroup(group)
		r, _, err := ops.Of(goes).KeepAlive(t.Context(), "~"+goes.id(), []coord.LeaseID{ended})
		require.True(t, err != nil || r[0].TTL <= 0, "the holder learns that it lost")
		_, next := goes.holds(t, "b")
		require.Greater(t, next, max(kept, lost))
	})
}

// TestMergeSurvivesCrashes: peers that end between any two steps of a merge go on from there, and the operator's orders can be
// repeated at each of them.
func TestMergeSurvivesCrashes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := twoGroups(t, 1, 3)
		stays, late := w.peers[0], 3
		stays.holds(t, "a")
		w.link(1, 0)
		_, lost := w.peers[2].holds(t, "b")
		w.await("the other group is known", func() bool { return w.peers[1].troubled(condition.OtherGroup) })
		if s, err := w.peers[1].Group(t.Context()); err != nil || s.Leader == w.peers[late].id() {
			late = 2
		}
		other := 5 - late
		w.peers[late].stop(t) // never applies the Dissolve
		group, former := stays.ID(), w.peers[1].ID()
		restart := func(all ...int) {
			for _, i := range all {
				w.peers[i].stop(t)
			}
			for _, i := range all {
				w.start(i, unlisted())
			}
			w.link(1, 0)
			w.await("a leader of each group", func() bool {
				for i, p := range w.peers {
					if i != late {
						if s, err := p.Group(t.Context()); err != nil || s.Leader == "" {
							return false
						}
					}
				}
				return true
			})
		}
		var done coord.MemberOutcome
		freeze := func() {
			w.await("the order", func() (ok bool) {
				var err error
				done, err = w.peers[other].ChangeMembers(t.Context(), coord.MemberChange{Action: coord.JoinGroup, Group: group, Force: true})
				return err == nil
			})
		}
		freeze()
		final := done.Revision
		restart(1, other) // between freezing and raising
		require.Equal(t, former, w.peers[1].ID())
		freeze()
		require.Equal(t, final, done.Revision)
		_, err := stays.ChangeMembers(t.Context(), coord.MemberChange{Action: coord.RaiseGroup, Group: former, Revision: final})
		require.NoError(t, err)
		restart(0, 1, other) // between raising and going over
		w.oneGroup(group)

		w.start(late, unlisted())
		w.link(late, 0)
		w.oneGroup(group)
		_, next := w.peers[late].holds(t, "b")
		require.Greater(t, next, lost)
		w.peers[late].stop(t)
		w.start(late, unlisted())
		w.oneGroup(group)
	})
}

// TestMemberWithoutTheEndLeaves: a member that missed the end of its group follows the others.
func TestMemberWithoutTheEndLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := twoGroups(t, 1, 3)
		w.peers[0].holds(t, "a")
		for range 40 {
			id, _ := w.peers[0].holds(t, "b")
			w.peers[0].revoke(t, id)
		}
		w.peers[3].stop(t)
		w.link(1, 0)
		w.oneGroup(w.peers[0].ID())
		w.start(3, unlisted())
		w.link(3, 0)
		w.oneGroup(w.peers[0].ID())
	})
}

// TestSuccessorGone: a frozen group whose successor ended before it was raised refuses all, says what to do, and an operator
// resumes it.
func TestSuccessorGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := twoGroups(t, 1, 1)
		gone, left := w.peers[0], w.peers[1]
		gone.holds(t, "a")
		_, before := left.holds(t, "a")
		w.link(0, 1)
		w.await("the other group is known", func() bool { return left.troubled(condition.OtherGroup) })
		resume := coord.MemberChange{Action: coord.ResumeGroup}
		_, err := left.ChangeMembers(t.Context(), resume)
		require.ErrorContains(t, err, "the group lives")
		_, err = left.ChangeMembers(t.Context(), coord.MemberChange{Action: coord.JoinGroup, Group: gone.ID(), Force: true})
		require.NoError(t, err)
		gone.stop(t)
		time.Sleep(2 * time.Minute)
		_, _, err = ops.Of(left).Do(t.Context(), ops.Command{Owner: left.id(), Op: &ops.LeaseGrant{TTL: 10_000}})
		require.ErrorIs(t, err, fault.Unavailable)
		require.ErrorContains(t, err, "dissolved")
		require.Contains(t, left.message(condition.OtherGroup), "blackholed group resume")
		_, err = left.ChangeMembers(t.Context(), resume)
		require.Equal(t, "force", fault.FieldOf(err))
		resume.Force = true
		_, err = left.ChangeMembers(t.Context(), resume)
		require.NoError(t, err)
		_, after := left.holds(t, "a")
		require.Greater(t, after, before+1<<40)
		w.await("nobody complains", func() bool { return !left.troubled(condition.OtherGroup) })
	})
}
