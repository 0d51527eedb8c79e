package coordination

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/formation"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/membership"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/internal/coordination/upkeep"
	"github.com/blackhole/blackhole/internal/platform/metrics"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// Phases of a peer on its way into the group.
const (
	phaseFounding = "founding" // the group is not known, or not bootstrapped yet
	phaseJoining  = "joining"  // eligible, waiting to be a member
	phaseMember   = "member"
	phaseClient   = "client"   // not eligible: it asks members
	phaseRemoved  = "removed"  // an operator keeps it out
	phaseStopped  = "stopped"  // its member failed: it asks members until a restart, or until its full disk has room
	phaseOutlived = "outlived" // a member of an older incarnation: it asks members until its directory is cleared
)

// Group implements coord.Admin. The leader knows most. Without its answer, a member describes its own view.
func (s *Seat) Group(ctx context.Context) (coord.GroupState, error) {
	if ctx.Err() != nil {
		return coord.GroupState{}, fault.Wrap("coordination.Group", ctx.Err())
	}
	p := s.plane.Load()
	l := p.here.Load()
	if l != nil && l.Leads() {
		return l.state(), nil
	}
	isMember := l != nil && l.Listed() // a member stays one without a leader
	state, err := p.routing.AskLeader(ctx)
	if err != nil && isMember {
		state = l.state()
	}
	if err != nil {
		state.Leader, state.Missing = "", p.missing() // the last leader may have lost the lead
	}
	state.ID, state.Phase = p.view.ID(), p.phase(isMember)
	return state, nil
}

// Stats returns the counters of this member. Without one, only the leader and what it said about the voters are known.
func (s *Seat) Stats() (f metrics.GroupStats) {
	p := s.plane.Load()
	t := p.tolerance()
	f.HasLeader, f.Voters, f.SilentVoters, f.FailuresSurvived = p.routing.Known().Peer != "", t.Voters, t.Voters-t.Active, t.Failures()
	l := p.here.Load()
	if l == nil {
		return f
	}
	now := l.member.Status()
	f.Term, f.Revision = now.Header.Term, uint64(l.member.Revision())
	f.Leads, f.OldestOverdueSeconds = now.Leads, now.Overdue.Seconds()
	f.Voters = max(f.Voters, membership.ToleranceOf(upkeep.ProgressOf(now)).Voters) // without a leader a member still knows them
	l.member.View(func(m *machine.Machine) {
		f.Leases, f.Locks, f.Keys, f.PoolsUsed = m.LeaseCount(), m.LockCount(), m.Len(), map[string]float64{}
		for _, pool := range machine.PoolsOf(m) {
			f.PoolsUsed[pool.Name] = pool.Used
		}
	})
	return f
}

// state describes the group as this member sees it.
func (l *local) state() coord.GroupState {
	s := l.member.Status()
	out := coord.GroupState{
		Level: l.level(), Removed: l.membership.Removed(),
		ID: l.view.ID(), Phase: phaseMember, Term: s.Header.Term, Leader: s.Leader.Peer, Revision: l.member.Revision(),
	}
	if s.Leads {
		out.HeldBackBy = l.levels.HeldBack()
	}
	if s.Leader.ID == 0 {
		out.Missing = l.missing()
	}
	t := l.tolerance()
	out.Survives, out.Tolerance = t.Failures(), t.String()
	for _, m := range s.Members {
		one := l.describe(s, m)
		if m.Voter {
			out.Voters = append(out.Voters, one)
		} else {
			out.Learners = append(out.Learners, one)
		}
	}
	l.member.View(func(m *machine.Machine) {
		out.Incarnation, out.Keys = m.Incarnation(), m.Len()
		out.Leases, out.Locks = m.LeaseCount(), m.LockCount()
	})
	return out
}

// describe describes a member. Only the leader knows more than its name.
func (l *local) describe(s replica.Status, m replica.MemberStatus) coord.Member {
	one := coord.Member{Peer: m.Peer, ID: m.ID, Applied: m.Match, Active: m.Active}
	id, err := peer.Decode(m.Peer)
	if err != nil {
		return one
	}
	one.Name, one.Etcd = l.view.NameOf(id), l.view.EtcdOf(id)
	if !s.Leads {
		return one
	}
	one.Address = addressOf(l.host, id)
	if m.Match < s.Commit {
		one.Lag = s.Commit - m.Match
	}
	one.Silent = l.membership.Unseen(m.ID).Milliseconds()
	return one
}

// Group implements coord.Admin, for other peers.
func (l *local) Group(context.Context) (coord.GroupState, error) { return l.state(), nil }

// addressOf returns the best address where a peer can be dialed. A peer that names none has the address of its
// connection.
func addressOf(h host.Host, id peer.ID) string {
	if named := upkeep.AddressesOf(h, id); len(named) > 0 {
		return named[0].String()
	}
	if conns := h.Network().ConnsToPeer(id); len(conns) > 0 {
		return conns[0].RemoteMultiaddr().String()
	}
	return ""
}

