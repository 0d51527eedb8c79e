package merge

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/coord"
)

func id(b byte) coord.GroupID { return coord.GroupID(bytes.Repeat([]byte{b}, coord.GroupIDBytes)) }

func living(b byte, data bool, voters int, revision coord.Revision) Group {
	return Group{ID: id(b), UserData: data, Voters: voters, Revision: revision}
}

func over(b byte, successor byte, final coord.Revision, absorbed ...coord.GroupID) Group {
	return Group{ID: id(b), Over: coord.Dissolution{Successor: id(successor), Index: 9, Final: final}, Absorbed: absorbed}
}

func TestSteps(t *testing.T) {
	for _, c := range []struct {
		name  string
		own   Group
		known []Group
		want  Action
		group coord.GroupID
	}{
		{"alone", living(1, false, 1, 5), nil, Rest, ""},
		{"its own description", living(1, false, 1, 5), []Group{living(1, true, 3, 9)}, Rest, ""},
		{"user data stays", living(1, true, 1, 5), []Group{living(2, false, 3, 900)}, Wait, ""},
		{"no user data goes", living(1, false, 3, 900), []Group{living(2, true, 1, 5)}, Dissolve, id(2)},
		{"both have user data", living(1, true, 3, 900), []Group{living(2, true, 1, 5)}, Contest, id(2)},
		{"fewer voters go", living(1, false, 1, 900), []Group{living(2, false, 3, 5)}, Dissolve, id(2)},
		{"a smaller revision goes", living(2, false, 1, 5), []Group{living(1, false, 1, 9)}, Dissolve, id(1)},
		{"a smaller id goes", living(1, false, 1, 5), []Group{living(2, false, 1, 5)}, Dissolve, id(2)},
		{"to the strongest", living(1, false, 1, 5), []Group{living(3, false, 1, 6), living(2, true, 1, 1)}, Dissolve, id(2)},
		{"never to a dissolved one", living(1, false, 1, 5), []Group{over(2, 3, 9)}, Wait, ""},
		{"never to an absorbed one", Group{ID: id(1), Absorbed: []coord.GroupID{id(2)}}, []Group{living(2, true, 3, 9)}, Wait, ""},
		{"never to one that another group absorbed", living(1, false, 1, 5), []Group{living(2, true, 3, 9), {ID: id(3), Absorbed: []coord.GroupID{id(2)}}}, Wait, ""},
		{"ended without this member", living(1, true, 3, 5), []Group{{ID: id(2), Absorbed: []coord.GroupID{id(1)}}}, Leave, id(2)},
		{"its absorber is frozen", living(1, false, 3, 5), []Group{over(2, 3, 9, id(1))}, Wait, ""},

		{"dissolved, successor unheard", over(1, 2, 7), nil, Wait, ""},
		{"dissolved, successor lives", over(1, 2, 7), []Group{living(2, false, 1, 1)}, Raise, id(2)},
		{"the successor gave itself up", over(1, 2, 7), []Group{over(2, 3, 8), living(3, false, 1, 1)}, Raise, id(3)},
		{"nobody is left of the successor", over(1, 2, 7), []Group{{ID: id(3), Absorbed: []coord.GroupID{id(2)}}}, Raise, id(3)},
		{"a living absorber is preferred", over(1, 2, 7), []Group{over(3, 4, 9, id(2)), {ID: id(5), Absorbed: []coord.GroupID{id(2)}}}, Raise, id(5)},
		{"an old word of a successor that went on", over(1, 2, 7), []Group{living(2, true, 1, 1), {ID: id(3), Absorbed: []coord.GroupID{id(2)}}}, Raise, id(3)},
		{"a circle, first", over(1, 2, 7), []Group{over(2, 1, 8)}, Resume, ""},
		{"a circle, second", over(2, 1, 8), []Group{over(1, 2, 7)}, Wait, ""},
		{"a circle of others", over(1, 2, 7), []Group{over(2, 3, 8), over(3, 2, 8)}, Wait, ""},
		// 1 went to 3, whose members absorbed it; 3 went to 2, and 2 to the old word of 1.
		{"a circle over a group that is gone", over(2, 1, 8), []Group{over(3, 2, 9, id(1))}, Resume, ""},
		{"the same, from its absorber", over(3, 2, 9, id(1)), []Group{over(2, 1, 8)}, Wait, ""},
		{"the same, with one member left of it", over(1, 3, 7), []Group{over(2, 1, 8), over(3, 2, 9, id(1))}, Wait, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := new(Member).Next(c.own, c.known)
			require.Equal(t, c.want, got.Action)
			require.Equal(t, c.group, got.Group)
		})
	}
}

// A member leaves only after the answer to the raise of the Dissolve that is in force.
func TestMemberLeavesAfterTheRaise(t *testing.T) {
	var m Member
	own, known := over(1, 2, 7, id(4)), []Group{living(2, false, 1, 1)}
	step := m.Next(own, known)
	require.Equal(t, coord.RaiseRevision{To: 7, Absorbed: []coord.GroupID{id(4), id(1)}}, step.Raise)
	m.Acknowledged(id(2), 8)
	require.Equal(t, Raise, m.Next(own, known).Action, "the answer to an earlier Dissolve")
	m.Acknowledged(id(2), 9)
	require.Equal(t, Step{Action: Leave, Group: id(2)}, m.Next(own, known))
}

// The group that resumes is above all tokens of the circle, and knows who comes to it.
func TestResumeRaises(t *testing.T) {
	step := new(Member).Next(over(1, 2, 7), []Group{over(2, 3, 80), over(3, 1, 8, id(5))})
	require.Equal(t, coord.RaiseRevision{To: 80, Absorbed: []coord.GroupID{id(2), id(3), id(5)}, Resume: 9}, step.Raise)
}

// Two living groups that describe each other never both go, and never both stay unless both have user data.
func TestExactlyOneGoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(b byte) Group {
			return living(b, rapid.Bool().Draw(t, "data"), rapid.IntRange(1, 3).Draw(t, "voters"), coord.Revision(rapid.IntRange(1, 3).Draw(t, "revision")))
		}
		a, b := draw(1), draw(2)
		goes := func(own, other Group) bool {
			return new(Member).Next(own, []Group{other}).Action == Dissolve
		}
		if a.UserData && b.UserData {
			require.False(t, goes(a, b) || goes(b, a))
			return
		}
		require.NotEqual(t, goes(a, b), goes(b, a))
	})
}

// Of any circle of dissolved groups exactly one resumes.
func TestOneOfACircleResumes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 6).Draw(t, "groups")
		order := rapid.Permutation([]int{1, 2, 3, 4, 5, 6}[:n]).Draw(t, "order")
		var all []Group
		for i, b := range order {
			all = append(all, over(byte(b), byte(order[(i+1)%n]), 5))
		}
		resumed := 0
		for _, own := range all {
			if new(Member).Next(own, all).Action == Resume {
				resumed++
			}
		}
		require.Equal(t, 1, resumed)
	})
}
