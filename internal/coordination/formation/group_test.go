package formation

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/platform/condition"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

func id(b byte) machine.GroupID {
	return machine.GroupID(bytes.Repeat([]byte{b}, machine.GroupIDBytes))
}

// TestNext has one row for each rule.
func TestNext(t *testing.T) {
	over := machine.Dissolution{Successor: id(2), Index: 9, Final: 5}
	for name, c := range map[string]struct {
		own       Group
		others    []Group
		abandoned bool
		want      Step
	}{
		"nobody":                  {Group{ID: id(1)}, nil, false, Step{}},
		"only itself":             {Group{ID: id(1)}, []Group{{ID: id(1), Reached: 9}}, false, Step{}},
		"below an other one":      {Group{ID: id(1), Revision: 5}, []Group{{ID: id(2), Reached: 6}}, false, Step{Dissolve, id(2)}},
		"the furthest one":        {Group{ID: id(1), Revision: 5}, []Group{{ID: id(2), Reached: 6}, {ID: id(3), Reached: 7}}, false, Step{Dissolve, id(3)}},
		"a tie":                   {Group{ID: id(2), Revision: 5}, []Group{{ID: id(1), Reached: 5}}, false, Step{Dissolve, id(1)}},
		"a tie, the other way":    {Group{ID: id(1), Revision: 5, Reached: 5}, []Group{{ID: id(2), Revision: 5, Reached: 5}}, false, Step{Action: Wait}},
		"a tie with founders":     {Group{ID: id(1), Revision: 5, Reached: 5}, []Group{{ID: id(2), Revision: 5, Reached: 5, Listed: true}}, false, Step{Dissolve, id(2)}},
		"a claim waits there":     {Group{ID: id(1), Revision: 5, Reached: 5}, []Group{{ID: id(2), Revision: 9, Reached: 4, UserData: true}}, false, Step{Contest, id(2)}},
		"both with data":          {Group{ID: id(1), UserData: true}, []Group{{ID: id(2), Reached: 6, UserData: true}}, false, Step{Contest, id(2)}},
		"founders":                {Group{ID: id(1), Listed: true}, []Group{{ID: id(2), Reached: 6, UserData: true}}, false, Step{Contest, id(2)}},
		"the other one gives way": {Group{ID: id(1), Reached: 9, UserData: true}, []Group{{ID: id(2), Revision: 6, Reached: 6}}, false, Step{Action: Wait}},
		"the other one ends":      {Group{ID: id(1), UserData: true}, []Group{{ID: id(2), Over: over}}, false, Step{Action: Wait}},
		"its peers went over":     {Group{ID: id(1), UserData: true}, []Group{{ID: id(2), Former: []machine.GroupID{id(1)}}}, true, Step{Leave, id(2)}},
		"they did, it lives":      {Group{ID: id(1), UserData: true}, []Group{{ID: id(2), Former: []machine.GroupID{id(1)}}}, false, Step{Action: Wait}},

		"released":           {Group{ID: id(1), Over: over}, []Group{{ID: id(2), Reached: 9}}, false, Step{Leave, id(2)}},
		"released, nobody":   {Group{ID: id(1), Over: over}, nil, false, Step{Action: Wait}},
		"released, followed": {Group{ID: id(1), Over: over}, []Group{{ID: id(3), Former: []machine.GroupID{id(2)}}}, false, Step{Leave, id(3)}},
	} {
		require.Equal(t, c.want, Next(c.own, c.others, c.abandoned), name)
	}
}

