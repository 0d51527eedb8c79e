package membership_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/membership"
)

func at(prefix string, m membership.Member) membership.Member { m.Prefix = prefix; return m }
func from(prefix string, p membership.Peer) membership.Peer   { p.Prefix = prefix; return p }

// TestSpread: voters and learners come from different prefixes where there is a choice, and a crowd of voters is spread once the
// group is quiet. The leader is member 1.
func TestSpread(t *testing.T) {
	type change = membership.Change
	type peers = []membership.Peer
	crowd := members(at("a", voter(1, 0)), at("a", voter(2, 0)), at("b", voter(3, 0)))
	with := func(all []membership.Member, more ...membership.Member) []membership.Member {
		return append(all[:3:3], more...)
	}
	for _, c := range []struct {
		name       string
		members    []membership.Member
		candidates peers
		unreached  map[uint64]string
		want       change
	}{
		{"the less crowded candidate", members(at("a", voter(1, 0))), peers{from("a", peer(2)), from("b", peer(3))}, nil, change{Add: from("b", peer(3))}},
		{"of equals the first", members(at("a", voter(1, 0))), peers{from("c", peer(2)), from("b", peer(3))}, nil, change{Add: from("c", peer(2))}},
		{"an unknown prefix is shared with nobody", members(voter(1, 0)), peers{peer(2), peer(3)}, nil, change{Add: peer(2)}},
		{"one out of reach is no choice", members(at("a", voter(1, 0))), peers{from("b", peer(2)), from("a", peer(3))}, map[uint64]string{2: "no route"}, change{Add: from("a", peer(3))}},
		{"nobody is in reach", members(at("a", voter(1, 0))), peers{from("b", peer(2))}, map[uint64]string{2: "no route"}, change{}},
		{"growth takes both prefixes", members(at("a", voter(1, 0)), at("b", learner(2, 0, 10*m)), at("b", learner(3, 0, 10*m)), at("c", learner(4, 0, m))), nil, nil, change{Promote: []uint64{2, 4}}},
		{"growth takes what there is", members(at("a", voter(1, 0)), at("a", learner(2, 0, 10*m)), at("b", learner(3, 0, 4*s)), at("a", learner(4, 0, m))), nil, nil, change{Promote: []uint64{2, 4}}},
		{"the successor of a lost voter", members(at("a", voter(1, 0)), at("b", voter(2, 0)), at("c", voter(3, 11*m)), at("b", learner(4, 0, 10*m)), at("c", learner(5, 0, m))), nil, nil, change{Promote: []uint64{5}, Remove: 3}},
		{"a crowd is spread", with(crowd, at("c", learner(4, 0, 10*m))), nil, nil, change{Promote: []uint64{4}, Remove: 2}},
		{"a new learner must be steady", with(crowd, at("c", learner(4, 0, 9*m))), nil, nil, change{}},
		{"another crowd is no gain", with(crowd, at("b", learner(4, 0, 10*m))), nil, nil, change{}},
		{"a learner elsewhere is wanted", with(crowd, at("a", learner(4, 0, 10*m))), peers{from("b", peer(5)), from("c", peer(6))}, nil, change{Add: from("c", peer(6)), Remove: 4}},
		{"one out of reach is not wanted", with(crowd, at("a", learner(4, 0, 10*m))), peers{from("c", peer(6))}, map[uint64]string{6: "no route"}, change{}},
		{"nobody is elsewhere", members(at("a", voter(1, 0)), at("a", voter(2, 0)), at("a", voter(3, 0)), at("a", learner(4, 0, 10*m))), peers{from("a", peer(5))}, nil, change{}},
		{"a spread group stays", members(at("a", voter(1, 0)), at("b", voter(2, 0)), at("c", voter(3, 0)), at("d", learner(4, 0, 10*m))), peers{from("e", peer(5))}, nil, change{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			state := membership.State{Leader: 1, Members: c.members, Candidates: c.candidates, Unreached: c.unreached, Quiet: 10 * m}
			got, _ := membership.DefaultConfig().Decide(state)
			require.Equal(t, c.want, got)
		})
	}
	state := membership.State{Leader: 1, Members: with(crowd, at("c", learner(4, 0, 10*m))), Quiet: 10*m - 1}
	_, ok := membership.DefaultConfig().Decide(state)
	require.False(t, ok, "it is not urgent")
}
