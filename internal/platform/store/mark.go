package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Count numbers the writes of a database. Each write contains its Count, so after a restart the database says which
// write is its last.
type Count struct {
	Origin uint64 // of the database, for its whole life
	Write  uint64 // number of the write, from 1 on
	Chain  uint32 // checksum over all writes up to this one
	// State is the owner's checksum of the whole content after this write. It shows the loss of an older file of the
	// database, which Pebble does not notice if a checksum of its list of files fails.
	State uint64
}

// Next is the count of the next write, with its content and the state after it.
func (c Count) Next(content []byte, state uint64) Count {
	return Count{Origin: c.Origin, Write: c.Write + 1, Chain: crc32.Update(c.Chain, castagnoli(), content), State: state}
}

const countBytes = 28

// Append appends the count as a value of the database.
func (c Count) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, c.Origin)
	b = binary.BigEndian.AppendUint64(b, c.Write)
	b = binary.BigEndian.AppendUint32(b, c.Chain)
	return binary.BigEndian.AppendUint64(b, c.State)
}

// DecodeCount reads the value of Append. Errors: Internal.
func DecodeCount(b []byte) (Count, error) {
	if len(b) != countBytes {
		return Count{}, fault.New("", fault.Internal, "the count of writes is damaged")
	}
	return Count{
		Origin: binary.BigEndian.Uint64(b), Write: binary.BigEndian.Uint64(b[8:]),
		Chain: binary.BigEndian.Uint32(b[16:]), State: binary.BigEndian.Uint64(b[20:]),
	}, nil
}

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// Position says, in the words of the database's owner, how far its content reaches: index and term of the last
// log entry. Only messages use it.
type Position struct{ Index, Term uint64 }

// Mark is the high-water mark of a database: a file beside it that names the last acknowledged write. Damage at the
// end of a write-ahead log looks like a write that a crash interrupted, so the log alone cannot tell which of its
// writes were acknowledged.
//
// Set comes after the sync of the write and before its acknowledgement. So the mark never names a write that the
// disk did not promise to keep, and a process that dies leaves the exact mark to the operating system. Set costs
// one write in place, without a sync. Each markSync-th Set syncs, so after a power cut the mark names one of the
// last markSync acknowledged writes, and an older one only if the disk broke its promise about this file too.
//
// The file has two slots. Between two syncs only one of them is written. The other one stays whole whatever a crash
// does to unsynced data.
type Mark struct {
	path     string
	file     vfs.File
	present  bool // the file existed
	last     Count
	place    Position
	slot     int // written next
	unsynced int
	buf      []byte
}

const (
	markMagic = "BHMARK\x01\n"
	markBytes = len(markMagic) + countBytes + 16 + 4
	slotSize  = 4096 // slots lie in different blocks of the disk
	markSync  = 1024
)

// OpenMark opens the mark, or makes it, durably, before the first write of the database. A mark that is read only is never
// made or set.
//
// Errors: Internal for a disk error, or a file with two damaged slots.
func OpenMark(fs vfs.FS, path string, readOnly bool) (*Mark, error) {
	m := &Mark{path: path}
	_, err := fs.Stat(path)
	switch absent := errors.Is(err, os.ErrNotExist); {
	case absent && readOnly:
		return m, nil
	case absent:
		err = m.create(fs)
	case err == nil && readOnly:
		err = m.read(fs.Open(path))
	case err == nil:
		if err = m.read(fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)); err == nil {
			err = m.file.Sync() // the slot that stays must be durable before the other one is written
		}
	}
	if err != nil {
		return nil, fault.As("", fault.Internal, fmt.Errorf("%s: %w", path, errors.Join(err, m.Close())))
	}
	return m, nil
}

// create makes a file under another name first: a crash leaves the whole file or none.
func (m *Mark) create(fs vfs.FS) (err error) {
	temporary := m.path + ".new"
	if err = m.take(fs.Create(temporary, vfs.WriteCategoryUnspecified)); err != nil {
		return err
	}
	zero := append(m.encode(Count{}, Position{}), make([]byte, slotSize-markBytes)...)
	if _, err = m.file.Write(append(zero, zero...)); err != nil {
		return err
	}
	written := m.file
	m.file = nil
	if err = errors.Join(written.Sync(), written.Close()); err != nil {
		return err
	}
	if err = fs.Rename(temporary, m.path); err != nil {
		return err
	}
	if err = SyncDir(fs, fs.PathDir(m.path)); err != nil {
		return err
	}
	return m.take(fs.OpenReadWrite(m.path, vfs.WriteCategoryUnspecified))
}

