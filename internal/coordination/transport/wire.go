package transport

import (
	"bufio"
	"encoding/binary"
	"io"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// A frame is its length in four bytes, big-endian, and its content. Length 0 means a probe, or the end of a
// snapshot's state.
const frameHead = 4

// frames reads the frames of one stream.
type frames struct {
	r   *bufio.Reader
	mem network.ResourceScope
	buf []byte // of the last frame; at most keptSize between two
}

// idleTimeoutStream sets a deadline for each read, so that a long message over a slow line does not look like
// a silent peer.
type idleTimeoutStream struct {
	network.Stream
	idle time.Duration // 0: other code sets deadlines
}

func (p *idleTimeoutStream) Read(b []byte) (int, error) {
	if p.idle > 0 {
		_ = p.SetReadDeadline(deadline(p.idle))
	}
	return p.Stream.Read(b)
}

// deadline returns the time d from now, on the clock of the streams.
func deadline(d time.Duration) time.Time { return time.Now().Add(d) }

func newFrames(r io.Reader, mem network.ResourceScope) *frames {
	return &frames{r: bufio.NewReaderSize(r, 64<<10), mem: mem}
}

// next reads a frame, which is valid until the next call. Errors: TooLarge above limit, LimitReached without
// memory, and the stream's errors unchanged.
func (f *frames) next(limit int) ([]byte, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(f.r, head[:]); err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint32(head[:]))
	if size > limit {
		return nil, fault.New("", fault.TooLarge, "a frame of %d bytes is above the bound of %d", size, limit)
	}
	if size > keptSize {
		if err := f.mem.ReserveMemory(size, network.ReservationPriorityHigh); err != nil {
			return nil, fault.As("", fault.LimitReached, err)
		}
		defer f.mem.ReleaseMemory(size)
		b := make([]byte, size)
		_, err := io.ReadFull(f.r, b)
		return b, err
	}
	if size > cap(f.buf) {
		f.buf = make([]byte, size)
	}
	f.buf = f.buf[:size]
	_, err := io.ReadFull(f.r, f.buf)
	return f.buf, err
}

// message reads a frame into m.
func (f *frames) message(m proto.Message, limit int) error {
	b, err := f.next(limit)
	if err != nil {
		return err
	}
	return unmarshal(b, m)
}

func unmarshal(b []byte, m proto.Message) error {
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, m); err != nil {
		return fault.As("", fault.Unauthentic, err)
	}
	return nil
}

// appendFrame appends m as a frame. Above limit it returns TooLarge and b unchanged.
func appendFrame(b []byte, m proto.Message, limit int) ([]byte, error) {
	size := proto.Size(m)
	if size > limit {
		return b, fault.New("", fault.TooLarge, "a message of %d bytes is above the bound of %d", size, limit)
	}
	start := len(b)
	b = binary.BigEndian.AppendUint32(b, uint32(size))
	framed, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, m)
	if err != nil || len(framed) != start+frameHead+size {
		return b[:start], fault.New("", fault.Internal, "a message of %d bytes did not encode: %w", size, orChanged(err))
	}
	return framed, nil
}

func orChanged(err error) error {
	if err == nil {
		return fault.New("", fault.Internal, "it changed meanwhile")
	}
	return err
}

func writeFrame(w io.Writer, m proto.Message, limit int) error {
	b, err := appendFrame(nil, m, limit)
	if err == nil {
		_, err = w.Write(b)
	}
	return err
}

// kindOf returns the kind of stream for a message type; false for messages of a member to itself, and for
// proposals and transfer requests, which go to the leader's API.
func kindOf(t raftpb.MessageType) (groupv1.StreamKind, bool) {
	switch t {
	case raftpb.MsgApp:
		return groupv1.StreamKind_STREAM_KIND_APPEND, true
	case raftpb.MsgSnap:
		return groupv1.StreamKind_STREAM_KIND_SNAPSHOT, true
	case raftpb.MsgAppResp, raftpb.MsgVote, raftpb.MsgVoteResp, raftpb.MsgPreVote, raftpb.MsgPreVoteResp,
		raftpb.MsgHeartbeat, raftpb.MsgHeartbeatResp, raftpb.MsgReadIndex, raftpb.MsgReadIndexResp, raftpb.MsgTimeoutNow:
		return groupv1.StreamKind_STREAM_KIND_CONTROL, true
	default:
		return groupv1.StreamKind_STREAM_KIND_UNSPECIFIED, false
	}
}

// nameOf returns the name of a kind for metrics and logs.
func nameOf(l groupv1.StreamKind) string {
	switch l {
	case groupv1.StreamKind_STREAM_KIND_CONTROL:
		return "control"
	case groupv1.StreamKind_STREAM_KIND_APPEND:
		return "append"
	case groupv1.StreamKind_STREAM_KIND_SNAPSHOT:
		return "snapshot"
	default:
		return "none"
	}
}

// entriesField is the number of raftpb.Message.entries. Their count is checked, because a decoder needs much
// more memory for an empty entry than the wire.
const entriesField protowire.Number = 7

// decode decodes a Raft message. Errors: LimitReached for too many entries, Unauthentic.
func decode(b []byte) (*raftpb.Message, error) {
	entries := 0
	for rest := b; len(rest) > 0; {
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return nil, fault.As("", fault.Unauthentic, protowire.ParseError(n))
		}
		size := protowire.ConsumeFieldValue(number, kind, rest[n:])
		if size < 0 {
			return nil, fault.As("", fault.Unauthentic, protowire.ParseError(size))
		}
		if number == entriesField {
			if entries++; entries > maxEntries {
				return nil, fault.New("", fault.LimitReached, "more than %d entries in a message", maxEntries)
			}
		}
		rest = rest[n+size:]
	}
	m := new(raftpb.Message)
	return m, unmarshal(b, m)
}

// weigh estimates the memory of a message without reading it byte by byte.
func weigh(m *raftpb.Message) int {
	n := 128 + len(m.GetContext())
	for _, e := range m.GetEntries() {
		n += 64 + len(e.GetData())
	}
	return n
}
