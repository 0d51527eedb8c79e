package replica

import (
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/pkg/fault"
)

// check refuses messages on which Raft would panic, and messages that no member sends: the network validates
// no more than their encoding.
func check(self uint64, m *pb.Message) error {
	switch {
	case m == nil:
		return fault.Invalidf("message", nil, "is missing")
	case m.GetTo() != self:
		return fault.Invalidf("to", m.GetTo(), "wrong member: expected %x", self)
	case m.GetFrom() == self || (Member{ID: m.GetFrom(), Peer: "p"}).validate() != nil:
		return fault.Invalidf("from", m.GetFrom(), "must be another member")
	case len(m.GetResponses()) > 0:
		return fault.Invalidf("responses", nil, "are no message between members")
	case len(m.GetContext()) > 64:
		return fault.Invalidf("context", nil, "is too long")
	}
	switch m.GetType() {
	case pb.MsgReadIndex:
		return oneNumber(m)
	case pb.MsgReadIndexResp:
		if err := oneNumber(m); err != nil {
			return err
		}
	case pb.MsgApp:
		if err := checkAppend(m); err != nil {
			return err
		}
		if n := len(m.GetContext()); n != 0 && n != sumSize {
			return fault.Invalidf("context", n, "wrong length: use 0 or %d bytes", sumSize)
		}
	case pb.MsgAppResp:
		if n := len(m.GetContext()); n != 0 && n != sumSize && n != leadershipSize {
			return fault.Invalidf("context", n, "wrong length: use 0, %d or %d bytes", sumSize, leadershipSize)
		}
	case pb.MsgHeartbeatResp:
		if n := len(m.GetContext()); n != 0 && n != 8 {
			return fault.Invalidf("context", n, "wrong length: use 0 or 8 bytes")
		}
	case pb.MsgSnap:
		return fault.Invalidf("type", m.GetType().String(), "needs its state; see Restore")
	case pb.MsgVote, pb.MsgVoteResp, pb.MsgPreVote, pb.MsgPreVoteResp, pb.MsgHeartbeat, pb.MsgTimeoutNow:
	default:
		return fault.Invalidf("type", m.GetType().String(), "is not sent between members")
	}
	if m.GetTerm() == 0 {
		return fault.Invalidf("term", 0, "must be above 0")
	}
	return nil
}

// oneNumber requires the round number of a read.
func oneNumber(m *pb.Message) error {
	if len(m.GetEntries()) != 1 || len(m.GetEntries()[0].GetData()) != 8 {
		return fault.Invalidf("entries", len(m.GetEntries()), "use one entry of 8 bytes")
	}
	return nil
}

// checkAppend requires entries in order, with terms that do not fall.
func checkAppend(m *pb.Message) error {
	term := m.GetLogTerm()
	for i, e := range m.GetEntries() {
		if e.GetIndex() != m.GetIndex()+1+uint64(i) || e.GetTerm() < term || e.GetTerm() > m.GetTerm() {
			return fault.Invalidf("entries", e.GetIndex(), "are not a piece of a log")
		}
		term = e.GetTerm()
	}
	return nil
}
