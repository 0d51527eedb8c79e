package formation

import (
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/raftlog"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/internal/coordination/view"
	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Dir is the directory of a peer's coordination plane. It holds what the peer remembers of its group, and the log and the
// snapshots of its member.
type Dir struct {
	FS    vfs.FS
	Path  string
	Marks string // directory of the identity key; see bootstrap.DataDir
}

// Bootstrap returns the folders of the memory of the group.
func (d Dir) Bootstrap() bootstrap.DataDir {
	return bootstrap.DataDir{Dir: d.FS.PathJoin(d.Path, "bootstrap"), Marks: d.Marks}
}

func (d Dir) raft() string { return d.FS.PathJoin(d.Path, "raft") }

// HasLog reports whether the peer has or had a member.
func (d Dir) HasLog() bool {
	_, err := d.FS.Stat(d.FS.PathJoin(d.raft(), "log"))
	return !errors.Is(err, fs.ErrNotExist)
}

// SnapshotBytes returns the size of the largest whole snapshot; 0 without one.
func (d Dir) SnapshotBytes() uint64 { return raftlog.SnapshotBytes(d.FS, d.raft()) }

// Open opens or creates the disk of the member. Errors: as raftlog.Open.
func (d Dir) Open(log *slog.Logger, synced func(time.Duration)) (*raftlog.Storage, error) {
	return raftlog.Open(raftlog.Options{FS: d.FS, Dir: d.raft(), Logger: log, Synced: synced})
}

// Examine reads what a start reads, and changes nothing: the memory of the group, the log and the snapshot. Each error tells a
// problem, or is one of bootstrap.OpenStore.
func (d Dir) Examine(self peer.ID, network bootstrap.Network) (found []error) {
	if err := bootstrap.Examine(d.FS, d.Bootstrap(), self, network); err != nil {
		found = append(found, err)
	}
	if _, err := bootstrap.LoadRecovery(d.FS, d.Path); err != nil {
		found = append(found, err)
	}
	if !d.HasLog() {
		return found
	}
	disk, err := raftlog.Open(raftlog.Options{FS: d.FS, Dir: d.raft(), ReadOnly: true})
	if err != nil {
		return append(found, err)
	}
	defer func() { _ = disk.Close() }()
	if err := replica.Examine(disk); err != nil {
		found = append(found, err)
	}
	return found
}

// salvage opens the disk of a stopped peer, damaged parts included.
func (d Dir) salvage() (*raftlog.Storage, error) {
	return raftlog.Open(raftlog.Options{FS: d.FS, Dir: d.raft(), Salvage: true, Logger: slog.New(slog.DiscardHandler)})
}

// lock keeps a running peer away. Errors: Conflict.
func (d Dir) lock() (io.Closer, error) {
	unlock, err := bootstrap.Lock(d.FS, d.Bootstrap().Dir)
	if err != nil {
		return nil, fault.New("", fault.Conflict, "%s is in use: stop the peer first: %w", d.Path, err)
	}
	return unlock, nil
}

// DropLeft removes the member of a former group, after the peer went over to the present one. Errors: Internal.
func (d Dir) DropLeft(memory *bootstrap.Store) error {
	state := memory.State()
	if !state.Drop {
		return nil
	}
	if err := errors.Join(d.FS.RemoveAll(d.raft()), store.SyncDir(d.FS, d.Path)); err != nil {
		return fault.As("", fault.Internal, err)
	}
	state.Drop = false
	return memory.Save(state)
}

// Incarnation returns the newest incarnation of a group that the peer knows, and the one of its disk, which is nil for a client. If
// the disk has an older one, its member takes part no more. Errors: Conflict for a disk of another group; Internal.
func (d Dir) Incarnation(disk *raftlog.Storage, group bootstrap.GroupID) (known, had view.Incarnation, err error) {
	known.Group = group
	kept, err := bootstrap.LoadRecovery(d.FS, d.Path)
	if err != nil {
		return known, known, err
	}
	if kept.Group == group {
		known.Recovery = kept
	}
	if disk == nil || disk.Group() == "" {
		return known, known, nil
	}
	had, err = view.Stored(disk.Group())
	switch {
	case err != nil:
	case had.Group != group:
		err = fault.New("", fault.Conflict, "%s belongs to group %v, not %v: use another directory", d.Path, had.Group, group)
	case had.Recovery.Incarnation > known.Recovery.Incarnation:
		known = had
	}
	return known, had, err
}

// Begin prepares a disk for a member of an incarnation. An initial voter with its first disk, which has the raft id of the initial
// membership, begins the log like all other initial voters. Any other peer waits for the incarnation from a member, and then gets
// the state from the leader. False: the wait ended without an incarnation.
func Begin(disk *raftlog.Storage, self peer.ID, group bootstrap.Membership, i view.Incarnation, wait func() (view.Incarnation, bool)) (view.Incarnation, bool, error) {
	voter, first := group.Voter(self)
	switch {
	case disk.Group() != "" && disk.HasSnapshot():
	case i.Recovery.IsZero() && first && voter.RaftID == disk.Member():
		voters := make([]replica.Member, len(group.Voters))
		for at, v := range group.Voters {
			voters[at] = replica.Member{ID: v.RaftID, Peer: v.Peer.String()}
		}
		return i, true, replica.Bootstrap(disk, i.StorageID(), voters)
	case disk.Group() == "":
		i, ok := wait()
		if !ok {
			return i, false, nil
		}
		return i, true, disk.Bind(i.StorageID())
	}
	return i, true, nil
}

// release closes c, and reports an error unless *err holds one.
func release(c io.Closer, err *error) {
	if e := c.Close(); *err == nil {
		*err = e
	}
}