// TestNoCircle: groups that end at different times, by descriptions that may be old, never end for each other or in a circle. No
// group ends for one that gives a later token below one of its own.
func TestNoCircle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		groups := make([]Group, rapid.IntRange(2, 4).Draw(t, "groups"))
		for i := range groups {
			groups[i] = Group{ID: id(byte(i + 1)), Listed: rapid.IntRange(0, 3).Draw(t, "listed") == 0}
		}
		known := make([][]Group, len(groups))
		for range 60 {
			i, j := rapid.IntRange(0, len(groups)-1).Draw(t, "group"), rapid.IntRange(0, len(groups)-1).Draw(t, "other")
			g := &groups[i]
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0: // commands
				if !g.Over.Over() {
					g.Revision += coord.Revision(rapid.IntRange(0, 2).Draw(t, "revisions"))
					g.Reached = min(g.Revision, g.Reached+coord.Revision(rapid.IntRange(0, 4).Draw(t, "reached")))
					g.UserData = rapid.Bool().Draw(t, "data")
				}
			case 1: // hears
				if i != j {
					known[i] = append(known[i], groups[j])
				}
			default: // ends by an old description, as the machine of the group allows it
				step := Next(*g, known[i], false)
				for _, o := range known[i] {
					if step.Action != Dissolve || o.ID != step.Group {
						continue
					}
					end := g.End(o)
					if end.GetReached() < int64(g.Revision) || g.UserData {
						continue
					}
					require.LessOrEqual(t, g.Revision, groups[o.ID[0]-1].Reached)
					g.Over = machine.Dissolution{Successor: machine.GroupID(end.GetSuccessor()), Index: 1, Final: g.Revision}
					break
				}
			}
		}
		for i := range groups {
			at := i
			for range groups {
				if groups[at].Over.Over() {
					at = int(groups[at].Over.Successor[0]) - 1
				}
			}
			require.False(t, groups[at].Over.Over(), fmt.Sprint("a circle: ", groups))
		}
	})
}

// TestDescription: what a member says arrives, and what contradicts itself does not count.
func TestDescription(t *testing.T) {
	g := Group{ID: id(1), UserData: true, Revision: 7, Reached: 6, Over: machine.Dissolution{Successor: id(2), Index: 9, Final: 7}}
	info := &groupv1.GroupInfo{GroupId: []byte(g.ID), Revision: int64(g.Revision), Standing: g.Encode()}
	got, ok := decodeGroup(info)
	require.True(t, ok)
	require.Equal(t, g, got)
	for _, spoil := range []func(*groupv1.Standing){
		func(s *groupv1.Standing) { s.Successor = s.Successor[1:] },
		func(s *groupv1.Standing) { s.Successor = nil },
		func(s *groupv1.Standing) { s.Dissolved = 0 },
	} {
		info.Standing = g.Encode()
		spoil(info.Standing)
		_, ok := decodeGroup(info)
		require.False(t, ok)
	}
	_, ok = decodeGroup(&groupv1.GroupInfo{})
	require.False(t, ok)
}

// TestRemedy: an operator learns which of two groups to empty, and what an empty one waits for.
func TestRemedy(t *testing.T) {
	for name, c := range map[string]struct {
		own, other Group
		want       string
	}{
		"the lower one is empty later":  {Group{UserData: true, Revision: 5}, Group{UserData: true, Revision: 6}, "copy the keys of this peer's group to the other one"},
		"so is the other":               {Group{UserData: true, Revision: 7}, Group{UserData: true, Revision: 6}, "copy the keys of the other one to this peer's group"},
		"founders stay":                 {Group{UserData: true, Revision: 5, Listed: true}, Group{UserData: true, Revision: 6}, "copy the keys of the other one"},
		"the other one's too":           {Group{UserData: true, Revision: 7}, Group{UserData: true, Revision: 6, Listed: true}, "copy the keys of this peer's group"},
		"both have founders":            {Group{Listed: true}, Group{Listed: true}, "stop the peers of one"},
		"it is empty, and above":        {Group{Revision: 9}, Group{UserData: true, Reached: 4}, "the revision of the other one, 4, has reached its own, 9"},
		"the other is empty, and above": {Group{UserData: true, Reached: 4}, Group{Revision: 9}, "the revision of this peer's group, 4, has reached its own, 9"},
	} {
		require.Contains(t, remedy(c.own, c.other), c.want, name)
	}
}

// TestSuccessorGone: a group that gave itself up for one that ended before its peers went over says what to do.
func TestSuccessorGone(t *testing.T) {
	set := condition.NewSet(slog.New(slog.DiscardHandler), time.Now)
	NewMerger(Config{Conditions: set}).report(Group{ID: id(1), Over: machine.Dissolution{Successor: id(2), Index: 9}}, Step{Action: Wait})
	require.Contains(t, set.Active()[0].String(), "blackholed group restore")
}
