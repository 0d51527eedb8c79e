package raftlog

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	logDir      = "log"
	snapshotDir = "snapshots"
	markFile    = "mark"
	partial     = ".partial"

	// A snapshot's file holds the magic, the length and CRC-32C of its metadata in four bytes each,
	// big-endian, the metadata, and the state in the machine's format.
	magic = "BHGROUP\x01"
	// maxMetadata bounds a length before it is believed.
	maxMetadata = 1 << 20
)

// snapshotFiles are the files of snapshots, for any goroutine.
type snapshotFiles struct {
	fs     vfs.FS
	dir    string
	log    *slog.Logger
	writes atomic.Uint64 // started, for unique names of unfinished files
}

func (f *snapshotFiles) path(elem ...string) string {
	return f.fs.PathJoin(append([]string{f.dir}, elem...)...)
}

// makeDirs makes the folders and their names durable, up to the first existing one.
func (f *snapshotFiles) makeDirs() error {
	made := []string{f.dir}
	for dir := f.dir; ; made = append(made, dir) {
		if _, err := f.fs.Stat(dir); err == nil || dir == f.fs.PathDir(dir) {
			break
		}
		dir = f.fs.PathDir(dir)
	}
	if err := f.fs.MkdirAll(f.path(snapshotDir), 0o700); err != nil {
		return err
	}
	for _, dir := range made {
		if err := store.SyncDir(f.fs, dir); err != nil {
			return err
		}
	}
	return nil
}

// name identifies a snapshot: members with the same applied entries write the same bytes.
func name(snap *pb.Snapshot) string {
	return fmt.Sprintf("%016x-%016x", snap.GetMetadata().GetTerm(), snap.GetMetadata().GetIndex())
}

// Write writes the file of a snapshot durably. It has no effect before Adopt or Restore. It is safe for
// concurrent use.
//
// Errors: Internal, or as the state.
func (f *snapshotFiles) Write(snap *pb.Snapshot, state io.WriterTo) error {
	const op = "raftlog.Write"
	path := f.path(snapshotDir, name(snap))
	temporary := fmt.Sprintf("%s.%d%s", path, f.writes.Add(1), partial)
	if err := f.writeFile(temporary, snap, state); err != nil {
		_ = f.fs.Remove(temporary)
		return fault.Wrap(op, err)
	}
	if err := f.fs.Rename(temporary, path); err != nil {
		return fault.As(op, fault.Internal, err)
	}
	return fault.Wrap(op, store.SyncDir(f.fs, f.path(snapshotDir)))
}

func (f *snapshotFiles) writeFile(path string, snap *pb.Snapshot, state io.WriterTo) error {
	file, err := f.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(file, 256<<10)
	if err = writeMetadata(w, snap); err == nil {
		_, err = state.WriteTo(w)
	}
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = file.Sync()
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	return err
}

func writeMetadata(w io.Writer, snap *pb.Snapshot) error {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(snap)
	if err != nil {
		return err
	}
	head := binary.BigEndian.AppendUint32([]byte(magic), uint32(len(b)))
	head = binary.BigEndian.AppendUint32(head, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	_, err = w.Write(append(head, b...))
	return err
}

// ReadMetadata reads the start of a snapshot's file; the state follows.
//
// Errors: Invalid.
func ReadMetadata(r io.Reader) (*pb.Snapshot, error) {
	const op = "raftlog.ReadMetadata"
	var head [len(magic) + 8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, fault.As(op, fault.Invalid, err)
	}
	size := binary.BigEndian.Uint32(head[len(magic):])
	if string(head[:len(magic)]) != magic || size > maxMetadata {
		return nil, fault.New(op, fault.Invalid, "is not a snapshot")
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, fault.As(op, fault.Invalid, err)
	}
	if crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) != binary.BigEndian.Uint32(head[len(magic)+4:]) {
		return nil, fault.New(op, fault.Invalid, "metadata is damaged")
	}
	snap := new(pb.Snapshot)
	if err := proto.Unmarshal(b, snap); err != nil {
		return nil, fault.As(op, fault.Invalid, err)
	}
	return whole(snap), nil
}

// State opens the state of a snapshot's file, in any goroutine. It stays readable after its replacement by a
// newer snapshot.
//
// Errors: NotFound; Invalid for a damaged file; Internal.
func (f *snapshotFiles) State(snap *pb.Snapshot) (io.ReadCloser, error) {
	const op = "raftlog.State"
	file, err := f.fs.Open(f.path(snapshotDir, name(snap)), vfs.SequentialReadsOption)
	if err != nil {
		return nil, fault.As(op, fault.NotFound, err)
	}
	r := bufio.NewReaderSize(file, 256<<10)
	found, err := ReadMetadata(r)
	if err == nil && name(found) != name(snap) {
		err = fault.New(op, fault.Invalid, "file of %s has %s in it", name(snap), name(found))
	}
	if err != nil {
		_ = file.Close()
		return nil, fault.Wrap(op, err)
	}
	return &state{Reader: r, file: file}, nil
}

// Refused tells why the snapshot in force cannot be read. Errors: as Open.
func (s *Storage) Refused(snap *pb.Snapshot, err error) error {
	return place("snapshot of the coordination group", s.path(snapshotDir, name(snap)), s.dir).Refused(err)
}

type state struct {
	*bufio.Reader
	file vfs.File
}

func (s *state) Close() error { return s.file.Close() }

