package replica

import (
	"encoding/binary"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/internal/coordination/raftlog"
	"github.com/blackhole/blackhole/pkg/fault"
)

// contradict compares a message of another member with what this member's disk holds. Raft forbids each of these
// differences, so a disk forgot something that was acknowledged: a restored copy, or a power cut that took synced data.
// This member cannot know whose disk it was. It stops, before it acknowledges or serves anything more.
//
// Raft compares terms and lengths of logs only. It would panic on a commit index above the log, and ignore the rest.
func (t *turn) contradict(r *Replica, m *pb.Message) error {
	if isProof(m) {
		return t.refuted(r, m)
	}
	status := r.node.BasicStatus()
	if m.GetTerm() < status.GetTerm() {
		return nil // Raft ignores it too
	}
	last, _ := r.storage.LastIndex() // never fails
	switch m.GetType() {
	case pb.MsgApp, pb.MsgHeartbeat, pb.MsgSnap:
		if status.GetTerm() == m.GetTerm() && status.Lead != 0 && status.Lead != m.GetFrom() {
			return fault.New("", fault.Internal, "term %d has two leaders, members %x and %x: the disk of a voter lost its vote, or was restored from a copy",
				m.GetTerm(), status.Lead, m.GetFrom())
		}
	case pb.MsgAppResp: // all entries sent so far are stored
		if status.RaftState == raft.StateLeader && m.GetTerm() == status.GetTerm() && !m.GetReject() && m.GetIndex() > last {
			return fault.New("", fault.Internal,
				"member %x has entry %d, but the log of this leader ends at %d: acknowledged entries are missing here", m.GetFrom(), m.GetIndex(), last)
		}
	}
	switch m.GetType() {
	case pb.MsgApp:
		return t.differs(r, m, last)
	case pb.MsgSnap:
		meta := m.GetSnapshot().GetMetadata()
		if meta.GetIndex() < r.applied.index {
			return nil // Raft ignores it too
		}
		theirs, _ := leadersOf(m.GetSnapshot()) // checked
		if one, differ := r.leaders.differs(theirs); differ {
			t.proof = &pb.Message{Context: one.append(nil)}
			return errForgotten(one.term)
		}
		return t.sameEntry(r, m, position{meta.GetIndex(), meta.GetTerm()}, sumOf(m))
	case pb.MsgHeartbeat:
		if m.GetCommit() > last {
			return fault.New("", fault.Internal,
				"this member acknowledged entry %d to leader %x, but its log ends at %d: %s was restored from a copy, or its disk lost data",
				m.GetCommit(), m.GetFrom(), last, r.storage.Dir())
		}
	}
	return nil
}

// differs compares a leader's entries with stored ones. Entries before the log cannot be compared.
func (t *turn) differs(r *Replica, m *pb.Message, last uint64) error {
	at, sum := position{m.GetIndex(), m.GetLogTerm()}, sumOf(m)
	for i := 0; at.index <= last; i++ {
		term, err := r.storage.Term(at.index)
		switch {
		case err != nil || at.index == 0: // before the log
		case term != at.term && at.index <= r.applied.index:
			own, _, err := r.storage.Sum(at.index)
			if err != nil {
				return err
			}
			t.proof = &pb.Message{Index: new(at.index), LogTerm: new(term), Context: binary.BigEndian.AppendUint32(nil, own)}
			return fault.New("", fault.Internal,
				"leader %x has entry %d of term %d, but this member applied that of term %d: the leader's group lost acknowledged entries",
				m.GetFrom(), at.index, at.term, term)
		case term != at.term:
			return nil // Raft replaces these entries
		case len(m.GetContext()) > 0:
			if err := t.sameEntry(r, m, at, sum); err != nil {
				return err
			}
		}
		if i == len(m.GetEntries()) {
			return nil
		}
		e := m.GetEntries()[i]
		at, sum = position{e.GetIndex(), e.GetTerm()}, raftlog.SumAfter(sum, e)
	}
	return nil
}

