package replica

import (
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/pkg/fault"
)

// contradict compares a message of another member with what this member's disk holds. Raft forbids each of these
// differences, so a disk forgot something that was acknowledged: a restored copy, or a power cut that took synced data.
// This member cannot know whose disk it was. It stops, before it acknowledges or serves anything more.
//
// Raft would ignore the first two cases, and panic on the last one.
func (t *turn) contradict(r *Replica, m *pb.Message) error {
	status := r.node.BasicStatus()
	if m.GetTerm() < status.GetTerm() {
		return nil // Raft ignores it too
	}
	switch m.GetType() {
	case pb.MsgApp:
		return differs(r, m)
	case pb.MsgAppResp:
		last, _ := r.storage.LastIndex() // never fails; all entries sent so far are stored
		if status.RaftState == raft.StateLeader && m.GetTerm() == status.GetTerm() && !m.GetReject() && m.GetIndex() > last {
			return fault.New("", fault.Internal,
				"member %x has entry %d, but the log of this leader ends at %d: acknowledged entries are missing here", m.GetFrom(), m.GetIndex(), last)
		}
	case pb.MsgHeartbeat:
		last, _ := r.storage.LastIndex()
		if m.GetCommit() > last {
			return fault.New("", fault.Internal,
				"this member acknowledged entry %d to leader %x, but its log ends at %d: %s was restored from a copy, or its disk lost data",
				m.GetCommit(), m.GetFrom(), last, r.storage.Dir())
		}
	}
	return nil
}

// differs compares a leader's entries with applied ones. Entries before the log cannot be compared.
func differs(r *Replica, m *pb.Message) error {
	at := position{m.GetIndex(), m.GetLogTerm()}
	for i := 0; at.index <= r.applied.index; i++ {
		if term, err := r.storage.Term(at.index); err == nil && at.index > 0 && term != at.term {
			return fault.New("", fault.Internal,
				"leader %x has entry %d of term %d, but this member applied that of term %d: the leader's group lost acknowledged entries",
				m.GetFrom(), at.index, at.term, term)
		}
		if i == len(m.GetEntries()) {
			return nil
		}
		at = position{m.GetEntries()[i].GetIndex(), m.GetEntries()[i].GetTerm()}
	}
	return nil
}

// accuse shows a leader with other entries how far this member's state reaches, as Raft's own answer would. A leader
// with a shorter log then stops too.
func (t *turn) accuse(r *Replica) []*pb.Message {
	m := t.cause
	if m.GetType() != pb.MsgApp {
		return nil
	}
	kind := pb.MsgAppResp
	return []*pb.Message{{Type: &kind, To: new(m.GetFrom()), From: new(r.id), Term: new(m.GetTerm()), Index: new(r.applied.index)}}
}
