package coordination

import (
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/coordination/formation"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/coord"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// summaryAge bounds the age of a member's summary of its group: peers ask for it at any rate.
const summaryAge = time.Second

// summary caches what this member says of its group to others. It is advisory: the state machine checks every end of a group.
type summary struct {
	mu   sync.Mutex
	at   time.Time
	said formation.Group
}

// of returns the summary of a member's group.
func (s *summary) of(l *local) formation.Group {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at.IsZero() || time.Since(s.at) > summaryAge {
		s.at = time.Now()
		s.said, _ = ending{l}.Describe()
	}
	return s.said
}

// fill adds the summary to a description.
func (s *summary) fill(l *local, g *groupv1.GroupInfo) {
	said := s.of(l)
	g.Standing = said.Encode()
	if said.Over.Over() {
		g.Revision = int64(said.Over.Final)
	}
}

// ending is this peer's member for package formation.
type ending struct{ *local }

// Describe implements formation.Member.
func (e ending) Describe() (g formation.Group, data coord.UserData) {
	e.member.View(func(m *machine.Machine) {
		g, data = formation.GroupOf(coord.GroupID(e.incarnation.group[:]), m)
	})
	return g, data
}

// Leads implements formation.Member.
func (e ending) Leads() bool {
	s := e.member.Status()
	return s.Leads && s.Promoted
}
