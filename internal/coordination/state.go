package coordination

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Phases of a peer on its way into the group.
const (
	phaseFounding = "founding" // the group is not known, or not bootstrapped yet
	phaseJoining  = "joining"  // eligible, waiting to be a member
	phaseMember   = "member"
	phaseClient   = "client"   // not eligible: it asks members
	phaseStopped  = "stopped"  // its member failed: it asks members until a restart
	phaseOutlived = "outlived" // a member of an older incarnation: it asks members until its directory is cleared
)

// Group implements coord.Admin. The leader knows most. Without its answer, a member describes its own view.
func (p *Plane) Group(ctx context.Context) (coord.GroupState, error) {
	if ctx.Err() != nil {
		return coord.GroupState{}, fault.Wrap("group.Group", ctx.Err())
	}
	l := p.here.Load()
	if l != nil && l.Leads() {
		return l.state(), nil
	}
	member := l != nil && l.listed() // a member stays one without a leader
	state, err := p.routing.AskLeader(ctx)
	if err != nil && member {
		state = l.state()
	}
	if err != nil {
		state.Missing = p.missing()
	}
	state.ID, state.Phase = p.ID(), phaseOf(p, member)
	return state, nil
}

// Stats counts the group's state at this member.
type Stats struct {
	Term, Revision       uint64
	Leads, HasLeader     bool
	Voters               int
	SilentVoters         int // not heard within an election timeout; only on the leader
	FailuresSurvived     int // of voters, now
	Leases, Locks, Keys  int
	SpaceUsed            float64 // share of the room for keys of applications; see machine.Space
	OldestOverdueSeconds float64
}

// Stats returns the counters of this member. Without one, only the failures survived are known.
func (p *Plane) Stats() (f Stats) {
	f.FailuresSurvived = p.inquiry.tolerance().Failures()
	l := p.here.Load()
	if l == nil {
		return f
	}
	s := l.member.Status()
	f.Term, f.Revision = s.Header.Term, uint64(l.member.Revision())
	f.Leads, f.HasLeader, f.OldestOverdueSeconds = s.Leads, s.Leader.ID != 0, s.Overdue.Seconds()
	for _, m := range s.Members {
		if m.Voter {
			f.Voters++
			if s.Leads && !m.Active {
				f.SilentVoters++
			}
		}
	}
	l.member.View(func(m *machine.Machine) {
		f.Leases, f.Locks, f.Keys, f.SpaceUsed = m.LeaseCount(), m.LockCount(), m.Len(), machine.SpaceOf(m).Used
	})
	return f
}

// ID returns the group's id in hex; empty while no group is known.
func (p *Plane) ID() string { return p.view.id() }

// state describes the group as this member sees it.
func (l *local) state() coord.GroupState {
	s := l.member.Status()
	out := coord.GroupState{
		Level: l.level(),
		ID:    l.plane.ID(), Phase: phaseMember, Term: s.Header.Term, Leader: s.Leader.Peer, Revision: l.member.Revision(),
	}
	if s.Leads {
		out.HeldBackBy = l.plane.levels.heldBack()
	}
	if s.Leader.ID == 0 {
		out.Missing = l.plane.missing()
	}
	t := l.plane.inquiry.tolerance()
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
	one.Name = l.plane.inquiry.nameOf(id)
	if !s.Leads {
		return one
	}
	one.Address = addressOf(l.plane.config.Host, id)
	if m.Match < s.Commit {
		one.Lag = s.Commit - m.Match
	}
	if seen := l.observed.Load(); seen != nil {
		for _, o := range *seen {
			if o.ID == m.ID {
				one.Silent = o.Unseen.Milliseconds()
			}
		}
	}
	return one
}

// addressOf returns the address of a connected peer, or the first one of this peer itself.
func addressOf(h host.Host, id peer.ID) string {
	if id == h.ID() {
		if own := h.Addrs(); len(own) > 0 {
			return own[0].String()
		}
	}
	for _, c := range h.Network().ConnsToPeer(id) {
		return c.RemoteMultiaddr().String()
	}
	return ""
}

// Standing describes the group without a question to another peer, for health and readiness.
func (p *Plane) Standing() (state coord.GroupState) {
	if l := p.here.Load(); l != nil {
		state = l.state()
		state.Phase = phaseOf(p, l.listed())
		return state
	}
	known, t := p.routing.Known(), p.inquiry.tolerance()
	state = coord.GroupState{ID: p.ID(), Phase: phaseOf(p, false), Term: known.Term, Survives: t.Failures(), Tolerance: t.String()}
	if known.Peer == "" {
		state.Missing = p.missing()
		return state
	}
	state.Leader = known.Peer.String()
	state.Voters = []coord.Member{{Peer: state.Leader, Name: p.inquiry.nameOf(known.Peer), Active: true}}
	return state
}

// Electing reports whether no leader is known to a peer that takes part in the election, or in the bootstrap before it.
func (p *Plane) Electing() bool {
	if l := p.here.Load(); l != nil {
		s := l.member.Status()
		return s.Leader.ID == 0 && slices.ContainsFunc(s.Members, func(m replica.MemberStatus) bool { return m.ID == s.Header.Member && m.Voter })
	}
	return p.roster.founds() && p.routing.Known().Peer == ""
}

// phaseOf returns the phase of a peer.
func phaseOf(p *Plane, member bool) string {
	switch {
	case p.ID() == "":
		return phaseFounding
	case p.failed.because() != "":
		return phaseStopped
	case p.disk == nil:
		return phaseClient
	case p.outlived.Load():
		return phaseOutlived
	case member:
		return phaseMember
	case p.roster.standsBy(), !p.roster.serves():
		return phaseClient
	}
	return phaseJoining
}

// Group implements coord.Admin, for other peers.
func (l *local) Group(context.Context) (coord.GroupState, error) { return l.state(), nil }

// missing explains the lack of a leader to an operator.
func (p *Plane) missing() string {
	if l := p.here.Load(); l != nil && len(l.member.Status().Members) > 0 {
		s := l.member.Status()
		if s.Leader.ID != 0 {
			return "the leader does not answer"
		}
		return fmt.Sprintf("no leader in term %d; a majority of %s is needed", s.Header.Term, votersOf(p.inquiry, s))
	}
	if why := p.failed.because(); why != "" {
		return "no other member of the group answers, and this peer's member has stopped: " + why
	}
	if _, known := p.founder.Group(); known {
		return "no member of the group answers"
	}
	if !p.roster.founds() {
		return p.inquiry.sighted.Load().String()
	}
	return p.founder.Lacks()
}

func votersOf(q *inquiry, s replica.Status) string {
	var names []string
	for _, m := range s.Members {
		if m.Voter {
			names = append(names, q.calls(m.Peer))
		}
	}
	return strings.Join(names, ", ")
}

// Serving is this peer's own member; see Seat.Member. It implements coord.Service and coord.Admin.
type Serving struct {
	coord.Through
	now func() *Plane
}

// Group implements coord.Admin.
func (s Serving) Group(ctx context.Context) (coord.GroupState, error) {
	l, err := s.at()
	if err != nil {
		return coord.GroupState{}, err
	}
	return l.Group(ctx)
}

func (s Serving) at() (*local, error) {
	if l := s.now().here.Load(); l != nil {
		return l, nil
	}
	return nil, fault.New("group", fault.Unavailable, "this peer is not a member of the group")
}