// sameEntry compares another member's entry, with all entries before it, with a stored one of the same term. A term has one
// leader, which makes one entry for an index: other contents prove that it had two.
func (t *turn) sameEntry(r *Replica, m *pb.Message, at position, sum uint32) error {
	if term, err := r.storage.Term(at.index); err != nil || term != at.term {
		return nil
	}
	own, known, err := r.storage.Sum(at.index)
	if err != nil || !known || own == sum {
		return err
	}
	t.proof = &pb.Message{Index: new(at.index), LogTerm: new(at.term), Context: binary.BigEndian.AppendUint32(nil, own)}
	return fault.New("", fault.Internal,
		"entry %d of term %d, or one before it, has other contents at member %x: the disk of a voter lost its vote or entries, or was restored from a copy",
		at.index, at.term, m.GetFrom())
}

// Lengths of the context of a message.
const (
	sumSize        = 4  // of the sum at an entry: of the one before an append, of the last one of a snapshot, of a proof
	leadershipSize = 24 // of a proof
)

// sumOf reads the sum that a message carries; 0 without one.
func sumOf(m *pb.Message) uint32 {
	if len(m.GetContext()) != sumSize {
		return 0
	}
	return binary.BigEndian.Uint32(m.GetContext())
}

// withSums adds the sum of this leader's log to appends and snapshots. An append behind unsaved entries has none: the
// append before it had one.
func (t *turn) withSums(r *Replica, messages []*pb.Message) []*pb.Message {
	for _, m := range messages {
		at := position{m.GetIndex(), m.GetLogTerm()}
		switch m.GetType() {
		case pb.MsgSnap:
			meta := m.GetSnapshot().GetMetadata()
			at = position{meta.GetIndex(), meta.GetTerm()}
		case pb.MsgApp:
		default:
			continue
		}
		if term, err := r.storage.Term(at.index); err != nil || term != at.term {
			continue
		}
		if sum, known, err := r.storage.Sum(at.index); err == nil && known {
			m.Context = binary.BigEndian.AppendUint32(nil, sum)
		}
	}
	return messages
}

// accuse answers a member that this one contradicts: with how far this member's state reaches, as Raft's own answer would,
// with its last command, and with what differs. The other member compares all with its own disk, and then stops too.
func (t *turn) accuse(r *Replica) []*pb.Message {
	all := []*pb.Message{{Index: new(r.applied.index)}}
	if n := len(r.leaders); n > 0 {
		all = append(all, &pb.Message{Context: r.leaders[n-1].append(nil)})
	}
	if t.proof != nil {
		all = append(all, t.proof)
	}
	for _, m := range all {
		m.Type, m.To, m.From, m.Term = pb.MsgAppResp.Enum(), new(t.cause.GetFrom()), new(r.id), new(t.cause.GetTerm())
	}
	if t.cause.GetType() == pb.MsgAppResp { // its sender does not lead
		return all[1:]
	}
	return all
}

// isProof reports whether a message is one of accuse that Raft does not know.
func isProof(m *pb.Message) bool { return m.GetType() == pb.MsgAppResp && len(m.GetContext()) > 0 }

// refuted compares a proof with what this member's disk holds. The sender applied the entry or the command.
func (t *turn) refuted(r *Replica, m *pb.Message) error {
	if len(m.GetContext()) == leadershipSize {
		if one := leadershipOf(m.GetContext()); r.leaders.lacks(one) {
			return errForgotten(one.term)
		}
		return nil
	}
	status := r.node.BasicStatus()
	term, err := r.storage.Term(m.GetIndex())
	if err == nil && term != m.GetLogTerm() && (status.RaftState == raft.StateLeader || m.GetIndex() <= r.applied.index) {
		return fault.New("", fault.Internal, "member %x applied entry %d of term %d, but this member has that of term %d: acknowledged entries are missing here",
			m.GetFrom(), m.GetIndex(), m.GetLogTerm(), term)
	}
	return t.sameEntry(r, m, position{m.GetIndex(), m.GetLogTerm()}, sumOf(m))
}
