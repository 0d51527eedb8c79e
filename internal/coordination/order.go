package coordination

import (
	"context"
	"fmt"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/merge"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// resumeLeap is the distance from the last revision of a dissolved group to the first one after an operator resumed it: above
// what its successor may have given out since.
const resumeLeap = coord.Revision(1) << 40

// order carries out an operator's JoinGroup or ResumeGroup at the leader.
func (m *merger) order(ctx context.Context, c coord.MemberChange) (done coord.MemberOutcome, err error) {
	l, leads := m.leading()
	if !leads {
		return done, fault.New("", fault.Unavailable, "this member does not lead")
	}
	own := describe(l)
	done.Before = m.plane.inquiry.tolerance().String()
	var op coord.Op
	if c.Action == coord.JoinGroup {
		op, err = m.planJoin(ctx, l, own, c, &done)
	} else {
		op, err = m.planResume(ctx, own, c, &done)
	}
	if err != nil || c.DryRun {
		return done, err
	}
	_, _, err = l.Do(ctx, coord.Command{Op: op})
	audit(m.plane, c, done, err)
	done.Done = err == nil
	return done, err
}

// planJoin checks an order to give the group up for another one.
func (m *merger) planJoin(ctx context.Context, l *local, own merge.Group, c coord.MemberChange, done *coord.MemberOutcome) (coord.Op, error) {
	if own.Over.Over() {
		return nil, fault.Refused(fault.Conflict, "action", "the group gave itself up for group %v already", own.Over.Successor)
	}
	to, err := m.choose(ctx, c.Peer)
	if err != nil {
		return nil, err
	}
	other, err := m.rivals.confirm(ctx, to)
	if err != nil {
		return nil, err
	}
	if other.Over.Over() {
		return nil, fault.Refused(fault.Conflict, "peer_id", "group %v gave itself up for group %v: wait until its members are there", to, other.Over.Successor)
	}
	var u coord.UserData
	l.member.View(func(m *machine.Machine) { u = machine.StandingOf(m).UserData })
	if u.Any() && !c.Force {
		return nil, fault.Refused(fault.Conflict, "force", "the group has %d locks, %d leases and %d keys of applications, which end", u.Locks, u.Leases, u.Keys)
	}
	if u.Any() {
		done.Steps = append(done.Steps, fmt.Sprintf("end %d locks, %d leases and %d keys of applications", u.Locks, u.Leases, u.Keys))
	}
	o, _ := m.rivals.of(to)
	done.Steps = append(done.Steps, fmt.Sprintf("give up group %v for group %v", own.ID, to), "raise the revision of the other group above this one's",
		"make every peer of this group a client or member of the other one")
	done.After = o.counted.String()
	return &coord.Dissolve{Successor: to, Force: c.Force}, nil
}

// choose returns the group of a peer, or the only other group.
func (m *merger) choose(ctx context.Context, of string) (coord.GroupID, error) {
	if of != "" {
		p, err := peer.Decode(of)
		if err != nil {
			return "", fault.Invalidf("peer_id", of, "is no peer id: %w", err)
		}
		ctx, cancel := context.WithTimeout(ctx, askTime)
		defer cancel()
		resp, err := m.rivals.ask(ctx, p)
		if err != nil {
			return "", fault.In("peer_id", err)
		}
		id := coord.GroupID(resp.GetInfo().GetGroupId())
		if _, known := m.rivals.of(id); !known {
			return "", fault.Refused(fault.Conflict, "peer_id", "belongs to no other group")
		}
		return id, nil
	}
	m.rivals.look()
	switch others := m.rivals.sighted(nil); len(others) {
	case 0:
		return "", fault.Refused(fault.NotFound, "peer_id", "no other group of the network is in sight: connect to a peer of it")
	case 1:
		return others[0], nil
	default:
		return "", fault.Refused(fault.Conflict, "peer_id", "%d other groups are in sight: name a peer of one", len(others))
	}
}

// planResume checks an order to go on with a dissolved group.
func (m *merger) planResume(ctx context.Context, own merge.Group, c coord.MemberChange, done *coord.MemberOutcome) (coord.Op, error) {
	if !own.Over.Over() {
		return nil, fault.Refused(fault.Conflict, "action", "the group lives")
	}
	m.rivals.look()
	for _, id := range []coord.GroupID{own.Over.Successor, new(merge.Member).Next(own, m.rivals.described()).Group} {
		if _, err := m.rivals.confirm(ctx, id); err == nil {
			return nil, fault.Refused(fault.Conflict, "action", "the leader of group %v answers, so the merge goes on by itself", id)
		}
	}
	if !c.Force {
		return nil, fault.Refused(fault.Conflict, "force", "if group %v returns, the network has two groups again", own.Over.Successor)
	}
	done.Steps = []string{fmt.Sprintf("go on with group %v above revision %d; its former leases and locks have ended", own.ID, own.Over.Final+resumeLeap)}
	done.After = done.Before
	return &coord.RaiseRevision{To: own.Over.Final + resumeLeap, Resume: own.Over.Index}, nil
}
