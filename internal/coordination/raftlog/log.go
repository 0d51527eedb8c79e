package raftlog

import (
	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

var _ raft.Storage = (*Storage)(nil)

// logCache holds the recent log in memory, for followers that keep up.
type logCache struct {
	limit   int
	bytes   int
	entries []*pb.Entry // consecutive, up to the last
}

func (t *logCache) first() uint64 { return t.entries[0].GetIndex() }

// append appends entries after removing those with the same or a higher index.
func (t *logCache) append(entries []*pb.Entry) {
	from := entries[0].GetIndex()
	if len(t.entries) > 0 && from <= t.first() {
		t.clear()
	}
	if n := len(t.entries); n > 0 {
		keep := int(from - t.first())
		for i := keep; i < n; i++ {
			t.bytes -= proto.Size(t.entries[i])
		}
		clear(t.entries[keep:])
		t.entries = t.entries[:keep]
	}
	t.entries = append(t.entries, entries...)
	for _, e := range entries {
		t.bytes += proto.Size(e)
	}
	if t.bytes > t.limit {
		t.shrink()
	}
}

// shrink drops the older half by size, but never the last entry.
func (t *logCache) shrink() {
	drop := 0
	for ; t.bytes > t.limit/2 && drop < len(t.entries)-1; drop++ {
		t.bytes -= proto.Size(t.entries[drop])
	}
	t.entries = append([]*pb.Entry(nil), t.entries[drop:]...)
}

// cut drops entries up to index.
func (t *logCache) cut(index uint64) {
	if len(t.entries) == 0 || index < t.first() {
		return
	}
	drop := min(int(index-t.first())+1, len(t.entries))
	for _, e := range t.entries[:drop] {
		t.bytes -= proto.Size(e)
	}
	t.entries = append([]*pb.Entry(nil), t.entries[drop:]...)
}

func (t *logCache) clear() { t.entries, t.bytes = nil, 0 }

// at returns the entry with the index; nil if it is not cached.
func (t *logCache) at(index uint64) *pb.Entry {
	if len(t.entries) == 0 || index < t.first() || index-t.first() >= uint64(len(t.entries)) {
		return nil
	}
	return t.entries[index-t.first()]
}

// InitialState implements raft.Storage. The commit index is at least the snapshot's, which may be newer than
// the last written hard state.
func (s *Storage) InitialState() (*pb.HardState, *pb.ConfState, error) {
	hard := s.hard
	if at := s.snapshot.GetMetadata().GetIndex(); hard.GetCommit() < at {
		hard = &pb.HardState{Term: new(max(hard.GetTerm(), s.snapshot.GetMetadata().GetTerm())), Vote: new(hard.GetVote()), Commit: new(at)}
	}
	return hard, pb.EnsureConfState(s.snapshot.GetMetadata().GetConfState()), nil
}

// Entries implements raft.Storage.
func (s *Storage) Entries(lo, hi, maxSize uint64) ([]*pb.Entry, error) {
	switch {
	case lo <= s.cut.index:
		return nil, raft.ErrCompacted
	case hi > s.last+1:
		return nil, raft.ErrUnavailable
	}
	entries, size, err := s.older(lo, hi, maxSize)
	if err != nil {
		return nil, err
	}
	for next := lo + uint64(len(entries)); next < hi; next++ {
		e := s.tail.at(next)
		if e == nil {
			break // older entries filled maxSize
		}
		if size += uint64(proto.Size(e)); size > maxSize && len(entries) > 0 {
			break
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// older reads the entries that are not cached from the disk.
func (s *Storage) older(lo, hi, maxSize uint64) (entries []*pb.Entry, size uint64, err error) {
	if len(s.tail.entries) > 0 {
		hi = min(hi, s.tail.first())
	}
	if lo >= hi {
		return nil, 0, nil
	}
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: entryKey(lo), UpperBound: entryKey(hi)})
	if err != nil {
		return nil, 0, s.db.failed(err)
	}
	defer func() { _ = it.Close() }()
	for ok := it.First(); ok; ok = it.Next() {
		_, e, err := decodeEntry(it.Value())
		if err != nil {
			return nil, 0, s.db.failed(err)
		}
		if size += uint64(proto.Size(e)); size > maxSize && len(entries) > 0 {
			return entries, size, nil
		}
		entries = append(entries, e)
	}
	if it.Error() != nil {
		return nil, 0, s.db.failed(it.Error())
	}
	if uint64(len(entries)) != hi-lo {
		return nil, 0, s.db.failed(damaged("log"))
	}
	return entries, size, nil
}

// Term implements raft.Storage.
func (s *Storage) Term(index uint64) (uint64, error) {
	switch {
	case index == s.cut.index:
		return s.cut.term, nil
	case index < s.cut.index:
		return 0, raft.ErrCompacted
	case index > s.last:
		return 0, raft.ErrUnavailable
	}
	if e := s.tail.at(index); e != nil {
		return e.GetTerm(), nil
	}
	entries, _, err := s.older(index, index+1, 0)
	if err != nil {
		return 0, err
	}
	return entries[0].GetTerm(), nil
}

// LastIndex implements raft.Storage.
func (s *Storage) LastIndex() (uint64, error) { return s.last, nil }

// FirstIndex implements raft.Storage.
func (s *Storage) FirstIndex() (uint64, error) { return s.cut.index + 1, nil }

// Snapshot implements raft.Storage. It returns the metadata of the snapshot in force; State opens its state.
func (s *Storage) Snapshot() (*pb.Snapshot, error) {
	if s.snapshot == nil || s.snapshot.GetMetadata().GetIndex() < s.required {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	return s.snapshot, nil
}

// Require makes Snapshot fail until a snapshot at index or later is in force: a member that joined at index
// refuses a snapshot without itself.
func (s *Storage) Require(index uint64) { s.required = max(s.required, index) }
