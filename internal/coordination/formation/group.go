// Package formation brings the peers of a network into one coordination group: who may found and be a
// member, search and begin, backup, recovery and succession, and the end of this peer's group for another one, as
// "Two groups become one" in ../DESIGN.md.
package formation

import (
	"cmp"
	"slices"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// Group is a group's description of itself, from the applied state of one of its members.
type Group struct {
	ID       machine.GroupID
	Listed   bool // it has listed founders, which is an order to keep it
	UserData bool
	Revision coord.Revision
	Reached  coord.Revision // below every later token
	Over     machine.Dissolution
	Former   []machine.GroupID // peers of these groups went over to it
}

// GroupOf describes the group of a member, but for Listed and Former.
func GroupOf(id machine.GroupID, m *machine.Machine) (Group, machine.UserData) {
	s := machine.StandingOf(m)
	return Group{ID: id, UserData: s.UserData.Any(), Revision: m.Revision(), Reached: s.Reached, Over: s.Over}, s.UserData
}

// Encode returns the standing of a group for other peers.
func (g Group) Encode() *groupv1.Standing {
	return &groupv1.Standing{
		UserData: g.UserData, Dissolved: g.Over.Index, Successor: []byte(g.Over.Successor), Reached: int64(g.Reached),
	}
}

// decodeGroup reads a member's description. False: the sender is no member, or the description is malformed.
func decodeGroup(info *groupv1.GroupInfo) (g Group, ok bool) {
	s := info.GetStanding()
	if s == nil || (s.GetDissolved() > 0) != (len(s.GetSuccessor()) == machine.GroupIDBytes) {
		return g, false
	}
	g = Group{
		ID: machine.GroupID(info.GetGroupId()), UserData: s.GetUserData(), Revision: coord.Revision(info.GetRevision()), Reached: coord.Revision(s.GetReached()),
	}
	if s.GetDissolved() > 0 {
		g.Over = machine.Dissolution{Successor: machine.GroupID(s.GetSuccessor()), Index: s.GetDissolved(), Final: g.Revision}
	}
	return g, true
}

// givesWayTo reports whether a living group gives itself up for another living one.
func (g Group) givesWayTo(other Group) bool {
	if g.UserData || g.Listed || g.Over.Over() || other.Over.Over() {
		return false
	}
	return g.Revision < other.Reached || g.Revision == other.Reached && g.losesTie(other)
}

// losesTie decides between groups with one revision, by facts that never change.
func (g Group) losesTie(other Group) bool { return other.Listed || other.ID < g.ID }

// End returns the command of a Dissolve for another group. The group may have grown since it was described, and a tie
// that it does not lose is no reason to end.
func (g Group) End(other Group) *coordv1.Dissolve {
	end := &coordv1.Dissolve{Successor: []byte(other.ID), Reached: int64(other.Reached)}
	if !g.losesTie(other) {
		end.Reached--
	}
	return end
}

// Action is what a member does next.
type Action uint8

const (
	Rest     Action = iota // no other group is known
	Wait                   // another group acts, an operator does, or more must be known
	Contest                // both groups stay: an operator decides
	Dissolve               // as leader: give the group up for Step.Group
	Leave                  // drop the state and go over to Step.Group
)

// Step is an action with its subject.
type Step struct {
	Action Action
	Group  machine.GroupID
}

// Next returns the next step of a member from its group and the latest descriptions of other groups. abandoned says that the
// group has had no leader for a while.
func Next(own Group, known []Group, abandoned bool) Step {
	others := slices.DeleteFunc(slices.Clone(known), func(g Group) bool { return g.ID == own.ID })
	slices.SortFunc(others, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Reached, a.Reached), flag(b.Listed)-flag(a.Listed), cmp.Compare(a.ID, b.ID))
	})
	if own.Over.Over() {
		return end(own, others)
	}
	next := Step{Action: Rest}
	for _, g := range others { // the one that has reached most comes first
		switch went := slices.Contains(g.Former, own.ID); {
		case went && abandoned && !g.Over.Over(): // the group ended without this member
			return Step{Action: Leave, Group: g.ID}
		case own.givesWayTo(g) && next.Action != Dissolve:
			next = Step{Action: Dissolve, Group: g.ID}
		case next.Action == Dissolve || next.Action == Contest:
		case !went && !g.Over.Over() && !g.givesWayTo(own):
			next = Step{Action: Contest, Group: g.ID}
		default:
			next = Step{Action: Wait}
		}
	}
	return next
}

// end is the step of a dissolved group: its members follow its successor, or the peers that went over, if that one ended too.
func end(own Group, others []Group) Step {
	for _, g := range others {
		followed := slices.Contains(g.Former, own.Over.Successor) || slices.Contains(g.Former, own.ID)
		if !g.Over.Over() && (g.ID == own.Over.Successor || followed) {
			return Step{Action: Leave, Group: g.ID}
		}
	}
	return Step{Action: Wait}
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}
