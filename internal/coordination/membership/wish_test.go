package membership_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/membership"
	"github.com/blackhole/blackhole/pkg/fault"
)

// The leader is member 1 everywhere.
func TestPlan(t *testing.T) {
	type change = membership.Change
	three := func(unseen2, unseen3 time.Duration, rest ...membership.Member) []membership.Member {
		return append(members(voter(1, 0), voter(2, unseen2), voter(3, unseen3)), rest...)
	}
	order := func(a coord.MemberAction, peers ...uint64) coord.MemberChange {
		c := coord.MemberChange{Action: a}
		for i, id := range peers {
			*[]*string{&c.Peer, &c.With}[i] = fmt.Sprint("peer-", id)
		}
		return c
	}
	forced := func(c coord.MemberChange) coord.MemberChange { c.Force = true; return c }
	for _, c := range []struct {
		name     string
		members  []membership.Member
		order    coord.MemberChange
		refused  error
		field    string
		want     change
		standing coord.Standing
		after    string
	}{
		{"a candidate is added", three(s, s), order(coord.AddMember, 5), nil, "", change{Add: peer(5)}, coord.Wanted, "3 of 3 voters: 1 failure"},
		{"a member is not added again", three(s, s), order(coord.AddMember, 2), fault.Exists, "peer_id", change{}, "", ""},
		{"a peer that offers nothing", three(s, s), order(coord.AddMember, 9), fault.NotFound, "peer_id", change{}, "", ""},

		{"a voter is removed", three(s, s), order(coord.RemoveMember, 3), nil, "", change{Remove: 3}, coord.Barred, "2 of 2 voters: no failure"},
		{"a dead voter is removed", three(s, time.Hour), order(coord.RemoveMember, 3), nil, "", change{Remove: 3}, coord.Barred, "2 of 2 voters: no failure"},
		{"a living voter beside a dead one", three(s, time.Hour), order(coord.RemoveMember, 2), fault.Conflict, "peer_id", change{}, "", ""},
		{"by force", three(s, time.Hour), forced(order(coord.RemoveMember, 2)), nil, "", change{Remove: 2}, coord.Barred, "1 of 2 voters: no majority"},
		{"the leader hands over first", three(s, 2*s), order(coord.RemoveMember, 1), nil, "", change{Transfer: 2}, coord.Barred, "3 of 3 voters: 1 failure"},
		{"the leader has nobody to hand over to", members(voter(1, 0), behind(voter(2, s))), order(coord.RemoveMember, 1), fault.Conflict, "peer_id", change{}, "", ""},
		{"the only voter stays", members(voter(1, 0), learner(2, 0, m)), forced(order(coord.RemoveMember, 1)), fault.Conflict, "peer_id", change{}, "", ""},
		{"a learner is removed", three(s, s, learner(4, 0, m)), order(coord.RemoveMember, 4), nil, "", change{Remove: 4}, coord.Barred, "3 of 3 voters: 1 failure"},
		{"a candidate is barred", three(s, s), order(coord.RemoveMember, 5), nil, "", change{}, coord.Barred, "3 of 3 voters: 1 failure"},
		{"a stranger is kept out by force", three(s, s), forced(order(coord.RemoveMember, 9)), nil, "", change{}, coord.Barred, "3 of 3 voters: 1 failure"},
		{"a stranger is not removed", three(s, s), order(coord.RemoveMember, 9), fault.NotFound, "peer_id", change{}, "", ""},

		{"a learner is promoted", members(voter(1, 0), learner(2, 0, 0)), order(coord.PromoteMember, 2), nil, "", change{Promote: []uint64{2}}, "", "2 of 2 voters: no failure"},
		{"a silent learner is not", members(voter(1, 0), learner(2, m, m)), order(coord.PromoteMember, 2), fault.Conflict, "peer_id", change{}, "", ""},
		{"a late learner is not", members(voter(1, 0), behind(learner(2, 0, m))), order(coord.PromoteMember, 2), fault.Conflict, "peer_id", change{}, "", ""},
		{"a late learner by force", members(voter(1, 0), behind(learner(2, 0, m))), forced(order(coord.PromoteMember, 2)), nil, "", change{Promote: []uint64{2}}, "", "2 of 2 voters: no failure"},
		{"a voter is not promoted", three(s, s), order(coord.PromoteMember, 2), fault.Exists, "peer_id", change{}, "", ""},
		{"a stranger is not promoted", three(s, s), order(coord.PromoteMember, 5), fault.NotFound, "peer_id", change{}, "", ""},

		{"a voter is replaced", three(s, m, learner(4, 0, m)), order(coord.ReplaceMember, 3, 4), nil, "", change{Promote: []uint64{4}, Remove: 3}, "", "3 of 3 voters: 1 failure"},
		{"by a learner only", three(s, m), order(coord.ReplaceMember, 3, 2), fault.NotFound, "with", change{}, "", ""},
		{"a learner is not replaced", three(s, s, learner(4, 0, m)), order(coord.ReplaceMember, 4, 4), fault.NotFound, "peer_id", change{}, "", ""},
		{"the leader is replaced", three(2*s, s, learner(4, 0, m)), order(coord.ReplaceMember, 1, 4), nil, "", change{Transfer: 3}, "", "3 of 3 voters: 1 failure"},

		{"the leadership moves", three(s, s), order(coord.TransferLeadership, 2), nil, "", change{Transfer: 2}, "", "3 of 3 voters: 1 failure"},
		{"not to the leader", three(s, s), order(coord.TransferLeadership, 1), fault.Exists, "peer_id", change{}, "", ""},
		{"not to a silent voter", three(m, s), order(coord.TransferLeadership, 2), fault.Conflict, "peer_id", change{}, "", ""},
		{"not to a learner", three(s, s, learner(4, 0, m)), order(coord.TransferLeadership, 4), fault.NotFound, "peer_id", change{}, "", ""},

		{"nothing without a majority", three(m, m), forced(order(coord.RemoveMember, 3)), fault.Conflict, "", change{}, "", ""},
		{"no other order", three(s, s), order("dissolve", 2), fault.Invalid, "action", change{}, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			state := membership.State{Leader: 1, Members: c.members, Candidates: []membership.Peer{peer(5)}}
			plan, err := membership.DefaultConfig().Plan(state, c.order)
			if c.refused != nil {
				require.ErrorIs(t, err, c.refused)
				require.Equal(t, c.field, fault.FieldOf(err))
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, plan.Change)
			require.Equal(t, c.standing, plan.Standing)
			require.Equal(t, c.after, plan.After.String())
			state.Changing = true
			_, err = membership.DefaultConfig().Plan(state, c.order)
			require.ErrorIs(t, err, fault.Unavailable)
		})
	}
}

