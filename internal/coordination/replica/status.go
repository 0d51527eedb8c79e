package replica

import (
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"

	"github.com/blackhole/blackhole/pkg/coord"
)

// Status is how a member stands.
type Status struct {
	Header coord.Header
	// Leader, as far as known; zero when not.
	Leader Member
	// Leads says that this member is the leader; Promoted, that it also knows all that any leader
	// before it has answered, and serves.
	Leads, Promoted bool
	// Applied and Commit are indexes of the log, Snapshot that of the one in force.
	Applied, Commit, Snapshot uint64
	// Members of the group, by id, as this member has applied them.
	Members []MemberStatus
	// Joint says that a change of the configuration is half done.
	Joint bool
	// Transferee is to become leader; 0 when nobody is.
	Transferee uint64
	// Pending counts what waits for an answer; LogBytes are those of the log in memory.
	Pending, LogBytes int
	// Leases counts those with a deadline here; Overdue is how late the latest is. Of the leader.
	Leases  int
	Overdue time.Duration
}

// MemberStatus is how one member stands. Match and Active are known to the leader only.
type MemberStatus struct {
	Member
	Voter bool   // in either half of a joint configuration
	Match uint64 // index up to which its log is the leader's
	// Active says that it was heard of within an election timeout.
	Active bool
	// Snapshot says that it is so far behind that it is being sent one.
	Snapshot bool
}

// Leader returns the id of the known leader or 0, and whether this member leads and serves; see Status.
func (r *Replica) Leader() (id uint64, promoted bool) { return r.role.leader, r.role.promoted }

// Members of the group by id, those that are leaving or joining included.
func (r *Replica) Members() []Member { return r.membership.members() }

// Status tells how the member stands.
func (r *Replica) Status() Status {
	basic := r.node.BasicStatus()
	s := Status{
		Header: r.Header(), Leads: r.role.leads, Promoted: r.role.promoted,
		Applied: r.applied.index, Commit: basic.GetCommit(), Snapshot: r.snapshots.index,
		Joint: r.membership.joint(), Transferee: basic.LeadTransferee,
		Pending: len(r.proposals.staged) + len(r.proposals.pending) + r.reads.waiting(), LogBytes: r.storage.LogBytes(),
		Leases: r.lessor.Len(), Overdue: r.lessor.Overdue(r.now),
	}
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

func progress(r *Replica, members []MemberStatus) {
	r.node.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
		for i := range members {
			if m := &members[i]; m.ID == id {
				m.Match, m.Active, m.Snapshot = p.Match, p.RecentActive || id == r.id, p.State == tracker.StateSnapshot
			}
		}
	})
}
