package coordination

import (
	"context"
	"slices"
	"strings"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/membership"
	"github.com/blackhole/blackhole/internal/coordination/routing"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// maxStanding bounds the operators' decisions on peers that the group keeps.
const maxStanding = 1024

// standings are the operators' decisions on peers, at one member.
type standings struct{ local *local }

// read returns the operators' decisions on peers, by peer id, and the number of peers that have had one. They are keys
// of the group, written by members alone: so every later leader follows them, and snapshots and backups contain them.
func (s standings) read() (decided map[string]coord.Standing, kept int) {
	decided = map[string]coord.Standing{}
	s.local.member.View(func(m *machine.Machine) {
		page, err := m.Range(coord.Query{Span: coord.Under(coord.MembersPrefix), Limit: maxStanding})
		if err != nil {
			return // impossible: it asks for the present
		}
		kept = len(page.Keys)
		for _, kv := range page.Keys {
			decided[strings.TrimPrefix(kv.Key, coord.MembersPrefix)] = coord.Standing(kv.Value)
		}
	})
	return decided, kept
}

// judge adds what membership must know of each member besides Raft's progress.
func (s standings) judge(members []membership.Member) {
	decided, _ := s.read()
	for i := range members {
		m := &members[i]
		p, err := peer.Decode(m.Name)
		m.Barred = err != nil || !s.local.plane.roster.keeps(p) || decided[m.Name] == coord.Barred
		m.Wanted = decided[m.Name] == coord.Wanted
		m.Prefix = prefixOf(s.local.plane.config.Host, p)
	}
}

// offers returns the candidates that no operator barred.
func (s standings) offers() []membership.Peer {
	decided, _ := s.read()
	return slices.DeleteFunc(s.local.plane.roster.candidates.fresh(), func(p membership.Peer) bool { return decided[p.Name] == coord.Barred })
}

// ChangeMembers implements coord.Admin.
func (p *Plane) ChangeMembers(ctx context.Context, c coord.MemberChange) (done coord.MemberOutcome, err error) {
	if c.Action == coord.LeaveGroup {
		c.Action, c.Peer = coord.RemoveMember, p.name
	}
	c.Via = p.name
	err = p.routing.AtLeader(ctx, func(ctx context.Context, t routing.Target) error {
		done, err = t.ChangeMembers(ctx, c)
		return err
	})
	return done, err
}

// ChangeMembers implements coord.Admin, for other peers. The order of a peer counts if that peer may be a member: a mere client
// of the group does not decide on its members.
func (s Serving) ChangeMembers(ctx context.Context, c coord.MemberChange) (coord.MemberOutcome, error) {
	l, err := s.at()
	if err != nil {
		return coord.MemberOutcome{}, err
	}
	via, err := peer.Decode(c.Via)
	if err != nil || !s.now().roster.admits(ctx, via) {
		return coord.MemberOutcome{}, fault.New("coordination.ChangeMembers", fault.Forbidden,
			"peer %s is not eligible: order changes of the group at a peer that is", c.Via)
	}
	return l.ChangeMembers(ctx, c)
}

// ChangeMembers implements coord.Admin at the leader. After a handover it fails with Unavailable, so that the caller repeats it
// at the next leader, which finds the standing decision.
func (l *local) ChangeMembers(ctx context.Context, c coord.MemberChange) (done coord.MemberOutcome, err error) {
	const op = "coordination.ChangeMembers"
	switch c.Action {
	case coord.JoinGroup, coord.RaiseGroup, coord.ResumeGroup:
		if done, err = l.plane.inquiry.merger.Order(ctx, c); !c.DryRun {
			audit(l.plane, c, done, err)
		}
		return done, fault.Wrap(op, err)
	}
	seen, s := l.observed.Load(), l.member.Status()
	if seen == nil || !s.Leads || !s.Promoted {
		return done, fault.New(op, fault.Unavailable, "this member does not lead, or leads for less than a second")
	}
	members := slices.Clone(*seen)
	standings{l}.judge(members)
	state := membership.State{
		Leader: s.Header.Member, Members: members, Candidates: l.plane.roster.candidates.fresh(),
		Unreached: l.plane.roster.candidates.unreached(), Changing: s.Joint || s.Transferee != 0,
	}
	plan, err := l.plane.config.membershipConfig().Plan(state, c)
	if err != nil {
		return done, fault.Wrap(op, err)
	}
	done = coord.MemberOutcome{
		Steps: state.Steps(plan.Change), Before: plan.Before.String(), After: plan.After.String(), Standing: plan.Standing,
	}
	if c.DryRun {
		return done, nil
	}
	if err := (standings{l}).keep(ctx, c.Peer, plan.Standing); err != nil {
		return done, fault.Wrap(op, err)
	}
	err = l.carryOut(ctx, plan.Change)
	audit(l.plane, c, done, err)
	if err == nil && plan.Change.Transfer != 0 && c.Action != coord.TransferLeadership {
		return done, fault.New(op, fault.Unavailable, "handed over the leadership; the next leader goes on")
	}
	done.Done = err == nil
	return done, fault.Wrap(op, err)
}

// keep writes a standing decision before the change itself: a leader that takes over between both knows it.
func (s standings) keep(ctx context.Context, about string, now coord.Standing) error {
	decided, kept := s.read()
	if now == "" || decided[about] == now {
		return nil
	}
	if _, known := decided[about]; !known && kept >= maxStanding {
		return fault.New("", fault.LimitReached, "the group keeps decisions on %d peers already", kept)
	}
	_, _, err := s.local.propose(ctx, coord.CommandOf("", &apiv1.TxnRequest{Then: []*apiv1.TxnStep{coord.PutStep(coord.MembersPrefix+about, []byte(now), 0)}}))
	return err
}

// carryOut makes one change of the configuration and waits for it.
func (l *local) carryOut(ctx context.Context, c membership.Change) (err error) {
	ctx, cancel := context.WithTimeout(ctx, changing)
	defer cancel()
	switch replicated := configurationOf(c); {
	case c.Transfer != 0:
		err = l.member.Transfer(ctx, c.Transfer)
	case len(replicated.Voters)+len(replicated.Learners)+len(replicated.Remove) > 0:
		err = l.member.Change(ctx, replicated)
	}
	if err == nil {
		l.wire.Recheck()
	}
	return err
}

// audit logs an operator's change of the group: it takes something from somebody.
func audit(p *Plane, c coord.MemberChange, done coord.MemberOutcome, err error) {
	log := p.config.Logger.With("action", c.Action, "peer", p.inquiry.calls(c.Peer), "by", c.By, "via", p.inquiry.calls(c.Via),
		"steps", done.Steps, "before", done.Before, "after", done.After, "force", c.Force)
	if err != nil {
		log.Warn("an operator's change of the group failed", "error", err)
		return
	}
	log.Info("an operator changed the group", "audit", "group_change")
}
