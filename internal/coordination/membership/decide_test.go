package membership_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/membership"
)

const (
	s = time.Second
	m = time.Minute
)

func peer(id uint64) membership.Peer { return membership.Peer{ID: id, Name: fmt.Sprint("peer-", id)} }

func voter(id uint64, unseen time.Duration) membership.Member {
	return membership.Member{Peer: peer(id), Voter: true, Unseen: unseen, CaughtUp: unseen < 5*s, Steady: time.Hour}
}

func learner(id uint64, unseen, steady time.Duration) membership.Member {
	return membership.Member{Peer: peer(id), Unseen: unseen, CaughtUp: true, Steady: steady}
}

func members(all ...membership.Member) []membership.Member { return all }

func named(m membership.Member, name string) membership.Member { m.Name = name; return m }
func barred(m membership.Member) membership.Member             { m.Barred = true; return m }
func behind(m membership.Member) membership.Member             { m.CaughtUp = false; return m }

// The leader is member 1 everywhere.
func TestDecide(t *testing.T) {
	type change = membership.Change
	three := func(unseen2, unseen3 time.Duration, rest ...membership.Member) []membership.Member {
		return append(members(voter(1, 0), voter(2, unseen2), voter(3, unseen3)), rest...)
	}
	for _, c := range []struct {
		name       string
		members    []membership.Member
		candidates []membership.Peer
		want       change
	}{
		{"all is well", three(s, s, learner(4, 0, m)), []membership.Peer{peer(5)}, change{}},
		{"a learner is wanted", three(s, s), []membership.Peer{peer(2), peer(5), peer(6)}, change{Add: peer(5)}},
		{"nobody can be one", three(s, s), []membership.Peer{peer(2)}, change{}},
		{"a voter is off", three(9*m, s, learner(4, 0, m)), nil, change{}},
		{"a voter is lost", three(10*m, s, learner(4, 0, m)), nil, change{Promote: []uint64{4}, Remove: 2}},
		{"a voter is lost, its stand-in is behind", three(10*m, s, behind(learner(4, 0, m))), nil, change{}},
		{"a voter is lost, its stand-in is new", three(10*m, s, learner(4, 0, 29*s)), nil, change{}},
		{"a voter is lost, its stand-in is off", three(10*m, s, learner(4, 6*s, m)), nil, change{}},
		{"a voter is lost, its stand-in is barred", three(10*m, s, barred(learner(4, 0, m))), nil, change{Remove: 4}},
		{"a voter is lost, there is no learner", three(10*m, s), []membership.Peer{peer(4)}, change{Add: peer(4)}},
		{"the longest unseen goes first", append(three(11*m, 12*m, learner(6, 0, m)), voter(4, s), voter(5, s)), nil, change{Promote: []uint64{6}, Remove: 3}},
		{"the steadiest comes first", three(11*m, 0, learner(4, 0, m), learner(5, 0, 2*m)), nil, change{Promote: []uint64{5}, Remove: 2}},
		{"no quorum", three(11*m, 12*m, learner(4, 0, m)), []membership.Peer{peer(5)}, change{}},

		{"a voter's peer is back with an empty disk", three(31*s, s), []membership.Peer{{ID: 7, Name: "peer-2"}}, change{Add: membership.Peer{ID: 7, Name: "peer-2"}}},
		{"an old id of a member is about", three(s, s), []membership.Peer{{ID: 7, Name: "peer-2"}}, change{}},
		{"it may yet be the member", three(29*s, s), []membership.Peer{{ID: 7, Name: "peer-2"}}, change{}},
		{"it replaces itself", three(31*s, s, named(learner(7, 0, m), "peer-2")), nil, change{Promote: []uint64{7}, Remove: 2}},

		{"a voter is barred", append(three(0, 0, learner(4, 0, m))[:2], barred(voter(3, 0)), learner(4, 0, m)), nil, change{Promote: []uint64{4}, Remove: 3}},
		{"the lost go before the barred", members(voter(1, 0), voter(2, 11*m), barred(voter(3, 0)), learner(4, 0, m)), nil, change{Promote: []uint64{4}, Remove: 2}},
		{"the leader is barred", members(barred(voter(1, 0)), voter(2, 2*s), voter(3, s), learner(4, 0, m)), nil, change{Transfer: 3}},
		{"the leader is barred, the next is off", members(barred(voter(1, 0)), voter(2, 2*s), voter(3, 6*s), learner(4, 0, m)), nil, change{Transfer: 2}},
		{"the leader is barred, nobody can replace it", members(barred(voter(1, 0)), voter(2, 0), voter(3, 0)), nil, change{}},
		{"the leader is barred and alone", members(barred(voter(1, 0)), learner(4, 0, m)), nil, change{}},

		{"a learner is lost", three(s, s, learner(4, 10*m, m)), []membership.Peer{peer(5)}, change{Add: peer(5), Remove: 4}},
		{"a learner is lost and nobody else there", three(s, s, learner(4, 10*m, m)), nil, change{}},
		{"a learner is off", three(s, s, learner(4, 9*m, m)), []membership.Peer{peer(5)}, change{}},
		{"a learner does not get closer", three(s, s, behind(learner(4, 0, 10*m))), []membership.Peer{peer(5)}, change{Add: peer(5), Remove: 4}},
		{"a learner needs time", three(s, s, behind(learner(4, 0, 9*m))), []membership.Peer{peer(5)}, change{}},
		{"a learner is barred", three(s, s, barred(learner(4, 0, m))), []membership.Peer{peer(5)}, change{Add: peer(5), Remove: 4}},
		{"a learner is too many", three(s, s, learner(4, 0, m), learner(5, 0, 2*m)), nil, change{Remove: 4}},

		{"one alone wants three more", members(voter(1, 0), learner(2, 0, s), learner(3, 0, s)), []membership.Peer{peer(4)}, change{Add: peer(4)}},
		{"one becomes three", members(voter(1, 0), learner(2, 0, 5*s), learner(3, 0, 10*m)), nil, change{Promote: []uint64{3, 2}}},
		{"one does not become two", members(voter(1, 0), learner(2, 0, 10*m)), nil, change{}},
		{"growth needs steady learners", members(voter(1, 0), learner(2, 0, 4*s), learner(3, 0, 10*m)), nil, change{}},
		{"growth needs living learners", members(voter(1, 0), learner(2, 6*s, m), learner(3, 0, 10*m)), nil, change{}},
		{"two become three", members(voter(1, 0), voter(2, 0), learner(3, 0, 10*m)), nil, change{Promote: []uint64{3}}},
		{"five stay five", append(three(0, 0), voter(4, 0), voter(5, 0), learner(6, 0, m)), nil, change{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			state := membership.State{Leader: 1, Members: c.members, Candidates: c.candidates, Quiet: m}
			got, ok := membership.DefaultConfig().Decide(state)
			require.Equal(t, c.want, got)
			require.Equal(t, got.Remove+got.Add.ID+got.Transfer > 0 || got.Promote != nil, ok)

			state.Quiet = s - 1
			_, ok = membership.DefaultConfig().Decide(state)
			require.False(t, ok, "too soon after the last")
			state.Quiet, state.Changing = m, true
			_, ok = membership.DefaultConfig().Decide(state)
			require.False(t, ok, "during another")
		})
	}
}

