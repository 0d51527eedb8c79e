// Package rpc exchanges requests and responses over libp2p streams.
//
// # Frame
//
// A stream carries messages in turn: request, response, request, response. Each message is one frame:
//
//	length   unsigned varint, minimal encoding, of the number of bytes that follow
//	message  that many bytes: one protobuf message
//
// This is the format of go-msgio/pbio. Both sides of a protocol know the maximum length of a
// request and of a response. The reader reserves memory at the resource manager before it
// allocates a buffer of a length that a remote peer announced, and may inspect the bytes
// (Format.Check) before it decodes them.
//
// The package knows no operations. A protocol puts its operations, and a Refusal, into its own messages;
// see Refuse and Restore for the errors.
//
// # Versions
//
// The last segment of a protocol id is its version (network.Compatible). A server accepts every version of
// its major number, also later ones, so neither side needs the other's minor number. A request says what must
// be understood: a Format with Strict refuses requests with unknown fields (package strictproto), and the
// stream goes on.
//
// # Client and server
//
// A Pool holds the client's streams: at most one request uses a stream at a time, idle streams
// are kept for the next request, and the number of requests under way to one peer is bounded.
// A Server answers the streams of other peers in a bounded number, with a smaller bound for
// each peer, so that one peer cannot take all of them. A handler may keep a stream for itself
// after a request, for a subscription for example.
package rpc

import (
	"bufio"
	"context"
	"errors"
	"io"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-varint"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/strictproto"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Format bounds the messages that one side of a protocol accepts.
type Format struct {
	// MaxSize is the maximum length of a message in bytes.
	MaxSize int

	// Strict refuses messages with fields or values of a later version: Unsupported, see strictproto.Check.
	// Without it unknown fields are dropped.
	Strict bool

	// Check inspects a message before decoding, for example the number of repeated fields.
	// Two bytes on the wire can become a hundred in memory. Its error should be a
	// *fault.Error. Nil accepts every message.
	Check func(message []byte) error
}

// Codec reads and writes messages. Reading and writing may run concurrently, but not two reads or two writes.
type Codec struct {
	r      *bufio.Reader
	w      io.Writer
	mem    network.ResourceScope
	format Format
}

// NewCodec returns a Codec that accepts messages of the format given and accounts for them in mem.
func NewCodec(rw io.ReadWriter, mem network.ResourceScope, f Format) *Codec {
	return &Codec{r: bufio.NewReader(rw), w: rw, mem: mem, format: f}
}

// WaitMessage blocks until the first byte of the next message arrives.
func (c *Codec) WaitMessage() error {
	_, err := c.r.Peek(1)
	return err
}

// ReadMessage reads the next message into m. A breach of the protocol is a *fault.Error:
// TooLarge above Format.MaxSize, LimitReached without memory, Unauthentic if the message does
// not decode, Unsupported for a strict format, and the errors of Format.Check. Errors of the stream are returned unchanged.
func (c *Codec) ReadMessage(m proto.Message) error {
	size, err := varint.ReadUvarint(c.r)
	switch {
	case errors.Is(err, varint.ErrOverflow), errors.Is(err, varint.ErrNotMinimal):
		return fault.As("", fault.Unauthentic, err)
	case err != nil:
		return err
	case size > uint64(c.format.MaxSize):
		return fault.New("", fault.TooLarge, "a message of %d bytes exceeds the maximum of %d", size, c.format.MaxSize)
	}
	if err := c.mem.ReserveMemory(int(size), network.ReservationPriorityMedium); err != nil {
		return fault.As("", fault.LimitReached, err)
	}
	defer c.mem.ReleaseMemory(int(size))
	buf := make([]byte, size)
	if _, err := io.ReadFull(c.r, buf); err != nil {
		return err
	}
	return c.format.decode(buf, m)
}

func (f *Format) decode(b []byte, m proto.Message) error {
	if f.Check != nil {
		if err := f.Check(b); err != nil {
			return err
		}
	}
	if err := (proto.UnmarshalOptions{DiscardUnknown: !f.Strict}).Unmarshal(b, m); err != nil {
		return fault.As("", fault.Unauthentic, err)
	}
	if f.Strict {
		return strictproto.Check(m)
	}
	return nil
}

// Read implements io.Reader: it reads what follows the last message. The Codec may have read further from the stream already.
func (c *Codec) Read(p []byte) (int, error) { return c.r.Read(p) }

// WriteMessage writes m in one frame. It returns LimitReached without memory for the frame,
// Internal if m does not encode, and the stream's errors unchanged.
func (c *Codec) WriteMessage(m proto.Message) error {
	size := proto.Size(m)
	total := size + varint.UvarintSize(uint64(size))
	if err := c.mem.ReserveMemory(total, network.ReservationPriorityMedium); err != nil {
		return fault.As("", fault.LimitReached, err)
	}
	defer c.mem.ReleaseMemory(total)
	buf := protowire.AppendVarint(make([]byte, 0, total), uint64(size))
	buf, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(buf, m)
	if err != nil {
		return fault.As("", fault.Internal, err)
	}
	_, err = c.w.Write(buf)
	return err
}

// Stream is a libp2p stream that carries messages.
type Stream struct {
	network.Stream
	*Codec
}

// newStream names the service to the resource manager. It resets the stream on error.
func newStream(s network.Stream, service string, f Format) (*Stream, error) {
	if err := s.Scope().SetService(service); err != nil {
		_ = s.Reset()
		return nil, fault.As("", fault.LimitReached, err)
	}
	return &Stream{Stream: s, Codec: NewCodec(s, s.Scope(), f)}, nil
}

// Remote returns the id of the remote peer.
func (s *Stream) Remote() peer.ID { return s.Conn().RemotePeer() }

// IsFault reports whether err is a *fault.Error: a breach of the protocol, not a failure of the stream.
func IsFault(err error) bool {
	var f *fault.Error
	return errors.As(err, &f)
}

// Classify turns the error of an exchange into a fault. The end of ctx has precedence. Other
// errors of the stream become Timeout or Unavailable.
func Classify(ctx context.Context, err error) error {
	var timeout interface{ Timeout() bool }
	switch {
	case ctx.Err() != nil:
		return fault.Wrap("", ctx.Err())
	case IsFault(err):
		return err
	case errors.As(err, &timeout) && timeout.Timeout():
		return fault.As("", fault.Timeout, err)
	default:
		return fault.As("", fault.Unavailable, err)
	}
}
