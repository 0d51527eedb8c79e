// Package raftlog is the durable memory of a member of the coordination group: its id, the log, Raft's
// hard state, and snapshots of the state machine.
//
// # Layout
//
// The log, the hard state and the header are keys of a Pebble store in the folder "log". Snapshots are
// files in "snapshots", so that the store stays small, and a snapshot can be written, received and sent beside
// other work. The store names the snapshot in force; all other files there are leftovers.
//
//	h             header: format, member id, group id
//	s             hard state
//	c             index, term and Sum of the last entry before the log
//	n             metadata of the snapshot in force
//	e<index>      entry, big-endian for their order
//	w             count of the writes, with a checksum of all
//
// The file "mark" names the last acknowledged write: its count, and index and term of the log's end.
//
// # Durability
//
// Save with sync, Bootstrap, Adopt and Restore return after the durable write. A disk error fails its call and
// all later calls: the effect of a failed fsync is unknown, so the process must end and start again from
// the disk.
//
// # Damage
//
// Open refuses a database that lacks acknowledged writes: see store.Mark, and "Log and snapshots" in ../DESIGN.md, which
// also says what only the other members notice.
//
// # Identity
//
// A new directory draws its member id at random, and Raft's votes are bound to this id. A peer with a
// lost directory therefore returns as another member, and cannot vote twice in a term.
package raftlog

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Options configures a Storage.
type Options struct {
	// FS is the file system; nil is the operating system's.
	FS vfs.FS
	// Dir is a folder for the Storage alone, created on demand.
	Dir string
	// Rand draws the member id of a new folder; nil is crypto/rand.
	Rand io.Reader
	// Tail bounds the bytes of recent entries in memory; 0 is 1 MiB. Followers that keep up need no others;
	// slow ones read from Pebble, mostly from its memory too.
	Tail int
	// Salvage opens a folder that lacks acknowledged writes, for the state of a backup. Its member must not vote.
	Salvage bool
	// ReadOnly opens a folder that exists and changes nothing. Its owner only reads.
	ReadOnly bool
	// Synced receives the duration of each sync of the log; nil: nobody.
	Synced func(time.Duration)
	// Logger reports problems; nil discards.
	Logger *slog.Logger
}

