package formation

import (
	"context"
	"encoding/hex"
	"fmt"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// resumeLeap is the distance from the last revision of a dissolved group to the first one after an operator resumed it: above
// what its successor may have given out since.
const resumeLeap = coord.Revision(1) << 40

// Order carries out an operator's JoinGroup, RaiseGroup or ResumeGroup at the leader.
//
// Errors: Unavailable at another member, or without an answer of the other group's leader; Conflict, Invalid, NotFound.
func (m *Merger) Order(ctx context.Context, c coord.MemberChange) (done coord.MemberOutcome, err error) {
	l, leads := m.leading()
	if !leads {
		return done, fault.New("", fault.Unavailable, "this member does not lead")
	}
	own, data := l.Describe()
	done.Before = m.config.Survives()
	done.After = done.Before
	var cmd *coordv1.Command
	switch c.Action {
	case coord.JoinGroup:
		cmd, err = m.planJoin(ctx, own, data, c, &done)
	case coord.RaiseGroup:
		cmd, err = planRaise(own, c, &done)
	default:
		cmd, err = m.planResume(ctx, own, c, &done)
	}
	if err != nil || c.DryRun {
		return done, err
	}
	if err = l.Apply(ctx, cmd); err != nil {
		return done, err
	}
	own, _ = l.Describe()
	done.Done, done.Revision = true, own.Revision
	return done, nil
}

func dissolve(r *coordv1.Dissolve) *coordv1.Command {
	return &coordv1.Command{Request: &coordv1.Command_Dissolve{Dissolve: r}}
}

func raise(r *coordv1.RaiseRevision) *coordv1.Command {
	return &coordv1.Command{Request: &coordv1.Command_RaiseRevision{RaiseRevision: r}}
}

// groupID reads the field group_id.
func groupID(text string) (machine.GroupID, error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != machine.GroupIDBytes {
		return "", fault.Invalidf("group_id", text, "must be the id of a group: %d hexadecimal digits", 2*machine.GroupIDBytes)
	}
	return machine.GroupID(b), nil
}

// planJoin checks an order to freeze the group for another one. Repeated, it says the final revision again.
func (m *Merger) planJoin(ctx context.Context, own Group, data machine.UserData, c coord.MemberChange, done *coord.MemberOutcome) (*coordv1.Command, error) {
	to, err := groupID(c.Group)
	switch {
	case err != nil:
		return nil, err
	case to == own.ID:
		return nil, fault.Refused(fault.Conflict, "group_id", "is this group: give the order at a peer of the group that is to end")
	case own.Over.Over() && own.Over.Successor != to:
		return nil, fault.Refused(fault.Conflict, "group_id", "the group ends for group %v already: take that back with group resume", own.Over.Successor)
	case own.Over.Over():
		done.Steps = []string{fmt.Sprintf("keep group %v frozen at revision %d for group %v", own.ID, own.Over.Final, to)}
		return dissolve(&coordv1.Dissolve{Successor: []byte(to)}), nil
	case data.Any() && !c.Force:
		return nil, fault.Refused(fault.Conflict, "force", "the group has %d locks, %d leases and %d keys of applications, which end", data.Locks, data.Leases, data.Keys)
	}
	if _, known := m.others.of(to); !known {
		m.others.look(ctx)
	}
	o, known := m.others.of(to)
	if !known {
		return nil, fault.Refused(fault.NotFound, "group_id", "no peer of group %v is in sight of this group's leader: connect to one", to)
	}
	other, err := m.others.confirm(ctx, to)
	if err != nil {
		return nil, err
	}
	if other.Over.Over() {
		return nil, fault.Refused(fault.Conflict, "group_id", "group %v ends for group %v: wait until its members are there", to, other.Over.Successor)
	}
	if data.Any() {
		done.Steps = append(done.Steps, fmt.Sprintf("end %d locks, %d leases and %d keys of applications", data.Locks, data.Leases, data.Keys))
	}
	done.Steps = append(done.Steps, fmt.Sprintf("freeze group %v for group %v", own.ID, to),
		"let every peer of this group go over when the other one has reached its revision")
	done.After = o.counted.String()
	return dissolve(&coordv1.Dissolve{Successor: []byte(to), Force: c.Force}), nil
}

// planRaise checks an order to raise the revision for a group that ends.
func planRaise(own Group, c coord.MemberChange, done *coord.MemberOutcome) (*coordv1.Command, error) {
	from, err := groupID(c.Group)
	switch {
	case err != nil:
		return nil, err
	case from == own.ID:
		return nil, fault.Refused(fault.Conflict, "group_id", "is this group: name the group that ends")
	case c.Revision <= 0 && !c.DryRun:
		return nil, fault.Invalidf("revision", c.Revision, "must be above 0: the final one of the group that ends")
	case own.Over.Over():
		return nil, fault.Refused(fault.Conflict, "action", "the group ends itself, for group %v", own.Over.Successor)
	}
	done.Steps = []string{fmt.Sprintf("raise the revision of group %v above the final one of group %v", own.ID, from),
		"end the claims that wait for locks, and begin all watches anew"}
	return raise(&coordv1.RaiseRevision{To: int64(c.Revision)}), nil
}

// planResume checks an order to go on with a dissolved group.
func (m *Merger) planResume(ctx context.Context, own Group, c coord.MemberChange, done *coord.MemberOutcome) (*coordv1.Command, error) {
	if !own.Over.Over() {
		return nil, fault.Refused(fault.Conflict, "action", "the group lives")
	}
	if own.Over.Released {
		m.others.look(ctx)
		for _, id := range []machine.GroupID{own.Over.Successor, m.next(own).Group} {
			if _, err := m.others.confirm(ctx, id); err == nil {
				return nil, fault.Refused(fault.Conflict, "action", "the leader of group %v answers, so the merge goes on by itself", id)
			}
		}
	}
	if !c.Force {
		return nil, fault.Refused(fault.Conflict, "force", "if group %v returns, the network has two groups again", own.Over.Successor)
	}
	done.Steps = []string{fmt.Sprintf("go on with group %v above revision %d; its former leases and locks have ended", own.ID, own.Over.Final+resumeLeap)}
	return raise(&coordv1.RaiseRevision{To: int64(own.Over.Final + resumeLeap), Resume: own.Over.Index}), nil
}