// Without force, no order leaves the group without a majority, and a group always keeps a voter.
func TestPlansAreSafe(t *testing.T) {
	unseen := rapid.SampledFrom([]time.Duration{0, 0, s, 4 * s, 5 * s, time.Hour})
	actions := []coord.MemberAction{coord.AddMember, coord.RemoveMember, coord.PromoteMember, coord.ReplaceMember, coord.TransferLeadership}
	planned := 0
	rapid.Check(t, func(t *rapid.T) {
		all := members(voter(1, 0))
		for id := range uint64(rapid.IntRange(0, 6).Draw(t, "others")) {
			one := learner(id+2, unseen.Draw(t, "unseen"), m)
			one.Voter, one.CaughtUp = rapid.Bool().Draw(t, "voter"), rapid.IntRange(0, 3).Draw(t, "behind") > 0
			all = append(all, one)
		}
		peers := rapid.Uint64Range(1, 9)
		order := coord.MemberChange{
			Action: rapid.SampledFrom(actions).Draw(t, "action"),
			Peer:   fmt.Sprint("peer-", peers.Draw(t, "peer")), With: fmt.Sprint("peer-", peers.Draw(t, "with")),
			Force: rapid.IntRange(0, 3).Draw(t, "force") == 0,
		}
		state := membership.State{Leader: 1, Members: all, Candidates: []membership.Peer{peer(9)}}
		plan, err := membership.DefaultConfig().Plan(state, order)
		if err != nil {
			return
		}
		planned++
		after := apply(all, plan.Change)
		require.NotZero(t, count(after, votes), "no voter is left")
		require.NotEqual(t, uint64(1), plan.Change.Remove, "the leader removes itself")
		require.Equal(t, count(after, votesNow), plan.After.Active)
		require.Equal(t, count(after, votes), plan.After.Voters)
		require.True(t, order.Force || margin(after) >= 0, "no majority is left")
	})
	require.True(t, planned > 0 || testing.Short())
}

// TestWantedStays: the leader keeps a superfluous learner that an operator added, and removes the other one.
func TestWantedStays(t *testing.T) {
	wanted := learner(5, 0, s)
	wanted.Wanted = true
	all := members(voter(1, 0), voter(2, 0), voter(3, 0), learner(4, 0, m), wanted)
	got, ok := membership.DefaultConfig().Decide(membership.State{Leader: 1, Members: all, Quiet: m})
	require.True(t, ok)
	require.Equal(t, membership.Change{Remove: 4}, got)
}
