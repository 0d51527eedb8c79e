package replica

import (
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"

	"github.com/blackhole/blackhole/internal/contract/coord"
)

// Status describes a member.
type Status struct {
	Header coord.Header
	// Leader is the known leader; zero without one.
	Leader Member
	// Leads marks the leader. Promoted also says that its state contains all answers of earlier leaders, so
	// that it serves.
	Leads, Promoted bool
	// Applied and Commit are log indexes; Snapshot is the index of the snapshot in force.
	Applied, Commit, Snapshot uint64
	// LastTerm and LastIndex are the end of the log, committed or not.
	LastTerm, LastIndex uint64
	// Level is the feature level of the group; 0 before this member has a state.
	Level uint32
	// Members of the applied configuration, by id.
	Members []MemberStatus
	// Joint says that a configuration change is half done.
	Joint bool
	// Transferee is the target of a leadership transfer; 0 without one.
	Transferee uint64
	// Pending counts requests without an answer; LogBytes is the size of the log in memory.
	Pending, LogBytes int
	// Leases counts the leases with a deadline here; Overdue is the delay of the latest one. Both are the
	// leader's.
	Leases  int
	Overdue time.Duration
}

// MemberStatus describes one member. Only the leader fills Match and Active.
type MemberStatus struct {
	Member
	Voter bool   // in either half of a joint configuration
	Match uint64 // last log index equal to the leader's
	// Active says that the member sent a message within an election timeout.
	Active bool
	// Snapshot says that the member needs a snapshot, which is being sent.
	Snapshot bool
}

// Leader returns the id of the known leader or 0, and whether this member leads and serves; see Status.
func (r *Replica) Leader() (id uint64, promoted bool) { return r.role.leader, r.role.promoted }

// Members returns all members by id, leaving and joining ones included.
func (r *Replica) Members() []Member { return r.membership.members() }

// Status describes the member now.
func (r *Replica) Status() Status {
	basic := r.node.BasicStatus()
	s := Status{
		Header: r.Header(), Leads: r.role.leads, Promoted: r.role.promoted,
		Applied: r.applied.index, Commit: basic.GetCommit(), Snapshot: r.snapshots.index,
		Joint: r.membership.joint(), Transferee: basic.LeadTransferee,
		Pending: len(r.proposals.staged) + len(r.proposals.pending) + r.reads.waiting(), LogBytes: r.storage.LogBytes(),
		Leases: r.lessor.Len(), Overdue: r.lessor.Overdue(r.now),
	}
	if r.applied.index > 0 {
		s.Level = r.machine.Level()
	}
	s.LastIndex, _ = r.storage.LastIndex() // never fails
	s.LastTerm, _ = r.storage.Term(s.LastIndex)
	if l := r.role.leader; l != 0 {
		s.Leader = Member{ID: l, Peer: r.membership.peers[l]}
	}
	for _, m := range r.membership.members() {
		s.Members = append(s.Members, MemberStatus{Member: m, Voter: r.membership.votes(m.ID)})
	}
	if r.role.leads {
		progress(r, s.Members)
	}
	return s
}

// progress describes the members as their leader sees them. Raft's own flag of activity is false for a moment in each election
// timeout.
func progress(r *Replica, members []MemberStatus) {
	r.node.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
		for i := range members {
			if m := &members[i]; m.ID == id {
				at, seen := r.lastSeen[id]
				m.Match, m.Snapshot = p.Match, p.State == tracker.StateSnapshot
				m.Active = id == r.id || seen && r.now-at <= r.config.ElectionTimeout()
			}
		}
	})
}
