package replica

import (
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/raftlog"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// RecoveredState is the state of a stopped member with its whole log applied.
//
// The end of the log may be uncommitted, and committed entries may be missing. The former is harmless: their
// proposers received no failure. The latter are lost, and the recovery skips all tokens and revisions that
// they may have used.
type RecoveredState struct {
	replica *Replica
	last    position
	term    uint64 // highest seen
}

// Inspect reads a member's state without changes on the disk. The storage must have no other user.
//
// Errors: Invalid for a storage without a state; as New; Internal.
func Inspect(s *raftlog.Storage) (*RecoveredState, error) {
	const op = "replica.Inspect"
	if !s.HasSnapshot() {
		return nil, fault.New(op, fault.Invalid, "no state: the member never received a snapshot")
	}
	r, err := New(Config{Storage: s})
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	last, _ := s.LastIndex() // neither it nor InitialState fails
	hard, _, _ := s.InitialState()
	for r.applied.index < last {
		entries, err := s.Entries(r.applied.index+1, last+1, maxUncommitted)
		if err != nil {
			return nil, fault.As(op, fault.Internal, err)
		}
		for _, e := range entries {
			if err := r.turn.apply(r, e); err != nil {
				return nil, fault.Wrap(op, err)
			}
		}
	}
	return &RecoveredState{replica: r, last: r.applied, term: max(hard.GetTerm(), r.applied.term)}, nil
}

// Last returns the end of the log. Of two survivors the one with the higher term has more, or the higher index
// in the same term.
func (v *RecoveredState) Last() (index, term uint64) { return v.last.index, v.last.term }

// Machine returns the state.
func (v *RecoveredState) Machine() *machine.Machine { return v.replica.machine }

// Members returns the configuration at the end of the log.
func (v *RecoveredState) Members() []MemberStatus {
	var all []MemberStatus
	for _, m := range v.replica.membership.members() {
		all = append(all, MemberStatus{Member: m, Voter: v.replica.membership.votes(m.ID)})
	}
	return all
}

// Recover turns the storage into the only voter of the group's next incarnation, under another group name,
// which members of the old one do not accept. The revision leaps; see coordv1.BumpIncarnation. The
// RecoveredState must not be used afterwards.
//
// Errors: Invalid; Conflict; Internal.
func (v *RecoveredState) Recover(group string, only Member) error {
	const op = "replica.Recover"
	if err := only.validate(); err != nil {
		return fault.Wrap(op, err)
	}
	at := position{v.last.index + 1, v.term + 1}
	m := v.replica.machine
	result, _ := m.Apply(at.index, at.term, &coordv1.Command{Request: &coordv1.Command_BumpIncarnation{
		BumpIncarnation: &coordv1.BumpIncarnation{Incarnation: m.Incarnation() + 1},
	}})
	if result.Err != nil {
		return fault.Wrap(op, result.Err)
	}
	return fault.Wrap(op, begin(v.replica.storage, m, group, only))
}

// Restore is Recover with the state of a backup. The state's index and term must be above those of the storage.
//
// Errors: Invalid; Internal.
func Restore(s *raftlog.Storage, m *machine.Machine, group string, only Member) error {
	const op = "replica.Restore"
	if err := only.validate(); err != nil {
		return fault.Wrap(op, err)
	}
	last, _ := s.LastIndex() // neither it nor InitialState fails
	hard, _, _ := s.InitialState()
	if index, term := m.Index(); index <= last || term <= hard.GetTerm() {
		return fault.New(op, fault.Invalid, "the state ends at index %d, term %d, before the log's end", index, term)
	}
	return fault.Wrap(op, begin(s, m, group, only))
}

// begin makes a state the first one of a group with one voter.
func begin(s *raftlog.Storage, m *machine.Machine, group string, only Member) error {
	index, term := m.Index()
	snap := &pb.Snapshot{
		Data: snapshotData(nil, []Member{only}),
		Metadata: &pb.SnapshotMetadata{
			Index: &index, Term: &term,
			ConfState: &pb.ConfState{Voters: []uint64{only.ID}, AutoLeave: new(false)},
		},
	}
	return s.Recover(raftlog.Identity{Member: only.ID, Group: group}, snap, m.Image())
}
