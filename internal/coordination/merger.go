package coordination

import (
	"context"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/merge"
	"github.com/blackhole/blackhole/internal/coordination/transport"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/strictproto"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const (
	rivalInterval = 5 * time.Second        // between two looks for other groups
	mergeInterval = 500 * time.Millisecond // while a merge is under way
	abandoned     = 5 * time.Second        // without a leader until a group that another one absorbed counts as gone
)

// merger carries out the decisions of package merge on this peer's group. Its state is lost with the process: the group's
// is in the log.
type merger struct {
	plane    *Plane
	rivals   *rivals
	member   merge.Member
	departed chan bootstrap.Certificate // receives, once, the group to which this peer goes over
}

func newMerger(p *Plane) *merger {
	return &merger{plane: p, rivals: newRivals(p), departed: make(chan bootstrap.Certificate, 1)}
}

// run looks for other groups until this peer leaves its own.
func (m *merger) run() {
	for wait := mergeInterval; pause(m.plane.life, wait); {
		m.rivals.look()
		own, known := m.own()
		if !known {
			continue
		}
		step := m.member.Next(own, m.rivals.described())
		m.report(own, step)
		if m.carryOut(own, step) {
			return
		}
		if wait = rivalInterval; step.Action != merge.Rest && step.Action != merge.Contest {
			wait = mergeInterval
		}
	}
}

// own describes this peer's group. Only its leader decides on it, so that a peer without the state gives nothing up.
func (m *merger) own() (g merge.Group, known bool) {
	c, known := m.plane.founder.Certificate()
	if !known {
		return g, false
	}
	l := m.plane.here.Load()
	if l == nil {
		return merge.Group{ID: groupIDOf(c), UserData: true}, true
	}
	return describe(l), true
}

// describe describes the group from this member's applied state.
func describe(l *local) merge.Group {
	g := merge.Group{ID: coord.GroupID(l.incarnation.group[:])}
	l.member.View(func(m *machine.Machine) {
		s := machine.StandingOf(m)
		g.UserData, g.Over, g.Absorbed, g.Revision = s.UserData.Any(), s.Over, s.Absorbed, m.Revision()
	})
	for _, one := range l.member.Status().Members {
		if one.Voter {
			g.Voters++
		}
	}
	return g
}

// carryOut takes a step. It reports whether this peer leaves the group.
func (m *merger) carryOut(own merge.Group, step merge.Step) (leaves bool) {
	ctx, cancel := context.WithTimeout(m.plane.life, 2*askTime)
	defer cancel()
	var err error
	switch step.Action {
	case merge.Dissolve:
		err = m.dissolve(ctx, step)
	case merge.Raise:
		if err = m.raise(ctx, step); err == nil {
			m.member.Acknowledged(step.Group, own.Over.Index)
		}
	case merge.Resume:
		if l, leads := m.leading(); leads {
			_, _, err = l.Do(ctx, coord.Command{Op: &step.Raise})
		}
	case merge.Leave:
		leaves, err = m.leave(ctx, own, step.Group)
	}
	if err != nil {
		m.plane.config.Logger.Debug("a step of a merge failed, and is repeated", "error", err)
	}
	return leaves
}

// leading returns this peer's member if it leads with all of the log applied.
func (m *merger) leading() (*local, bool) {
	l := m.plane.here.Load()
	if l == nil {
		return nil, false
	}
	s := l.member.Status()
	return l, s.Leads && s.Promoted
}

// byItself reports whether the group may give itself up without an order. Configured founders are an order to keep it.
func (m *merger) byItself() bool { return m.plane.config.Network.Mode == bootstrap.Unlisted }

// dissolve gives the group up, as its leader, if that is still right after the word of the other group's leader.
func (m *merger) dissolve(ctx context.Context, step merge.Step) error {
	l, leads := m.leading()
	if !leads || !m.byItself() {
		return nil
	}
	if _, err := m.rivals.confirm(ctx, step.Group); err != nil {
		return err
	}
	if now := m.member.Next(describe(l), m.rivals.described()); now.Action != merge.Dissolve || now.Group != step.Group {
		return nil
	}
	m.plane.config.Logger.Warn("this peer's coordination group holds no data of applications and gives itself up for an older one of the network",
		"group", m.plane.ID(), "successor", step.Group)
	_, _, err := l.Do(ctx, coord.Command{Op: &coord.Dissolve{Successor: step.Group}})
	return err
}