func (o *Options) defaults() {
	o.FS = cmp.Or(o.FS, vfs.Default)
	o.Rand = cmp.Or(o.Rand, rand.Reader)
	if o.Tail <= 0 {
		o.Tail = 1 << 20
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
}

// Storage is the durable memory of one member. Its methods are for its owner's goroutine, unless stated
// otherwise. It implements raft.Storage.
type Storage struct {
	snapshotFiles
	db database

	header   header
	hard     *pb.HardState // nil before the first
	snapshot *pb.Snapshot  // in force; nil before the first
	cut      position      // of the last entry before the log
	last     uint64        // index of the last entry; cut.index in an empty log
	tail     logCache
	closed   bool
	required uint64 // index below which Snapshot fails
}

// position is the position of an entry.
type position struct {
	index, term uint64
	sum         uint32 // see Sum; 0 for the snapshot in force
}

func positionOf(snap *pb.Snapshot) position {
	return position{index: snap.GetMetadata().GetIndex(), term: snap.GetMetadata().GetTerm()}
}

// Sum returns the checksum of all entries of the group up to index, CRC-32C over their encodings. Members whose logs
// are equal up to there have the same. It returns false for an entry before the log or behind it.
//
// Errors: Internal.
func (s *Storage) Sum(index uint64) (sum uint32, ok bool, err error) {
	if index < s.cut.index || index > s.last {
		return 0, false, nil
	}
	sum, err = s.db.sumAt(index)
	return sum, err == nil, fault.Wrap("raftlog.Sum", err)
}

// SumAfter returns the Sum at an entry from the one before it.
func SumAfter(before uint32, e *pb.Entry) uint32 {
	b, _ := proto.Marshal(e) // an entry has an encoding
	return crc32.Update(before, castagnoli(), b)
}

// Open reads the folder, or makes it with a new member id.
//
// Errors: Internal for a disk error, damage, missing acknowledged writes, or a folder in use: a problem, see store.Place;
// Unsupported for another format.
func Open(o Options) (*Storage, error) {
	const op = "raftlog.Open"
	if o.Dir == "" {
		return nil, fault.Wrap(op, fault.Invalidf("dir", nil, "is missing"))
	}
	o.defaults()
	latch := store.NewLatch(o.Logger)
	latch.Synced = o.Synced
	s := &Storage{
		snapshotFiles: snapshotFiles{fs: o.FS, dir: o.Dir, log: o.Logger},
		db:            database{latch: latch}, tail: logCache{limit: o.Tail},
	}
	if !o.ReadOnly {
		if err := s.makeDirs(); err != nil {
			return nil, unusable(op, o.Dir, err)
		}
	}
	options := pebbleOptions(latch.FS(s.fs), latch)
	options.ReadOnly = o.ReadOnly
	db, err := pebble.Open(s.path(logDir), options)
	if err != nil {
		return nil, unusable(op, o.Dir, err)
	}
	s.db.DB, s.db.batch = db, db.NewBatch()
	if err = latch.Err(); err == nil {
		err = s.db.openMark(o.FS, s.path(markFile), o)
	}
	if err == nil {
		err = s.load(o)
	}
	if err != nil {
		_ = s.Close()
		return nil, unusable(op, o.Dir, err)
	}
	return s, nil
}

// unusable adds the way out to an error of Open.
func unusable(op, dir string, err error) error {
	if fault.KindOf(err) == fault.Unsupported {
		return fault.Wrap(op, err)
	}
	return fault.As(op, fault.Internal, place(format().Name, dir, dir).Refused(err))
}

// place is what an operator can do about a damaged part of the folder.
func place(name, path, dir string) store.Place {
	return store.Place{
		Name: name, Path: path, Effect: "this peer is no member of the group",
		Remedy: "Stop the peer, " + store.Aside(dir) + ", and start it: it comes back as a new member and gets the state from the others. " +
			"Without others, `blackholed group restore FILE` of a backup",
	}
}

// pebbleOptions configures Pebble as a log: almost no cache; one WAL file for several megabytes, so that files
// are recycled and a sync rarely extends one; chunks that distinguish a torn end from damaged synced data.
func pebbleOptions(fsys vfs.FS, logger *store.Latch) *pebble.Options {
	return &pebble.Options{
		FS:                 fsys,
		Logger:             logger,
		FormatMajorVersion: pebble.FormatNewest,
		MemTableSize:       8 << 20,
		CacheSize:          1 << 20,
		MaxOpenFiles:       64,
		EventListener:      &pebble.EventListener{BackgroundError: logger.Background},
		// The log is cut from behind by ranges: tables within one are dropped unread.
		L0CompactionThreshold: 8,
	}
}

// Close releases the folder; further calls do nothing. Unsynced data may be lost. Errors: Internal.
func (s *Storage) Close() error {
	const op = "raftlog.Close"
	if s.closed {
		return nil
	}
	s.closed = true
	_ = s.db.batch.Close()
	err := s.db.Close()
	if s.db.mark != nil {
		err = errors.Join(err, s.db.mark.Close())
	}
	if err != nil {
		return fault.As(op, fault.Internal, err)
	}
	return fault.Wrap(op, s.db.latch.Err())
}

// Dir returns the folder.
func (s *Storage) Dir() string { return s.dir }

// Member returns the id of this member, never 0.
func (s *Storage) Member() uint64 { return s.header.member }

// Group returns the group of the folder; empty before Bind.
func (s *Storage) Group() string { return s.header.group }

// HasSnapshot reports whether a snapshot is in force: false for a member that waits for its first one.
func (s *Storage) HasSnapshot() bool { return s.snapshot != nil }

// Bind binds the folder to a group for good. A repeated call does nothing.
//
// Errors: Conflict for a folder of another group; Invalid; Internal.
func (s *Storage) Bind(group string) error {
	const op = "raftlog.Bind"
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
	return fault.Wrap(op, s.saveHeader(h))
}

// Assume gives a folder without a group another member id. A folder with a group keeps its own, and the call does nothing.
//
// Errors: Invalid; Internal.
func (s *Storage) Assume(member uint64) error {
	const op = "raftlog.Assume"
	if !validMember(member) {
		return fault.Wrap(op, fault.Invalidf("member", member, "is no member id"))
	}
	if s.header.group != "" || s.header.member == member {
		return nil
	}
	h := s.header
	h.member = member
	return fault.Wrap(op, s.saveHeader(h))
}

func (s *Storage) saveHeader(h header) error {
	s.db.batch.Reset()
	s.db.now.header = h
	s.db.set([]byte(keyHeader), h.append(nil))
	if err := s.db.commit(true); err != nil {
		return err
	}
	s.header = h
	return nil
}

// Save appends entries, which may replace the end of the log, and stores the hard state unless nil. With sync,
// this and all earlier calls are durable.
//
// Errors: Internal; the process must end.
func (s *Storage) Save(hard *pb.HardState, entries []*pb.Entry, sync bool) error {
	const op = "raftlog.Save"
	s.db.batch.Reset()
	if hard != nil {
		s.db.setMessage([]byte(keyHard), hard)
		s.db.now.hard = hard
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

// stage adds entries to the batch, and removes the replaced end of the log.
func (s *Storage) stage(entries []*pb.Entry) error {
	first, last := entries[0].GetIndex(), entries[len(entries)-1].GetIndex()
	if first <= s.cut.index || first > s.last+1 {
		return fault.New("", fault.Internal, "entries from %d do not follow a log of %d to %d", first, s.cut.index+1, s.last)
	}
	sum, err := s.db.sumAt(first - 1)
	if err != nil {
		return err
	}
	for _, e := range entries {
		sum = s.db.setEntry(sum, e)
	}
	s.db.now.end = position{last, entries[len(entries)-1].GetTerm(), sum}
	if last < s.last {
		return s.db.deleteEntries(last+1, s.last+1)
	}
	return nil
}

// Compact cuts the log up to and including index. A snapshot in force must cover it. A crash at worst restores
// the entries, so it needs no sync.
//
// Errors: Internal.
func (s *Storage) Compact(index uint64) error {
	const op = "raftlog.Compact"
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
	sum, err := s.db.sumAt(index)
	if err != nil {
		return fault.As(op, fault.Internal, err)
	}
	cut := position{index, term, sum}
	s.db.batch.Reset()
	s.db.now.cut = cut
	s.db.set([]byte(keyCut), cut.append(nil))
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

// LogBytes returns the size of the cached entries.
func (s *Storage) LogBytes() int { return s.tail.bytes }

func entryKey(index uint64) []byte { return appendEntryKey(nil, index) }

func appendEntryKey(b []byte, index uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b, keyEntry...), index)
}