// Standing describes the group without a question to another peer, for health and readiness.
func (s *Seat) Standing() (state coord.GroupState) {
	p := s.plane.Load()
	known, t := p.routing.Known(), p.tolerance()
	if l := p.here.Load(); l != nil {
		state = l.state()
		state.Phase = p.phase(l.Listed())
		switch {
		case known.Peer == "" && state.Leader != "": // a learner, or a removed member, believes in its last leader forever
			state.Leader, state.Missing = "", p.missing()
		case known.Peer != "" && state.Leader == "" && !l.Listed(): // no leader speaks to a removed member, but to this peer
			state.Leader, state.Term, state.Missing = known.Peer.String(), known.Term, ""
		}
		return state
	}
	state = coord.GroupState{ID: p.view.ID(), Phase: p.phase(false), Term: known.Term, Survives: t.Failures(), Tolerance: t.String()}
	if known.Peer == "" {
		state.Missing = p.missing()
		return state
	}
	state.Leader = known.Peer.String()
	state.Voters = []coord.Member{{Peer: state.Leader, Name: p.view.NameOf(known.Peer), Active: true}}
	return state
}

// NameOf returns the name that a peer gives itself; empty if this peer has not heard it.
func (s *Seat) NameOf(id peer.ID) string { return s.plane.Load().view.NameOf(id) }

// Electing reports whether no leader is known to a peer that takes part in the election, or in the bootstrap before it.
func (s *Seat) Electing() bool {
	p := s.plane.Load()
	if l := p.here.Load(); l != nil {
		now := l.member.Status()
		return now.Leader.ID == 0 && votes(now)
	}
	return p.roster.Founds() && p.routing.Known().Peer == ""
}

// phase returns the phase of this peer.
func (p *plane) phase(isMember bool) string {
	switch {
	case p.view.ID() == "":
		return phaseFounding
	case p.failed.because() != "":
		return phaseStopped
	case p.disk == nil:
		return phaseClient
	case p.outlived.Load():
		return phaseOutlived
	case isMember:
		return phaseMember
	case p.removed.Load():
		return phaseRemoved
	case p.standsBy(), !p.roster.Serves():
		return phaseClient
	}
	return phaseJoining
}

// missing explains the lack of a leader to an operator.
func (p *plane) missing() string { return p.lacks().String() }

// lacks says why no leader is known, and what helps.
func (p *plane) lacks() fault.Problem {
	const look = "Start those that are down, and check the network to those that run"
	if l := p.here.Load(); l != nil && len(l.member.Status().Members) > 0 && l.Listed() {
		s := l.member.Status()
		if s.Leader.ID != 0 && votes(s) {
			return fault.Problem{What: "the leader does not answer"}
		}
		var voters, absent []string
		for _, m := range s.Members {
			if !m.Voter {
				continue
			}
			voters = append(voters, p.view.Called(m.Peer))
			if id, err := peer.Decode(m.Peer); err == nil && id != p.self && !p.hears(id) {
				absent = append(absent, p.view.Called(m.Peer))
			}
		}
		lost := fault.Problem{What: fmt.Sprintf("no leader in term %d: %d of the voters %s are needed", s.Header.Term, len(voters)/2+1, strings.Join(voters, ", "))}
		if len(absent) > 0 {
			lost.What += ", and this peer has no contact to " + strings.Join(absent, ", ")
			lost.Remedy = look + "; if they are gone for good, `blackholed group promote --help` says how the others go on"
		}
		return lost
	}
	if stopped := p.failed.problem(); stopped.What != "" {
		return fault.Problem{
			What: "no other member of the group answers, and this peer's own has stopped: " + stopped.What, Remedy: stopped.Remedy,
		}
	}
	if _, known := p.founder.Group(); known {
		var heard, silent []string
		for _, id := range p.view.Peers() {
			switch name := p.view.Called(id.String()); {
			case id == p.self:
			case p.hears(id):
				heard = append(heard, name)
			default:
				silent = append(silent, name)
			}
		}
		if len(silent) == 0 {
			return fault.Problem{What: "no leader of the group answers; this peer has contact to " + cmp.Or(strings.Join(heard, ", "), "no member")}
		}
		return fault.Problem{What: "no leader of the group answers, and this peer has no contact to " + strings.Join(silent, ", "), Remedy: look}
	}
	if !p.roster.Founds() {
		return fault.Problem{What: p.search.Lacks()}
	}
	return fault.Problem{What: p.founder.Lacks()}
}

// hears reports whether a peer is connected.
func (p *plane) hears(id peer.ID) bool {
	return p.config.Host.Network().Connectedness(id) == network.Connected
}

// planSuccession looks whether this peer is to go on without the majority.
func (p *plane) planSuccession(ctx context.Context) (*formation.Succession, error) {
	c := formation.SuccessionConfig{
		View: p.view, Leaderless: p.routing.Leaderless,
		Learn: func(ctx context.Context, from peer.ID, info *groupv1.GroupInfo) bool {
			_, ok := p.learn(ctx, from, info)
			return ok
		},
	}
	if l := p.here.Load(); l != nil {
		c.Member, c.Incarnation = l.member, l.incarnation
	}
	return formation.Succeed(ctx, c)
}