// raise asks the successor to go above the final revision of this peer's group. Only its leader answers.
func (m *merger) raise(ctx context.Context, step merge.Step) error {
	req := &groupv1.RaiseRequest{GroupId: []byte(step.Group), To: int64(step.Raise.To)}
	for _, id := range step.Raise.Absorbed {
		req.Absorbed = append(req.Absorbed, []byte(id))
	}
	question, err := proto.Marshal(req)
	if err != nil {
		return fault.As("group.raise", fault.Internal, err)
	}
	err = fault.New("group.raise", fault.Unavailable, "no peer of group %v is known", step.Group)
	o, _ := m.rivals.of(step.Group)
	for _, p := range o.contacts {
		if _, err = m.plane.ask.Ask(ctx, p, transport.Raise, question); err == nil {
			return nil
		}
	}
	return err
}

// answer carries out the raise of a dissolved group, as the leader of its successor, for a trusted peer.
func (m *merger) answer(ctx context.Context, from peer.ID, question []byte) ([]byte, error) {
	const op = "group.raise"
	req := new(groupv1.RaiseRequest)
	if proto.Unmarshal(question, req) != nil {
		return nil, fault.New(op, fault.Invalid, "not a request to raise the revision")
	}
	if err := strictproto.Check(req); err != nil {
		return nil, fault.Wrap(op, err)
	}
	if err := m.plane.roster.trusts(ctx, from); err != nil {
		return nil, fault.Wrap(op, err)
	}
	l, leads := m.leading()
	if !leads || coord.GroupID(req.GetGroupId()) != describe(l).ID {
		return nil, fault.New(op, fault.Unavailable, "this peer does not lead group %x", req.GetGroupId())
	}
	if len(req.GetAbsorbed()) > coord.MaxAbsorbed+1 {
		return nil, fault.Invalidf("absorbed", len(req.GetAbsorbed()), "must be at most %d", coord.MaxAbsorbed+1)
	}
	raise := &coord.RaiseRevision{To: coord.Revision(req.GetTo())}
	for _, id := range req.GetAbsorbed() {
		raise.Absorbed = append(raise.Absorbed, coord.GroupID(id))
	}
	if _, _, err := l.Do(ctx, coord.Command{Op: raise}); err != nil {
		return nil, fault.Wrap(op, err)
	}
	m.plane.config.Logger.Info("the group takes in the members of another one", "from", m.plane.inquiry.calls(from.String()), "above", raise.To)
	return proto.Marshal(&groupv1.RaiseResponse{})
}

// leave makes this peer go over to a group whose leader says that it absorbed this peer's. A living group with a leader is
// never left: an operator may have resumed it. The disk of a member that stopped, or was outlived, stays for the operator.
func (m *merger) leave(ctx context.Context, own merge.Group, to coord.GroupID) (bool, error) {
	p := m.plane
	if p.outlived.Load() || p.failed.because() != "" || !own.Over.Over() && p.finder.leaderless() < abandoned {
		return false, nil
	}
	g, err := m.rivals.confirm(ctx, to)
	if err != nil || g.Over.Over() || !slices.Contains(g.Absorbed, own.ID) {
		return false, err
	}
	if now, _ := m.own(); now.Over != own.Over {
		return false, nil // resumed meanwhile
	}
	o, known := m.rivals.of(to)
	if !known {
		return false, nil
	}
	p.config.Conditions.Clear(condition.OtherGroup)
	m.departed <- o.certificate
	return true, nil
}

// report keeps the condition other_group: a lock of one group does not exclude the other.
func (m *merger) report(own merge.Group, step merge.Step) {
	others, conditions := m.rivals.sighted(own.Absorbed), m.plane.config.Conditions
	if own.Over.Over() && step.Action == merge.Wait {
		conditions.Raise(condition.OtherGroup, "this peer's coordination group gave itself up for group %v, of which no leader answers: locks, leases and keys "+
			"fail until one does; if it is gone for good, run blackholed group resume", own.Over.Successor)
		return
	}
	if len(others) == 0 {
		conditions.Clear(condition.OtherGroup)
		return
	}
	about := others[0]
	if slices.Contains(others, step.Group) {
		about = step.Group
	}
	conditions.Raise(condition.OtherGroup, "this peer and %s belong to separate coordination groups of one network: a lock of one does not exclude the other, "+
		"and each lists its own instances; %s", m.teller(about), m.outlook(own, step))
}

// teller names the peer that showed a group.
func (m *merger) teller(id coord.GroupID) string {
	o, _ := m.rivals.of(id)
	return m.plane.inquiry.calls(o.by.String())
}

// outlook says how two groups become one.
func (m *merger) outlook(own merge.Group, step merge.Step) string {
	switch {
	case step.Action == merge.Contest || step.Action == merge.Dissolve && !m.byItself():
		return "an operator decides which one to give up: run blackholed group join at a peer of it"
	case step.Action == merge.Rest:
		return "no member of the other group answers"
	case step.Action == merge.Leave && !own.Over.Over():
		return "the other group took this one over before: run blackholed group join at a peer of one of the two"
	case step.Action == merge.Wait:
		return "the other group is to give itself up"
	}
	return "this peer's group gives itself up"
}
