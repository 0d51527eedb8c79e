// Package merge decides how two groups of one network become one. It is pure: the caller collects descriptions of
// groups, passes them to Next, and carries out the step.
//
// # Order
//
// A group gives itself up by coord.Dissolve: from this entry on it gives no token, so its last revision is final. Then each
// of its members asks the successor to raise its revision above the final one (coord.RaiseRevision), until that is
// acknowledged. Only then the member drops its state and goes over to the successor. The dissolved state is in log and
// snapshots, so a member that crashes goes on where it was.
//
// # Who gives way
//
// A group with user data is never given up without an order. Of two groups without user data, or with it in one of them,
// Stronger decides. It is a total order over what the groups say of themselves.
//
// # Circles
//
// Groups decide at different times, by descriptions that may be old. Two groups can each name the other one as successor.
// Such a circle is frozen: no description changes any more. The group with the least id among those that no other group
// absorbed resumes. An absorbed group is gone from some disks, and must never resume.
package merge

import (
	"cmp"
	"slices"

	"github.com/blackhole/blackhole/pkg/coord"
)

// Group is a group's description of itself, from the applied state of one of its members.
type Group struct {
	ID       coord.GroupID
	UserData bool
	Voters   int
	Revision coord.Revision
	Over     coord.Dissolution
	Absorbed []coord.GroupID
}

// Stronger reports whether a stays where b gives way: the one with user data, with more voters, with the larger revision, or
// with the larger id.
func Stronger(a, b Group) bool { return compare(a, b) > 0 }

func compare(a, b Group) int {
	return cmp.Or(
		flag(a.UserData)-flag(b.UserData), cmp.Compare(a.Voters, b.Voters), cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.ID, b.ID),
	)
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Action is what a member does next.
type Action uint8

const (
	Rest     Action = iota // no other group is known
	Wait                   // another group acts, or more must be known
	Contest                // both groups have user data: an operator decides
	Dissolve               // as leader: propose coord.Dissolve in favour of Group
	Raise                  // ask Group for the RaiseRevision of the step
	Resume                 // as leader: propose the RaiseRevision of the step
	Leave                  // drop the state and go over to Group
)

// Step is an action with its subject.
type Step struct {
	Action Action
	Group  coord.GroupID
	Raise  coord.RaiseRevision
}

// Member is the part of one member in the end of its group. It is for one goroutine.
type Member struct {
	survivor coord.GroupID // acknowledged the raise
	dissolve uint64        // after this Dissolve
}

// Acknowledged notes that a survivor has raised its revision above the final one of the Dissolve at an index.
func (m *Member) Acknowledged(survivor coord.GroupID, dissolve uint64) {
	m.survivor, m.dissolve = survivor, dissolve
}

// Next returns the next step of a member from its group and the latest descriptions of other groups.
func (m *Member) Next(own Group, known []Group) Step {
	others := slices.DeleteFunc(slices.Clone(known), func(g Group) bool { return g.ID == own.ID })
	slices.SortFunc(others, func(a, b Group) int { return cmp.Compare(a.ID, b.ID) })
	switch {
	case own.Over.Over() && m.dissolve == own.Over.Index:
		return Step{Action: Leave, Group: m.survivor}
	case own.Over.Over():
		return end(own, others)
	}
	return meet(own, others)
}

// meet is the step of a living group.
func meet(own Group, others []Group) Step {
	best, contested, met := own, coord.GroupID(""), false
	for _, g := range others {
		switch {
		case slices.Contains(g.Absorbed, own.ID): // the group ended without this member
			if !g.Over.Over() {
				return Step{Action: Leave, Group: g.ID}
			}
			met = true
		case g.Over.Over() || slices.Contains(own.Absorbed, g.ID) || absorbed(g.ID, others): // comes by itself, or went
			met = true
		case g.UserData && own.UserData:
			contested = max(contested, g.ID)
		default:
			met = true
			if Stronger(g, best) {
				best = g
			}
		}
	}
	switch {
	case best.ID != own.ID:
		return Step{Action: Dissolve, Group: best.ID}
	case contested != "":
		return Step{Action: Contest, Group: contested}
	case met:
		return Step{Action: Wait}
	}
	return Step{Action: Rest}
}

// end is the step of a dissolved group: it follows the successors to a living group, or around a circle.
func end(own Group, others []Group) Step {
	raise := coord.RaiseRevision{To: own.Over.Final, Absorbed: append(slices.Clone(own.Absorbed), own.ID)} // the last ones are kept
	ring := []Group{own}
	for at := own.Over.Successor; at != own.ID; {
		g, ok := next(at, others)
		if !ok && slices.Contains(own.Absorbed, at) {
			break // its members came to this group
		}
		if !ok {
			return Step{Action: Wait}
		}
		if !g.Over.Over() {
			return Step{Action: Raise, Group: g.ID, Raise: raise}
		}
		if slices.ContainsFunc(ring, func(r Group) bool { return r.ID == g.ID }) {
			return Step{Action: Wait} // a circle without this group
		}
		ring = append(ring, g)
		at = g.Over.Successor
	}
	return turn(own, ring)
}

// absorbed reports whether another group took over a group. A description of the group as living is old then.
func absorbed(id coord.GroupID, others []Group) bool {
	return slices.ContainsFunc(others, func(g Group) bool { return slices.Contains(g.Absorbed, id) })
}

// next returns the group that absorbed a group: a living one, if there is one. Without any it returns the group itself.
func next(id coord.GroupID, others []Group) (best Group, ok bool) {
	for _, g := range others {
		if slices.Contains(g.Absorbed, id) && (!ok || best.Over.Over() && !g.Over.Over()) {
			best, ok = g, true
		}
	}
	if ok {
		return best, true
	}
	i := slices.IndexFunc(others, func(g Group) bool { return g.ID == id })
	if i < 0 {
		return Group{}, false
	}
	return others[i], true
}

// turn decides which group of a circle resumes.
func turn(own Group, ring []Group) Step {
	first, raise := coord.GroupID(""), coord.RaiseRevision{Resume: own.Over.Index}
	for _, g := range ring {
		taken := slices.ContainsFunc(ring, func(r Group) bool { return slices.Contains(r.Absorbed, g.ID) })
		if !taken && (first == "" || g.ID < first) {
			first = g.ID
		}
		raise.To = max(raise.To, g.Over.Final)
		if g.ID != own.ID {
			raise.Absorbed = append(raise.Absorbed, g.ID)
			raise.Absorbed = append(raise.Absorbed, g.Absorbed...)
		}
	}
	if first != own.ID {
		return Step{Action: Wait}
	}
	return Step{Action: Resume, Raise: raise}
}
