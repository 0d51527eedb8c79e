package replica

import (
	"go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/internal/coordination/machine"
)

// Checkpoint is the state after an empty entry. Every member that applies the entry takes the same one, so its hash
// shows whether the members agree. Each term begins with an empty entry, and Mark proposes more.
type Checkpoint struct {
	Index, Term uint64
	State       *machine.Image
}

// Mark proposes an empty entry as the leader. The proposer gets no answer: the next mark replaces a lost one.
func Mark(r *Replica) {
	if r.role.promoted {
		_ = r.node.Step(&raftpb.Message{Type: raftpb.MsgProp.Enum(), From: new(r.id), Entries: []*raftpb.Entry{{}}})
	}
}