// Bootstrap begins the log with a snapshot that all initial voters derive alike, and binds the folder to the
// group. After a crash it can be repeated.
//
// Errors: Conflict for a folder with a log or of another group; Internal.
func (s *Storage) Bootstrap(group string, snap *pb.Snapshot, state io.WriterTo) error {
	const op = "raftlog.Bootstrap"
	if s.snapshot != nil || s.last > 0 {
		return fault.New(op, fault.Conflict, "the folder has a log already")
	}
	if err := s.Bind(group); err != nil {
		return fault.Wrap(op, err)
	}
	if err := s.Write(snap, state); err != nil {
		return fault.Wrap(op, err)
	}
	hard := &pb.HardState{Term: snap.Metadata.Term, Vote: new(uint64(0)), Commit: snap.Metadata.Index}
	return fault.Wrap(op, s.Restore(snap, hard, 0))
}

// Adopt puts a written snapshot in force and removes older ones. The log stays; see Compact. It ignores a
// snapshot that is not newer. Errors: Internal.
func (s *Storage) Adopt(snap *pb.Snapshot) error {
	const op = "raftlog.Adopt"
	at := snap.GetMetadata().GetIndex()
	if at <= s.snapshot.GetMetadata().GetIndex() {
		return nil
	}
	if at > s.last {
		return fault.New(op, fault.Internal, "snapshot at %d is ahead of the log, which ends at %d", at, s.last)
	}
	s.db.batch.Reset()
	s.db.setMessage([]byte(keySnapshot), snap)
	s.db.now.snapshot = positionOf(snap)
	if err := s.db.commit(true); err != nil {
		return fault.Wrap(op, err)
	}
	s.snapshot = whole(snap)
	return fault.Wrap(op, s.sweep(s.outdated))
}

// Restore replaces log and state by a written snapshot of the leader, and stores the hard state, whose commit
// index is at least the snapshot's. sum is the leader's Sum at the snapshot. Errors: Internal.
func (s *Storage) Restore(snap *pb.Snapshot, hard *pb.HardState, sum uint32) error {
	return fault.Wrap("raftlog.Restore", s.replace(snap, hard, sum, nil))
}

// replace replaces log and state by a written snapshot, and the folder's owner if h is given.
func (s *Storage) replace(snap *pb.Snapshot, hard *pb.HardState, sum uint32, h *header) error {
	cut := positionOf(snap)
	cut.sum = sum
	s.db.batch.Reset()
	s.db.setMessage([]byte(keySnapshot), snap)
	s.db.set([]byte(keyCut), cut.append(nil))
	if hard != nil {
		s.db.setMessage([]byte(keyHard), hard)
		s.db.now.hard = hard
	}
	if h != nil {
		s.db.set([]byte(keyHeader), h.append(nil))
		s.db.now.header = *h
	}
	if err := s.db.deleteEntries(0, 1<<64-1); err != nil {
		return err
	}
	s.db.now.cut, s.db.now.snapshot, s.db.now.end = cut, positionOf(snap), cut
	if err := s.db.commit(true); err != nil {
		return err
	}
	if hard != nil {
		s.hard = hard
	}
	s.snapshot, s.cut, s.last = whole(snap), cut, cut.index
	s.tail.clear()
	return s.sweep(s.outdated)
}

// Identity names the owner of a folder: a member of a group.
type Identity struct {
	Member uint64
	Group  string
}

// Recover gives the folder to another member of another group, which begins with a snapshot, atomically. The
// old log and the old member's promises are gone. See package replica for its use.
//
// Errors: Invalid; Internal.
func (s *Storage) Recover(id Identity, snap *pb.Snapshot, state io.WriterTo) error {
	const op = "raftlog.Recover"
	if id.Group == "" || len(id.Group) > maxGroup || !validMember(id.Member) {
		return fault.Wrap(op, fault.Invalidf("group", nil, "must have 1 to %d bytes, and a member", maxGroup))
	}
	if err := s.Write(snap, state); err != nil {
		return fault.Wrap(op, err)
	}
	h := header{format: format().Version(), member: id.Member, group: id.Group}
	hard := &pb.HardState{Term: snap.Metadata.Term, Vote: new(uint64(0)), Commit: snap.Metadata.Index}
	if err := s.replace(snap, hard, 0, &h); err != nil {
		return fault.Wrap(op, err)
	}
	s.header = h
	return nil
}

// outdated matches snapshots older than the one in force, unfinished ones included, but no newer one in
// progress.
func (s *Storage) outdated(file string) bool {
	var term, index uint64
	n, _ := fmt.Sscanf(file, "%x-%x", &term, &index)
	return n != 2 || index < s.snapshot.GetMetadata().GetIndex()
}

// leftover matches files of an earlier crash. Call it before the first write.
func (s *Storage) leftover(file string) bool { return file != name(s.snapshot) }

// SnapshotBytes returns the size of the largest whole snapshot of a log; 0 without one.
func SnapshotBytes(fs vfs.FS, dir string) (most uint64) {
	files, _ := fs.List(fs.PathJoin(dir, snapshotDir)) // without the folder there is none
	for _, file := range files {
		if info, err := fs.Stat(fs.PathJoin(dir, snapshotDir, file)); err == nil && !strings.HasSuffix(file, partial) {
			most = max(most, uint64(info.Size()))
		}
	}
	return most
}

// sweep removes files of snapshots.
func (f *snapshotFiles) sweep(unwanted func(file string) bool) error {
	files, err := f.fs.List(f.path(snapshotDir))
	if err != nil {
		return fault.As("", fault.Internal, err)
	}
	for _, file := range files {
		if !unwanted(file) {
			continue
		}
		if err := f.fs.Remove(f.path(snapshotDir, file)); err != nil {
			f.log.Warn("cannot remove an old snapshot", "file", file, "error", err)
		}
	}
	return nil
}
