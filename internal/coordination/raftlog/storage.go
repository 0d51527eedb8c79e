// Package raftlog keeps what a member of the coordination group must not forget: its id, the
// log, the hard state of Raft, and snapshots of the state machine.
//
// # Layout
//
// The log, the hard state and the header are keys of a Pebble store in the folder "log".
// Snapshots are files of their own in "snapshots", so that the store stays small and a snapshot
// can be written, received and sent beside everything else. The newest adopted one is
// named by the store; any other file there is a leftover.
//
//	h             header: format, member id, group id
//	s             hard state
//	c             index and term up to which the log is cut off
//	n             metadata of the snapshot in force
//	e<index>      entry, big-endian, so that they lie in order
//
// # Durability
//
// Save with sync, Bootstrap, Adopt and Restore return when the disk has it. An error of the disk
// is returned by the call that met it and by all after it: what a failed fsync left behind is
// unknown, so the process must end and start again from what is really there.
//
// # Identity
//
// The member id is drawn at random when the directory is made, and Raft's votes are bound to it.
// A peer that loses its directory therefore comes back as another member, and cannot vote
// twice in one term.
package raftlog

import (
	"crypto/rand"
	"encoding/binary"
	"io"
	"log/slog"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Options say where and how to keep things.
type Options struct {
	// FS is the file system; nil is the real one.
	FS vfs.FS
	// Dir is a folder of its own; made when absent.
	Dir string
	// Rand gives the member id of a new folder; nil is crypto/rand.
	Rand io.Reader
	// Tail bounds the bytes of recent entries kept in memory beside the disk; 0 is 1 MiB. A follower that keeps up
	// asks for no others, and one that does not has them from Pebble, mostly out of its memory too.
	Tail int
	// Logger hears of trouble; nil discards.
	Logger *slog.Logger
}

func (o *Options) defaults() {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.Tail <= 0 {
		o.Tail = 1 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Storage is one member's memory. Its methods are for the goroutine that owns it, but for
// those said to be for any. It implements raft.Storage.
type Storage struct {
	snapshotFiles
	db database

	header   header
	hard     *pb.HardState // nil before the first
	snapshot *pb.Snapshot  // in force; nil before the first
	cut      position      // of the last entry before the log
	last     uint64        // index of the last entry, cut.index when there is none
	tail     logCache
	closed   bool
	required uint64 // index below which Snapshot gives none
}

// position is where an entry stands.
type position struct{ index, term uint64 }

// Open reads the folder, or makes it with a new member id.
//
// Errors: Internal when the disk fails, what is there is damaged, or another process has it
// open; Unsupported for another format.
func Open(o Options) (*Storage, error) {
	const op = "storage.Open"
	if o.Dir == "" {
		return nil, fault.Wrap(op, fault.Invalidf("dir", nil, "is missing"))
	}
	o.defaults()
	s := &Storage{
		snapshotFiles: snapshotFiles{fs: o.FS, dir: o.Dir, log: o.Logger},
		db:            database{errors: &diskErrors{log: o.Logger}}, tail: logCache{limit: o.Tail},
	}
	if err := s.makeDirs(); err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	db, err := pebble.Open(s.path(logDir), pebbleOptions(s.fs, s.db.errors))
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	s.db.DB, s.db.batch = db, db.NewBatch()
	if err := s.load(o.Rand); err != nil {
		_ = s.Close()
		return nil, fault.Wrap(op, err)
	}
	return s, nil
}

// pebbleOptions make Pebble a log: no cache to speak of, one WAL file for several megabytes, so
// that files are recycled and a sync rarely has to extend one, and chunks that tell a torn end
// from damage in what was synced.
func pebbleOptions(fsys vfs.FS, logger pebble.Logger) *pebble.Options {
	return &pebble.Options{
		FS:                 fsys,
		Logger:             logger,
		FormatMajorVersion: pebble.FormatNewest,
		MemTableSize:       8 << 20,
		CacheSize:          1 << 20,
		MaxOpenFiles:       64,
		// The log is cut from behind by ranges: tables wholly in one are dropped unread.
		L0CompactionThreshold: 8,
	}
}

// Close releases the folder; again does nothing. What was not synced may be lost. Errors: Internal.
func (s *Storage) Close() error {
	const op = "storage.Close"
	if s.closed {
		return nil
	}
	s.closed = true
	_ = s.db.batch.Close()
	if err := s.db.Close(); err != nil {
		return fault.As(op, fault.Internal, err)
	}
	return fault.Wrap(op, s.db.errors.err())
}

// Member is the id of this member, never 0.
func (s *Storage) Member() uint64 { return s.header.member }

// Group is the group that the folder belongs to, "" while to none.
func (s *Storage) Group() string { return s.header.group }

// HasSnapshot says whether there is a snapshot to start from: false for a member that waits to be
// sent its first one.
func (s *Storage) HasSnapshot() bool { return s.snapshot != nil }

// Bind makes the folder belong to a group for good. Again with the same group does nothing.
//
// Errors: Conflict when it belongs to another; Invalid; Internal.
func (s *Storage) Bind(group string) error {
	const op = "storage.Bind"
	switch {
	case group == "" || len(group) > maxGroup:
		return fault.Wrap(op, fault.Invalidf("group", nil, "must have 1 to %d bytes", maxGroup))
	case s.header.group == group:
		return nil
	case s.header.group != "":
		return fault.New(op, fault.Conflict, "the folder belongs to group %x, not %x", s.header.group, group)
	}
	h := s.header
	h.group = group
	s.db.batch.Reset()
	s.db.set([]byte(keyHeader), h.encode())
	if err := s.db.commit(true); err != nil {
		return fault.Wrap(op, err)
	}
	s.header = h
	return nil
}

// Save appends entries, which may replace the end of the log, and keeps the hard state if
// one is given. With sync all of it, and all saved before, is durable on return.
//
// Errors: Internal; the process must end.
func (s *Storage) Save(hard *pb.HardState, entries []*pb.Entry, sync bool) error {
	const op = "storage.Save"
	s.db.batch.Reset()
	if hard != nil {
		s.db.setMessage([]byte(keyHard), hard)
	}
	if len(entries) > 0 {
		if err := s.stage(entries); err != nil {
			return fault.Wrap(op, err)
		}
	}
	if err := s.db.commit(sync); err != nil {
		return fault.Wrap(op, err)
	}
	if hard != nil {
		s.hard = hard
	}
	if len(entries) > 0 {
		s.tail.append(entries)
		s.last = entries[len(entries)-1].GetIndex()
	}
	return nil
}

// stage writes entries into the batch, and the end of what they replace out of it.
func (s *Storage) stage(entries []*pb.Entry) error {
	first, last := entries[0].GetIndex(), entries[len(entries)-1].GetIndex()
	if first <= s.cut.index || first > s.last+1 {
		return fault.New("", fault.Internal, "entries from %d do not follow a log of %d to %d", first, s.cut.index+1, s.last)
	}
	for _, e := range entries {
		s.db.setMessage(entryKey(e.GetIndex()), e)
	}
	if last < s.last {
		return s.db.deleteEntries(last+1, s.last+1)
	}
	return nil
}

// Compact cuts off the log up to index, that one included. Only what a snapshot in force covers
// may go. It need not be synced: a crash at worst brings the entries back.
//
// Errors: Internal.
func (s *Storage) Compact(index uint64) error {
	const op = "storage.Compact"
	if index <= s.cut.index {
		return nil
	}
	if s.snapshot == nil || index > s.snapshot.GetMetadata().GetIndex() {
		return fault.New(op, fault.Internal, "no snapshot covers entry %d", index)
	}
	term, err := s.Term(index)
	if err != nil {
		return fault.As(op, fault.Internal, err)
	}
	cut := position{index: index, term: term}
	s.db.batch.Reset()
	s.db.set([]byte(keyCut), cut.encode())
	if err := s.db.deleteEntries(s.cut.index+1, index+1); err != nil {
		return fault.Wrap(op, err)
	}
	if err := s.db.commit(false); err != nil {
		return fault.Wrap(op, err)
	}
	s.cut = cut
	s.tail.cut(index)
	return nil
}

// LogBytes gives the size of the recent entries that are kept in memory.
func (s *Storage) LogBytes() int { return s.tail.bytes }

func entryKey(index uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte(keyEntry), index)
}
