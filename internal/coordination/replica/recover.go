package replica

import (
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/raftlog"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// RecoveredState is what a member that is not running has: the state with its whole log applied.
//
// The log's end may never have been committed, and what was committed may be missing. The first is
// no harm: whoever asked for it was not told that it had failed. The second is lost, and
// everything that could be taken for what is lost, a token or a revision, is leapt over.
type RecoveredState struct {
	replica *Replica
	last    position
	term    uint64 // highest seen
}

// Inspect reads what a member has. It changes nothing on the disk. Nobody else may use the storage.
//
// Errors: Invalid when it has no state; those of New; Internal.
func Inspect(s *raftlog.Storage) (*RecoveredState, error) {
	const op = "replica.Survey"
	if !s.HasSnapshot() {
		return nil, fault.New(op, fault.Invalid, "the member has no state: it was never sent any")
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

// Last is where the log ends. Of two survivors the one whose term is higher has more, and at the same
// term the one whose index is.
func (v *RecoveredState) Last() (index, term uint64) { return v.last.index, v.last.term }

// Machine is the state.
func (v *RecoveredState) Machine() *machine.Machine { return v.replica.machine }

// Members of the configuration at the end of the log.
func (v *RecoveredState) Members() []MemberStatus {
	var all []MemberStatus
	for _, m := range v.replica.membership.members() {
		all = append(all, MemberStatus{Member: m, Voter: v.replica.membership.votes(m.ID)})
	}
	return all
}

// Recover makes the storage that of the only voter of the group's next incarnation, which goes by
// another name: what is of the old one does not get on with it. The revision leaps, see
// coord.BumpIncarnation. The RecoveredState is of no use afterwards.
//
// Errors: Invalid; those of coord.BumpIncarnation; Internal.
func (v *RecoveredState) Recover(group string, only Member) error {
	const op = "replica.Refound"
	if err := only.validate(); err != nil {
		return fault.Wrap(op, err)
	}
	at := position{v.last.index + 1, v.term + 1}
	m := v.replica.machine
	result, _ := m.Apply(at.index, at.term, coord.Command{Op: &coord.BumpIncarnation{Incarnation: m.Incarnation() + 1}})
	if result.Err != nil {
		return fault.Wrap(op, result.Err)
	}
	snap := &pb.Snapshot{
		Data: encodeMembers([]Member{only}),
		Metadata: &pb.SnapshotMetadata{
			Index: &at.index, Term: &at.term,
			ConfState: &pb.ConfState{Voters: []uint64{only.ID}, AutoLeave: new(false)},
		},
	}
	s := v.replica.storage
	return fault.Wrap(op, s.Recover(raftlog.Identity{Member: only.ID, Group: group}, snap, m.Image()))
}