// TestGrowthIsQuick: within a minute of the last change, a group only grows to the wanted number of voters.
func TestGrowthIsQuick(t *testing.T) {
	type change = membership.Change
	three := members(voter(1, 0), voter(2, 0), voter(3, 0))
	for _, c := range []struct {
		name       string
		members    []membership.Member
		candidates []membership.Peer
		want       change
	}{
		{"two become three", members(voter(1, 0), voter(2, 0), learner(3, 0, 5*s)), nil, change{Promote: []uint64{3}}},
		{"two want a third", members(voter(1, 0), voter(2, 0)), []membership.Peer{peer(3)}, change{Add: peer(3)}},
		{"one wants two", members(voter(1, 0), learner(2, 0, s)), []membership.Peer{peer(3)}, change{Add: peer(3)}},
		{"no more than that", members(voter(1, 0), voter(2, 0), learner(3, 0, s)), []membership.Peer{peer(4)}, change{}},
		{"three are enough", three, []membership.Peer{peer(4)}, change{}},
		{"a swap waits", append(members(voter(1, 0), voter(2, 0), barred(voter(3, 0))), learner(4, 0, m)), nil, change{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			state := membership.State{Leader: 1, Members: c.members, Candidates: c.candidates, Quiet: 5 * s}
			got, ok := membership.DefaultConfig().Decide(state)
			require.Equal(t, c.want, got)
			require.Equal(t, got.Add.ID > 0 || got.Promote != nil, ok)

			state.Quiet = s
			soon, _ := membership.DefaultConfig().Decide(state)
			require.Equal(t, change{Add: c.want.Add}, soon, "a learner changes no quorum, a voter does")
		})
	}
}

func TestTracker(t *testing.T) {
	tracker := membership.NewTracker(1)
	var got []membership.Member
	observe := func(at time.Duration, commit, match uint64, active bool) membership.Member {
		got = tracker.Observe(at, commit, []membership.Progress{
			{Peer: peer(1), Voter: true, Match: commit},
			{Peer: peer(2), Match: match, Active: active},
		})
		return got[1]
	}
	require.Equal(t, membership.Member{Peer: peer(2)}, observe(100*s, 50, 0, false))
	require.Equal(t, membership.Member{Peer: peer(1), Voter: true, CaughtUp: true}, got[0])
	require.Equal(t, s/2, observe(100*s+s/2, 60, 30, false).Unseen)
	require.Zero(t, observe(101*s, 70, 49, true).Unseen)
	require.True(t, observe(101*s, 70, 50, true).CaughtUp, "it has what was committed a second ago")
	require.False(t, observe(102*s, 80, 69, true).CaughtUp)
	require.True(t, observe(103*s, 90, 80, true).CaughtUp)
	last := observe(104*s, 90, 90, false)
	require.Equal(t, membership.Member{Peer: peer(2), CaughtUp: true, Steady: s, Unseen: s}, last)
	require.Zero(t, got[0].Unseen, "the leader sees itself")

	tracker.Observe(105*s, 90, []membership.Progress{{Peer: peer(1)}})
	require.Zero(t, observe(106*s, 90, 0, false).Unseen, "one removed and added is new")
}
