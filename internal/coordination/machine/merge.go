package machine

import (
	"encoding/hex"
	"strings"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// GroupID is the id of a group: GroupIDBytes bytes.
type GroupID string

// GroupIDBytes is the length of a GroupID.
const GroupIDBytes = 32

// String returns the id in hex.
func (g GroupID) String() string { return hex.EncodeToString([]byte(g)) }

// Dissolution describes the end of a group; zero for a living one.
type Dissolution struct {
	Successor GroupID
	Index     uint64         // log index of the Dissolve
	Final     coord.Revision // the last one
}

// Over reports whether the group is dissolved.
func (d Dissolution) Over() bool { return d.Index != 0 }

// UserData counts what applications keep in a group. The peers' own leases and directory entries are none: a
// peer registers them again in another group.
type UserData struct {
	Locks  int `json:"locks"`
	Leases int `json:"leases"`
	Keys   int `json:"keys"`
}

// Any reports whether there is user data.
func (u UserData) Any() bool { return u != UserData{} }

// merging is the group's part in a merge with another group of its network.
type merging struct {
	successor GroupID
	since     uint64 // log index of the Dissolve; 0: the group lives
}

// admit refuses a command of a dissolved group. The refusal is Unavailable, because the peer that made the call goes
// on in the successor. An operator who restores a backup lets the group go on in its next incarnation.
func (g *merging) admit(cmd *coordv1.Command) error {
	if g.since == 0 || cmd.GetBumpIncarnation() != nil {
		return nil
	}
	return fault.Refused(fault.Unavailable, "group", "dissolved, %v is its successor", g.successor)
}

// Standing is what a group says of itself to another group of its network.
type Standing struct {
	Over     Dissolution // zero while the group lives
	UserData UserData
	// Reached is below every later token: the revision, or less while a claim waits with a token of before.
	Reached coord.Revision
}

// StandingOf returns the standing of a group. It takes time in proportion to owners, locks and decisions on members.
func StandingOf(m *Machine) Standing {
	s := Standing{UserData: userData(m), Reached: m.revision}
	for _, q := range m.locks {
		if q.held < len(q.claims) {
			s.Reached = min(s.Reached, coord.Revision(q.claims[q.held].Token())-1)
		}
	}
	if g := m.merging; g.since != 0 {
		s.Over = Dissolution{Successor: g.successor, Index: g.since, Final: m.revision}
	}
	return s
}

// userData counts what applications keep in the group. A peer's own lease and its directory entries are none, nor are the
// decisions on members. A peer's lease that binds anything else counts by its locks and keys.
func userData(m *Machine) (u UserData) {
	own, claims := 0, 0
	for owner, a := range m.owners.by {
		claims += a.Claims
		if a.published != nil {
			own += a.published.keys.Len()
		}
		if principals.IsApplication(owner) {
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

// dissolve ends the group in favour of another one of the network that gives no token up to its revision. Afterwards the group
// refuses every command but BumpIncarnation: its last revision is final, and its members go over.
func (c *call) dissolve(m *Machine, r *coordv1.Dissolve, done *coordv1.Done) error {
	successor, reached := GroupID(r.GetSuccessor()), coord.Revision(r.GetReached())
	switch u := userData(m); {
	case len(successor) != GroupIDBytes:
		return fault.Invalidf("successor", nil, "must be a group id of %d bytes", GroupIDBytes)
	case reached < m.revision:
		return fault.Refused(fault.Conflict, "reached", "%d is below the group's revision, %d", reached, m.revision)
	case u.Any():
		return fault.Refused(fault.Conflict, "group", "the group has %d locks, %d leases and %d keys of applications", u.Locks, u.Leases, u.Keys)
	}
	var all []*lease
	m.leases.Scan(func(_ coord.LeaseID, l *lease) bool {
		all = append(all, l)
		return true
	})
	m.end(all, done)
	m.merging = merging{successor, c.index}
	return nil
}

// merging writes nothing for a living group.
func (e *encoder) merging(g *merging) {
	if g.since == 0 {
		return
	}
	e.uint(g.since)
	e.string(string(g.successor))
	e.flush()
}

// merging reads the last part of a snapshot, which may be absent.
func (d *decoder) merging(m *Machine) {
	if d.err != nil || d.ended() {
		return
	}
	g := merging{since: d.uint(), successor: GroupID(d.string())}
	d.check(g.since > 0 && g.since <= m.index, "dissolve", "is missing or in the future")
	d.check(len(g.successor) == GroupIDBytes, "dissolve", "names no successor")
	d.check(m.leases.Len() == 0, "lease", "outlives its group")
	m.merging = g
}
