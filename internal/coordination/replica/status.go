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

// Leader is the id of the leader as far as known, 0 when not.
func (r *Replica) Leader() uint64 { return r.role.leader }

// Promoted says that this member leads and serves; see Status.
func (r *Replica) Promoted() bool { return r.role.promoted }

// Members of the group by id, those that are leaving or joining included.
func (r *Replica) Members() []Member { return r.roster.members() }

// Status tells how the member stands.
func (r *Replica) Status() Status {
	basic := r.node.BasicStatus()
	s := Status{
		Header: r.Header(), Leads: r.role.leads, Promoted: r.role.promoted,
		Applied: r.applied.index, Commit: basic.GetCommit(), Snapshot: r.taken.index,
		Joint: r.roster.joint(), Transferee: basic.LeadTransferee,
		Pending: len(r.asks.staged) + len(r.asks.pending) + r.reads.waiting(), LogBytes: r.storage.LogBytes(),
		Leases: r.lessor.Len(), Overdue: r.lessor.Overdue(r.now),
	}
	if l := r.role.leader; l != 0 {
		s.Leader = Member{ID: l, Peer: r.roster.peers[l]}
	}
	for _, m := range r.roster.members() {
		s.Members = append(s.Members, MemberStatus{Member: m, Voter: r.roster.votes(m.ID)})
	}
	if r.role.leads {
		r.progress(s.Members)
	}
	return s
}

func (r *Replica) progress(members []MemberStatus) {
	r.node.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
		for i := range members {
			if m := &members[i]; m.ID == id {
				m.Match, m.Active, m.Snapshot = p.Match, p.RecentActive || id == r.id, p.State == tracker.StateSnapshot
			}
		}
	})
}
