package coordination

import (
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/merge"
	"github.com/blackhole/blackhole/pkg/coord"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// standingAge bounds the age of what a member says of its group to others: peers ask at any rate.
const standingAge = time.Second

// standing keeps what this member last said of its group. Nothing is decided by it alone: the state machine refuses a
// Dissolve of a group with user data, and a successor is asked again.
type standing struct {
	mu   sync.Mutex
	at   time.Time
	said machine.Standing
}

// of returns the standing of a member's group.
func (s *standing) of(l *local) machine.Standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at.IsZero() || time.Since(s.at) > standingAge {
		s.at = time.Now()
		l.member.View(func(m *machine.Machine) { s.said = machine.StandingOf(m) })
	}
	return s.said
}

// inform adds the standing to a description.
func (s *standing) inform(l *local, g *groupv1.GroupInfo) {
	said := s.of(l)
	g.Standing = &groupv1.Standing{UserData: said.UserData.Any(), Dissolved: said.Over.Index, Successor: []byte(said.Over.Successor)}
	for _, id := range said.Absorbed {
		g.Standing.Absorbed = append(g.Standing.Absorbed, []byte(id))
	}
	if said.Over.Over() {
		g.Revision = int64(said.Over.Final)
	}
}

// groupOf reads a member's description for package merge. False: the sender is no member, or the description is malformed.
func groupOf(info *groupv1.GroupInfo) (g merge.Group, ok bool) {
	s := info.GetStanding()
	if s == nil || len(s.GetAbsorbed()) > coord.MaxAbsorbed || (s.GetDissolved() > 0) != (len(s.GetSuccessor()) == coord.GroupIDBytes) {
		return g, false
	}
	g = merge.Group{ID: coord.GroupID(info.GetGroupId()), UserData: s.GetUserData(), Revision: coord.Revision(info.GetRevision())}
	if s.GetDissolved() > 0 {
		g.Over = coord.Dissolution{Successor: coord.GroupID(s.GetSuccessor()), Index: s.GetDissolved(), Final: g.Revision}
	}
	for _, id := range s.GetAbsorbed() {
		if len(id) != coord.GroupIDBytes {
			return g, false
		}
		g.Absorbed = append(g.Absorbed, coord.GroupID(id))
	}
	for _, m := range info.GetMembers() {
		if m.GetRole() == groupv1.Role_ROLE_VOTER {
			g.Voters++
		}
	}
	return g, true
}
