package replica

import (
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/raftlog"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Image is the state at one log entry, for a snapshot.
type Image struct {
	snapshot *pb.Snapshot
	state    *machine.Image
	storage  *raftlog.Storage
}

// Write writes the file of the snapshot, in any goroutine. It takes time in proportion to the state. Errors:
// Internal.
func (i *Image) Write() error {
	return fault.Wrap("replica.Image.Write", i.storage.Write(i.snapshot, i.state))
}

// takeImage requests a snapshot after enough log, or after a new member.
func (s *snapshots) takeImage(r *Replica) {
	since := r.applied.index - s.index
	grown := since >= r.config.SnapshotEntries || s.bytes >= snapshotBytes
	if s.writing || !grown && s.index >= s.joined {
		return
	}
	s.writing, s.bytes = true, 0
	index, term := r.applied.index, r.applied.term
	r.turn.out.Image = &Image{
		snapshot: &pb.Snapshot{
			Data:     snapshotData(r.leaders, r.membership.members()),
			Metadata: &pb.SnapshotMetadata{Index: &index, Term: &term, ConfState: r.membership.conf},
		},
		state: r.machine.Image(), storage: r.storage,
	}
}

// Written handles the end of an image's writing and compacts the log. An image older than a received snapshot
// is ignored.
//
// Errors: Internal; the process must end.
func (r *Replica) Written(i *Image, err error) error {
	const op = "replica.Written"
	r.snapshots.writing = false
	at := i.snapshot.GetMetadata().GetIndex()
	if at <= r.snapshots.index {
		return nil
	}
	if err != nil {
		return fault.Wrap(op, err)
	}
	if err := r.storage.Adopt(i.snapshot); err != nil {
		return fault.Wrap(op, err)
	}
	r.snapshots.previous, r.snapshots.index = r.snapshots.index, at
	trail := min(r.config.Trail, at-r.snapshots.previous)
	return fault.Wrap(op, r.storage.Compact(at-trail))
}
