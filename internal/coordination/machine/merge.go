package machine

import (
	"math"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// merging is the group's part in merges with other groups of its network.
type merging struct {
	successor coord.GroupID
	since     uint64          // log index of the Dissolve in force; 0: the group lives
	absorbed  []coord.GroupID // groups that this one took over, oldest first
}

func (g *merging) clone() merging {
	return merging{g.successor, g.since, slices.Clone(g.absorbed)}
}

// admit refuses a command of a dissolved group. The refusal is Unavailable, because the peer that made the call goes
// on in the successor.
func (g *merging) admit(cmd *coordv1.Command) error {
	if g.since == 0 || cmd.GetRaiseRevision().GetResume() == g.since {
		return nil
	}
	return fault.Refused(fault.Unavailable, "group", "dissolved, %v is its successor", g.successor)
}

// absorb remembers groups whose members come to this one, and reports whether one is new.
func (g *merging) absorb(ids [][]byte) (grew bool) {
	for _, b := range ids {
		if id := coord.GroupID(b); !slices.Contains(g.absorbed, id) {
			g.absorbed, grew = append(g.absorbed, id), true
		}
	}
	g.absorbed = g.absorbed[max(0, len(g.absorbed)-coord.MaxAbsorbed):]
	return grew
}

// Standing is what a group says of itself to another group of its network.
type Standing struct {
	Over     coord.Dissolution // zero while the group lives
	Absorbed []coord.GroupID   // groups that it took over, oldest first
	UserData coord.UserData
}

// StandingOf returns the standing of a group. It takes time in proportion to owners and decisions on members.
func StandingOf(m *Machine) Standing {
	s := Standing{Absorbed: slices.Clone(m.merging.absorbed), UserData: userData(m)}
	if m.merging.since != 0 {
		s.Over = coord.Dissolution{Successor: m.merging.successor, Index: m.merging.since, Final: m.revision}
	}
	return s
}

// userData counts what applications keep in the group. A peer's own lease and its directory entries are none, nor are the
// decisions on members. A peer's lease that binds anything else counts by its locks and keys.
func userData(m *Machine) (u coord.UserData) {
	own, claims := 0, 0
	for owner, a := range m.owners {
		claims += a.Claims
		if a.published != nil {
			own += a.published.keys.Len()
		}
		if coord.IsNamed(owner) || coord.IsAnonymous(owner) {
			u.Leases += a.Leases
		}
	}
	m.tree.Ascend(coord.MembersPrefix, func(key string, _ *coord.KeyValue) bool {
		if !strings.HasPrefix(key, coord.MembersPrefix) {
			return false
		}
		own++
		return true
	})
	u.Locks, u.Keys = len(m.locks), m.tree.Len()-own-claims
	return u
}

// dissolve ends the group in favour of another one of the network. Afterwards the group refuses every command except the
// RaiseRevision that resumes it, so its last revision is final: it gives no token any more.
func (c *call) dissolve(m *Machine, r *coordv1.Dissolve) error {
	successor := coord.GroupID(r.GetSuccessor())
	if len(successor) != coord.GroupIDBytes {
		return fault.Invalidf("successor", nil, "must be a group id of %d bytes", coord.GroupIDBytes)
	}
	if slices.Contains(m.merging.absorbed, successor) {
		return fault.Refused(fault.Conflict, "successor", "this group took over group %v", successor)
	}
	if u := userData(m); u.Any() && !r.GetForce() {
		return fault.Refused(fault.Conflict, "force", "the group has %d locks, %d leases and %d keys of applications", u.Locks, u.Leases, u.Keys)
	}
	var all []*lease
	m.leases.Scan(func(_ coord.LeaseID, l *lease) bool {
		all = append(all, l)
		return true
	})
	c.end(m, all)
	m.merging.successor, m.merging.since = successor, c.index
	return nil
}

// raiseRevision is the survivor's part of a merge: every later token is above all tokens of the absorbed groups. The first raise
// for a group always leaps: its members' watches must not go on in another group's history. With resume it undoes a Dissolve.
func raiseRevision(m *Machine, r *coordv1.RaiseRevision) error {
	to := coord.Revision(r.GetTo())
	for _, id := range r.GetAbsorbed() {
		if len(id) != coord.GroupIDBytes {
			return fault.Invalidf("absorbed", nil, "must be group ids of %d bytes", coord.GroupIDBytes)
		}
	}
	switch {
	case to < 0:
		return fault.Invalidf("to", to, "must not be negative")
	case to > math.MaxInt64-2*leap:
		return fault.Refused(fault.LimitReached, "to", "leaves too few revisions")
	case r.GetResume() != m.merging.since:
		return fault.Refused(fault.Conflict, "resume", "the group lives")
	}
	m.merging.successor, m.merging.since = "", 0
	if m.merging.absorb(r.GetAbsorbed()) || to > m.revision {
		leapTo(m, max(to, m.revision+1))
	}
	return nil
}

// merging writes nothing for a group that never met another one.
func (e *encoder) merging(g *merging) {
	if g.since == 0 && len(g.absorbed) == 0 {
		return
	}
	e.uint(g.since)
	e.string(string(g.successor))
	e.int(int64(len(g.absorbed)))
	for _, id := range g.absorbed {
		e.string(string(id))
	}
	e.flush()
}

// merging reads the last part of a snapshot, which may be absent.
func (d *decoder) merging(m *Machine) {
	if d.err != nil || d.ended() {
		return
	}
	g := merging{since: d.uint(), successor: coord.GroupID(d.string())}
	d.check(g.since <= m.index, "dissolve", "is in the future")
	d.check(g.since == 0 && g.successor == "" || g.since > 0 && len(g.successor) == coord.GroupIDBytes, "dissolve", "names no successor")
	for more := d.count(); more(); {
		id := coord.GroupID(d.string())
		d.check(len(id) == coord.GroupIDBytes && !slices.Contains(g.absorbed, id), "absorbed", "is no other group")
		d.check(len(g.absorbed) < coord.MaxAbsorbed, "absorbed", "is one too many")
		g.absorbed = append(g.absorbed, id)
		if d.err != nil {
			return
		}
	}
	d.check(g.since > 0 || len(g.absorbed) > 0, "absorbed", "should be left out")
	d.check(g.since == 0 || m.leases.Len() == 0, "lease", "outlives its group")
	m.merging = g
}
