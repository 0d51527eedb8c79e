package budget

import (
	"context"
	"encoding/binary"
	"math"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/blackhole/blackhole/internal/platform/access"
)

// arrival follows the messages of one call while they arrive. gRPC reads each as a whole, before anybody looks at it.
type arrival struct {
	head    [5]byte // of a message: a flag and its length
	got     int     // bytes of head
	left    int     // bytes of the message that are to come
	refused bool    // gRPC ends the call
	held    []func()
	late    *time.Timer
}

// follow takes room for each large message at its head. Without room it makes the message one that gRPC refuses as too large, and that call
// alone; a head that came in pieces, which others cannot be told from, is an error instead. whole is called at the end of each message.
func (a *arrival) follow(data []byte, room func(bytes int) (release func(), err error), late, whole func()) error {
	for len(data) > 0 && !a.refused {
		if a.left > 0 {
			n := min(a.left, len(data))
			data, a.left = data[n:], a.left-n
		} else {
			n := copy(a.head[a.got:], data)
			last := data[:n]
			data, a.got = data[n:], a.got+n
			if a.got < len(a.head) {
				return nil
			}
			a.got, a.left = 0, int(binary.BigEndian.Uint32(a.head[1:]))
			release, err := room(a.left)
			switch {
			case err != nil && n < len(a.head):
				return err
			case err != nil:
				binary.BigEndian.PutUint32(last[1:], math.MaxUint32)
				a.refused = true
				return nil
			case release != nil:
				a.held = append(a.held, release)
				a.late = time.AfterFunc(takenWithin, late)
			}
		}
		if a.left == 0 {
			if a.late != nil {
				a.late.Stop()
			}
			whole()
		}
	}
	return nil
}

// end gives the room back.
func (a *arrival) end() {
	for _, release := range a.held {
		release()
	}
	if a.held = nil; a.late != nil {
		a.late.Stop()
	}
}

// arriving are credentials with connections that take room in a pool for each large message until it has arrived as a whole. A connection
// closes on which one does not arrive in time.
type arriving struct {
	credentials.TransportCredentials
	pool *access.Pool
}

// Clone implements credentials.TransportCredentials.
func (a arriving) Clone() credentials.TransportCredentials {
	return arriving{a.TransportCredentials.Clone(), a.pool}
}

// ServerHandshake implements credentials.TransportCredentials.
func (a arriving) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	one, info, err := a.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	ctx := peer.NewContext(context.Background(), &peer.Peer{Addr: one.RemoteAddr(), AuthInfo: info})
	return &conn{
		Conn: one, in: frames{left: len(http2.ClientPreface), Type: http2.FrameSettings}, calls: map[uint32]*arrival{},
		room: func(bytes int) (func(), error) { return a.pool.TakeBytes(ctx, "budget.Arriving", bytes, 0) },
	}, info, nil
}

// headBytes is how much of a connection is read at once outside of requests: thousands of calls may begin in what comes next.
const headBytes = 4 << 10

// conn is a connection of HTTP/2 with the calls that are open on it.
type conn struct {
	net.Conn
	room func(bytes int) (release func(), err error)

	mu      sync.Mutex
	in, out frames
	last    uint32              // call that began
	calls   map[uint32]*arrival // by stream of HTTP/2; nil after Close
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	if c.in.Type != http2.FrameData {
		p = p[:min(len(p), headBytes)]
	}
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	bad := c.in.follow(p[:n], func(f *frames) {
		if f.Type == http2.FrameHeaders && f.stream > c.last && c.calls != nil {
			c.last = f.stream
			c.calls[f.stream] = nil // until it has data: a connection may begin thousands of calls at once
		} else if f.Type == http2.FrameRSTStream {
			c.end(f.stream)
		}
	}, func(stream uint32, data []byte) error {
		a, open := c.calls[stream]
		if !open {
			return nil
		}
		if a == nil {
			a = &arrival{}
			c.calls[stream] = a
		}
		return a.follow(data, c.room, func() { _ = c.Close() }, a.end)
	})
	if bad != nil {
		return 0, bad
	}
	return n, err
}

// Write implements net.Conn. A call ends with its last frame.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	_ = c.out.follow(p, func(f *frames) {
		if f.Type == http2.FrameRSTStream || f.Type == http2.FrameHeaders && f.Has(http2.FlagHeadersEndStream) {
			c.end(f.stream)
		}
	}, func(uint32, []byte) error { return nil })
	c.mu.Unlock()
	return c.Conn.Write(p)
}

// end forgets a call. c.mu must be held.
func (c *conn) end(stream uint32) {
	if a := c.calls[stream]; a != nil {
		a.end()
	}
	delete(c.calls, stream)
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.mu.Lock()
	for stream := range c.calls {
		c.end(stream)
	}
	c.calls = nil
	c.mu.Unlock()
	return c.Conn.Close()
}

// frames finds the frames of HTTP/2 in the bytes of one direction (RFC 9113, section 4.1).
type frames struct {
	head [9]byte
	got  int // bytes of head
	left int // bytes of the payload that are to come, padding included
	pad  int // length of the padding; -1: its byte is to come

	Type http2.FrameType
	http2.Flags
	stream uint32
}

// follow calls begin for each frame, and data for each part of what a DATA frame carries.
func (f *frames) follow(p []byte, begin func(*frames), data func(stream uint32, part []byte) error) error {
	for len(p) > 0 {
		if f.left == 0 {
			n := copy(f.head[f.got:], p)
			if f.got, p = f.got+n, p[n:]; f.got < len(f.head) {
				return nil
			}
			f.got, f.left, f.pad = 0, int(f.head[0])<<16|int(f.head[1])<<8|int(f.head[2]), 0
			f.Type, f.Flags, f.stream = http2.FrameType(f.head[3]), http2.Flags(f.head[4]), binary.BigEndian.Uint32(f.head[5:])&math.MaxInt32
			if f.Type == http2.FrameData && f.Has(http2.FlagDataPadded) {
				f.pad = -1
			}
			begin(f)
			continue
		}
		part := p[:min(f.left, len(p))]
		p, f.left = p[len(part):], f.left-len(part)
		if f.Type != http2.FrameData {
			continue
		}
		if f.pad < 0 {
			f.pad, part = int(part[0]), part[1:]
		}
		if err := data(f.stream, part[:max(len(part)-max(f.pad-f.left, 0), 0)]); err != nil {
			return err
		}
	}
	return nil
}
