package raftlog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/cockroachdb/pebble/v2"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	keyHeader   = "h"
	keyHard     = "s"
	keyCut      = "c"
	keySnapshot = "n"
	keyEntry    = "e"
	keyCount    = "w"

	maxGroup = 256
)

// format is the version of the folder: the keys of the database and their values, except the entries and the
// states of snapshots, which state the feature level of the group.
func format() store.Format[*Storage] {
	return store.Format[*Storage]{Name: "log of the coordination group"}
}

// header names the owner of the folder.
type header struct {
	format uint32
	member uint64
	group  string
}

func (h header) append(b []byte) []byte {
	return append(binary.BigEndian.AppendUint64(append(b, byte(h.format)), h.member), h.group...)
}

// decodeHeader reads only the number of a later format.
func decodeHeader(b []byte) (header, error) {
	if len(b) > 0 && uint32(b[0]) > format().Version() {
		return header{format: uint32(b[0])}, nil
	}
	if len(b) < 9 || len(b) > 9+maxGroup {
		return header{}, damaged("header")
	}
	h := header{format: uint32(b[0]), member: binary.BigEndian.Uint64(b[1:]), group: string(b[9:])}
	if !validMember(h.member) {
		return header{}, damaged("header")
	}
	return h, nil
}

// validMember refuses 0 and the two greatest numbers, which raft uses for its own threads.
func validMember(id uint64) bool { return id != 0 && id < 1<<64-2 }

func damaged(what string) error {
	return fault.New("", fault.Internal, "%s is damaged", what)
}

func (m position) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, m.index), m.term)
	return binary.BigEndian.AppendUint32(b, m.sum)
}

// noteFormat writes the version that a migration reached.
func (s *Storage) noteFormat(version uint32) error {
	s.header.format = version
	s.db.now.header = s.header
	s.db.batch.Reset()
	s.db.set([]byte(keyHeader), s.header.append(nil))
	return s.db.commit(true)
}

func (s *Storage) load(o Options) error {
	err := s.db.read(keyCount, func(b []byte) (err error) { s.db.count, err = store.DecodeCount(b); return err })
	if err != nil {
		return err
	}
	err = s.db.read(keyHeader, func(b []byte) (err error) {
		s.header, err = decodeHeader(b)
		return err
	})
	switch {
	case err != nil:
		return err
	case s.header == header{}:
		if err := s.db.check(false); err != nil {
			return err
		}
		if o.ReadOnly {
			return nil
		}
		return s.mint(o.Rand)
	}
	if o.ReadOnly {
		err = format().Check(s.path(logDir), s.header.format)
	} else {
		err = format().Upgrade(s.path(logDir), s.header.format, s, s.noteFormat)
	}
	if err != nil {
		return err
	}
	for _, part := range []struct {
		key  string
		read func([]byte) error
	}{
		{keyHard, func(b []byte) error { s.hard = new(pb.HardState); return proto.Unmarshal(b, s.hard) }},
		{keySnapshot, func(b []byte) error { s.snapshot = new(pb.Snapshot); return proto.Unmarshal(b, s.snapshot) }},
		{keyCut, func(b []byte) error {
			if len(b) != 20 {
				return damaged("cut")
			}
			s.cut = position{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint32(b[16:])}
			return nil
		}},
	} {
		if err := s.db.read(part.key, part.read); err != nil {
			return fault.As("", fault.Internal, fmt.Errorf("key %q: %w", part.key, err))
		}
	}
	s.snapshot = whole(s.snapshot)
	if err := s.loadTail(); err != nil {
		return err
	}
	if err := s.db.check(o.Salvage); err != nil {
		return err
	}
	if o.ReadOnly {
		return nil
	}
	return s.sweep(s.leftover)
}

// whole fills fields omitted by protobuf, so that readers never meet nil.
func whole(snap *pb.Snapshot) *pb.Snapshot {
	if snap == nil {
		return nil
	}
	return pb.EnsureSnapshot(snap)
}

// mint gives a new folder its member id.
func (s *Storage) mint(random io.Reader) error {
	member, err := NewMember(random)
	if err != nil {
		return err
	}
	s.header.format, s.header.member = format().Version(), member
	s.db.count.Origin, s.db.now.header = member, s.header
	s.db.set([]byte(keyHeader), s.header.append(nil))
	return s.db.commit(true)
}

// NewMember draws a member id. Errors: Internal.
func NewMember(random io.Reader) (member uint64, err error) {
	var b [8]byte
	for !validMember(member) {
		if _, err := io.ReadFull(random, b[:]); err != nil {
			return 0, fault.As("raftlog.NewMember", fault.Internal, err)
		}
		member = binary.BigEndian.Uint64(b[:])
	}
	return member, nil
}

// loadTail finds the end of the log, loads its cached part, and describes the database.
func (s *Storage) loadTail() error {
	s.last = s.cut.index
	end := s.cut
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: entryKey(0), UpperBound: []byte{keyEntry[0] + 1}})
	if err != nil {
		return fault.As("", fault.Internal, err)
	}
	defer func() { _ = it.Close() }()
	for ok := it.First(); ok; ok = it.Next() {
		sum, e, err := decodeEntry(it.Value())
		if err != nil {
			return fault.As("", fault.Internal, err)
		}
		if e.GetIndex() != s.last+1 || sum != crc32.Update(end.sum, castagnoli(), it.Value()[4:]) {
			return fault.New("", fault.Internal, "entry %d does not follow entry %d of the log", e.GetIndex(), s.last)
		}
		end = position{e.GetIndex(), e.GetTerm(), sum}
		s.last++
		s.tail.append([]*pb.Entry{e})
	}
	if err := it.Error(); err != nil {
		return fault.As("", fault.Internal, err)
	}
	s.db.now = summary{header: s.header, hard: s.hard, cut: s.cut, snapshot: positionOf(s.snapshot), end: end}
	if s.hard.GetCommit() > s.last || s.snapshot.GetMetadata().GetIndex() > s.last {
		return fault.New("", fault.Internal, "the log ends at %d, before its commit index", s.last)
	}
	return nil
}
