package machine

import (
	"encoding/binary"
	"hash/crc32"
	"io"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// A snapshot is the magic, the feature level that decides its format, and frames: length and CRC-32C of the data, four bytes each, big-endian,
// then the data. Each checksum continues the one before, and the first one the magic and the level, so
// that lost or exchanged frames are noticed. All frames are full except the last two: the rest and an empty frame. A reader verifies a
// frame before using its data.
const (
	magic     = "BHCOORD"
	frameSize = 64 << 10
	frameHead = 8
)

func checksum(crc uint32, data []byte) uint32 {
	return crc32.Update(crc, crc32.MakeTable(crc32.Castagnoli), data)
}

// frames writes a snapshot's frames.
type frames struct {
	w       io.Writer
	crc     uint32
	buf     []byte // frame head and data
	written int64
	err     error // the first error; later writes are lost
}

func newFrames(w io.Writer, level uint32) *frames {
	f := &frames{w: w, buf: make([]byte, frameHead, frameHead+frameSize)}
	head := snapshotHead(level)
	f.crc = checksum(0, head)
	f.send(head)
	return f
}

// snapshotHead returns the first bytes of a snapshot. A level above 255 would need another magic.
func snapshotHead(level uint32) []byte { return append([]byte(magic), byte(level)) }

func (f *frames) send(b []byte) {
	if f.err != nil {
		return
	}
	n, err := f.w.Write(b)
	f.written += int64(n)
	f.err = err
}

// Write takes data; its error comes with Close at the latest.
func (f *frames) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		n := min(len(rest), frameHead+frameSize-len(f.buf))
		f.buf, rest = append(f.buf, rest[:n]...), rest[n:]
		if len(f.buf) == frameHead+frameSize {
			f.flush()
		}
	}
	return len(b), f.err
}

func (f *frames) flush() {
	data := f.buf[frameHead:]
	f.crc = checksum(f.crc, data)
	binary.BigEndian.PutUint32(f.buf, uint32(len(data)))
	binary.BigEndian.PutUint32(f.buf[4:], f.crc)
	f.send(f.buf)
	f.buf = f.buf[:frameHead]
}

// Close writes the rest and the empty frame.
func (f *frames) Close() error {
	if len(f.buf) > frameHead {
		f.flush()
	}
	f.flush()
	return f.err
}

// unframe reads the data of frames, with io.EOF after the empty frame.
type unframe struct {
	r     io.Reader
	level uint32
	crc   uint32
	buf   []byte // rest of the frame at hand
	room  []byte
	last  bool // after a frame that is not full only the empty frame may follow
	done  bool
}

// newUnframe reads the head of a snapshot, whose level must be among those supported.
func newUnframe(r io.Reader, supported coord.Levels) (*unframe, error) {
	head := make([]byte, len(magic)+1)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, damaged("magic", err)
	}
	if string(head[:len(magic)]) != magic {
		return nil, fault.Refused(fault.Invalid, "magic", "is no snapshot of this state machine")
	}
	level := uint32(head[len(magic)])
	if !supported.Supports(level) {
		return nil, fault.Refused(fault.Unsupported, "level", "the snapshot has feature level %d, this program supports %v", level, supported)
	}
	return &unframe{r: r, level: level, crc: checksum(0, head), room: make([]byte, frameSize)}, nil
}

// Read implements io.Reader over the data of the frames.
func (u *unframe) Read(p []byte) (int, error) {
	if len(u.buf) == 0 && !u.done {
		if err := u.next(); err != nil {
			return 0, err
		}
	}
	if u.done {
		return 0, io.EOF
	}
	n := copy(p, u.buf)
	u.buf = u.buf[n:]
	return n, nil
}

func (u *unframe) next() error {
	var head [frameHead]byte
	if _, err := io.ReadFull(u.r, head[:]); err != nil {
		return damaged("frame", err)
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > frameSize || u.last && size > 0 {
		return fault.Refused(fault.Invalid, "frame", "has an impossible length, %d", size)
	}
	data := u.room[:size]
	if _, err := io.ReadFull(u.r, data); err != nil {
		return damaged("frame", err)
	}
	if u.crc = checksum(u.crc, data); u.crc != binary.BigEndian.Uint32(head[4:]) {
		return fault.Refused(fault.Invalid, "frame", "its checksum does not match")
	}
	u.buf, u.last, u.done = data, size < frameSize, size == 0
	return nil
}

// damaged returns a reader's error as a truncated snapshot.
func damaged(field string, err error) error {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return &fault.Error{Kind: fault.Invalid, Field: field, Err: err}
}