// take keeps an open file. Some file systems return a useless one with an error.
func (m *Mark) take(file vfs.File, err error) error {
	if err == nil {
		m.file = file
	}
	return err
}

func (m *Mark) read(file vfs.File, err error) error {
	m.present = true
	if err = m.take(file, err); err != nil {
		return err
	}
	whole := false
	for slot := range 2 {
		b := make([]byte, markBytes)
		_, _ = m.file.ReadAt(b, int64(slot*slotSize)) // what is missing fails the checksum
		if c, p, ok := decodeMark(b); ok && (!whole || c.Write > m.last.Write) {
			m.last, m.place, m.slot, whole = c, p, 1-slot, true
		}
	}
	if !whole {
		return errors.New("the mark is damaged")
	}
	return nil
}

// encode returns a slot, in the mark's buffer.
func (m *Mark) encode(c Count, p Position) []byte {
	b := c.Append(append(m.buf[:0], markMagic...))
	b = binary.BigEndian.AppendUint64(b, p.Index)
	b = binary.BigEndian.AppendUint64(b, p.Term)
	m.buf = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli()))
	return m.buf
}

func decodeMark(b []byte) (c Count, p Position, ok bool) {
	body, sum := b[:markBytes-4], binary.BigEndian.Uint32(b[markBytes-4:])
	if string(b[:len(markMagic)]) != markMagic || crc32.Checksum(body, castagnoli()) != sum {
		return c, p, false
	}
	c, _ = DecodeCount(body[len(markMagic) : len(markMagic)+countBytes])
	rest := body[len(markMagic)+countBytes:]
	return c, Position{binary.BigEndian.Uint64(rest), binary.BigEndian.Uint64(rest[8:])}, true
}

// Check compares the mark with the last write in the database, the zero Count if it has none.
//
// Errors: Internal if acknowledged writes are missing or others. The error names the mark.
func (m *Mark) Check(have Count, reaches Position) error {
	switch {
	case have == Count{} && m.last.Write == 0:
		return nil // new, or its first write was interrupted
	case !m.present:
		return fault.New("", fault.Internal, "%s is missing: nobody knows whether acknowledged writes are missing too", m.path)
	case m.last.Write == 0:
		return nil // the first write ended before its mark
	case have == Count{}:
		return fault.New("", fault.Internal, "the database is empty, but %s says that %d writes were acknowledged", m.path, m.last.Write)
	case have.Origin != m.last.Origin:
		return fault.New("", fault.Internal, "%s belongs to another database", m.path)
	case have.Write < m.last.Write:
		return fault.New("", fault.Internal, "the database ends %d writes before the last acknowledged one%s, according to %s",
			m.last.Write-have.Write, m.reached(reaches), m.path)
	case have.Write == m.last.Write && have != m.last:
		return fault.New("", fault.Internal, "the database differs from what was acknowledged, according to %s", m.path)
	}
	return nil
}

func (m *Mark) reached(reaches Position) string {
	if m.place == (Position{}) {
		return ""
	}
	return fmt.Sprintf(", at entry %d of term %d instead of entry %d of term %d", reaches.Index, reaches.Term, m.place.Index, m.place.Term)
}

// Beyond returns the count from which a database that lacks writes can go on: above the mark.
func (m *Mark) Beyond(have Count) Count {
	have.Write = max(have.Write, m.last.Write)
	if m.last.Origin != 0 {
		have.Origin = m.last.Origin
	}
	return have
}

// Set notes an acknowledged write. Errors: Internal.
func (m *Mark) Set(c Count, p Position) error {
	if _, err := m.file.WriteAt(m.encode(c, p), int64(m.slot*slotSize)); err != nil {
		return fault.As("", fault.Internal, fmt.Errorf("%s: %w", m.path, err))
	}
	m.last, m.place = c, p
	if m.unsynced++; m.unsynced < markSync {
		return nil
	}
	return m.sync()
}

func (m *Mark) sync() error {
	if err := m.file.Sync(); err != nil {
		return fault.As("", fault.Internal, fmt.Errorf("%s: %w", m.path, err))
	}
	m.unsynced, m.slot = 0, 1-m.slot
	return nil
}

// Close makes the mark durable. Call it once.
func (m *Mark) Close() error {
	if m.file == nil {
		return nil
	}
	var err error
	if m.unsynced > 0 {
		err = m.sync()
	}
	return errors.Join(err, m.file.Close())
}
