package sim

import (
	"context"
	"io"
	"os"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/multiformats/go-multiaddr"
	"github.com/quic-go/quic-go"
)

const lightWindow = 512 << 10 // bytes of a stream that nobody has read yet

// lightConn is one end of a connection.
type lightConn struct {
	t      *light
	remote *light
	other  *lightConn // set before the connection is used
	scope  network.ConnManagementScope

	mu       sync.Mutex // guards what follows; no other lock is taken under it
	changed  *sync.Cond
	incoming []*lightStream // to be accepted
	streams  map[*lightStream]struct{}
	ended    error // why it is closed
}

func newLightConn(t, remote *light, scope network.ConnManagementScope) *lightConn {
	c := &lightConn{t: t, remote: remote, scope: scope, streams: make(map[*lightStream]struct{})}
	c.changed = sync.NewCond(&c.mu)
	return c
}

func (c *lightConn) Close() error { return c.CloseWithError(network.ConnNoError) }

// CloseWithError closes this end at once and the other when it hears of it, which is never
// where nothing comes through: that end then waits in vain for as long as QUIC does.
func (c *lightConn) CloseWithError(code network.ConnErrorCode) error {
	defer c.scope.Done()
	if !c.fail(&network.ConnError{ErrorCode: code}) {
		return nil
	}
	idle := time.AfterFunc(lightIdle, func() { c.other.fail(&quic.IdleTimeoutError{}) })
	c.t.wire.carry(c.t.own, c.remote.own.own, 0, c.other.closed, func() {
		idle.Stop()
		c.other.fail(&network.ConnError{Remote: true, ErrorCode: code})
	})
	return nil
}

// fail closes this end, and reports whether it was open.
func (c *lightConn) fail(why error) bool {
	c.mu.Lock()
	if c.ended != nil {
		c.mu.Unlock()
		return false
	}
	c.ended = why
	streams := c.streams
	c.streams, c.incoming = nil, nil
	c.changed.Broadcast()
	c.mu.Unlock()
	for s := range streams {
		s.in.end(why, nil)
		s.out.end(nil, why)
	}
	if c.other.closed() != nil {
		c.t.wire.untie(c)
		c.t.wire.untie(c.other)
	}
	return true
}

func (c *lightConn) closed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

func (c *lightConn) IsClosed() bool { return c.closed() != nil }

// OpenStream makes a stream, of which the other peer learns by what comes over it.
func (c *lightConn) OpenStream(ctx context.Context) (network.MuxedStream, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	there, back := newCourse(c, c.other), newCourse(c.other, c)
	s := &lightStream{conn: c, out: there, in: back}
	far := &lightStream{conn: c.other, out: back, in: there}
	there.first = func() { c.other.receive(far) }
	return s, c.keep(s)
}

func (c *lightConn) keep(s *lightStream) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == nil {
		c.streams[s] = struct{}{}
	}
	return c.ended
}

func (c *lightConn) receive(s *lightStream) {
	if err := c.keep(s); err != nil {
		s.in.end(err, nil)
		s.out.end(nil, err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.incoming = append(c.incoming, s)
	c.changed.Broadcast()
}

func (c *lightConn) forget(s *lightStream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.streams, s)
}

func (c *lightConn) AcceptStream() (network.MuxedStream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.ended == nil && len(c.incoming) == 0 {
		c.changed.Wait()
	}
	if c.ended != nil {
		return nil, c.ended
	}
	s := c.incoming[0]
	c.incoming = c.incoming[1:]
	return s, nil
}

func (c *lightConn) As(any) bool                          { return false }
func (c *lightConn) LocalPeer() peer.ID                   { return c.t.id }
func (c *lightConn) RemotePeer() peer.ID                  { return c.remote.id }
func (c *lightConn) RemotePublicKey() crypto.PubKey       { return c.remote.key.GetPublic() }
func (c *lightConn) LocalMultiaddr() multiaddr.Multiaddr  { return c.t.own.addr }
func (c *lightConn) RemoteMultiaddr() multiaddr.Multiaddr { return c.remote.own.addr }
func (c *lightConn) Scope() network.ConnScope             { return c.scope }
func (c *lightConn) Transport() transport.Transport       { return c.t }

func (c *lightConn) ConnState() network.ConnectionState {
	return network.ConnectionState{Transport: "quic-v1"}
}

// lightStream is one end of a stream.
type lightStream struct {
	conn    *lightConn
	in, out *course
}

func (s *lightStream) Read(p []byte) (int, error)  { return s.in.read(p) }
func (s *lightStream) Write(p []byte) (int, error) { return s.out.write(p) }

func (s *lightStream) SetReadDeadline(t time.Time) error  { s.in.readBy.set(s.in, t); return nil }
func (s *lightStream) SetWriteDeadline(t time.Time) error { s.out.writeBy.set(s.out, t); return nil }
func (s *lightStream) SetDeadline(t time.Time) error {
	_ = s.SetReadDeadline(t)
	return s.SetWriteDeadline(t)
}

func (s *lightStream) CloseWrite() error { return s.out.finish() }

func (s *lightStream) CloseRead() error {
	s.in.stop(network.StreamNoError)
	return nil
}

func (s *lightStream) Close() error {
	s.conn.forget(s)
	_ = s.CloseRead()
	return s.CloseWrite()
}

func (s *lightStream) Reset() error { return s.ResetWithError(network.StreamNoError) }

func (s *lightStream) ResetWithError(code network.StreamErrorCode) error {
	s.conn.forget(s)
	here := &network.StreamError{ErrorCode: code}
	s.in.end(here, nil)
	s.out.end(nil, here)
	s.out.carry(func() { // one packet tells of both directions
		there := &network.StreamError{ErrorCode: code, Remote: true}
		s.in.end(nil, there)
		s.out.end(there, nil)
		s.out.announce()
	})
	return nil
}

// course is one direction of a stream. It is safe for concurrent use.
type course struct {
	from, to *lightConn
	first    func() // called with the first that arrives; nil on the way back

	mu       sync.Mutex // guards what follows; no other lock is taken under it
	changed  *sync.Cond
	flying   []*flight // sent, in order, until all before them have arrived
	arrived  [][]byte  // not read yet
	size     int       // bytes of both
	finished bool      // nothing follows what has arrived
	readErr  error
	writeErr error
	readBy   alarm
	writeBy  alarm
}

// flight is what one packet carries.
type flight struct {
	data   []byte
	last   bool
	landed bool
}

func newCourse(from, to *lightConn) *course {
	c := &course{from: from, to: to}
	c.changed = sync.NewCond(&c.mu)
	return c
}

func (c *course) write(p []byte) (n int, err error) {
	for len(p) > 0 {
		c.mu.Lock()
		for c.size >= lightWindow && c.writeErr == nil && !c.writeBy.passed() {
			c.changed.Wait()
		}
		switch {
		case c.writeErr != nil:
			err = c.writeErr
		case c.writeBy.passed():
			err = os.ErrDeadlineExceeded
		}
		if err != nil {
			c.mu.Unlock()
			return n, err
		}
		f := &flight{data: append([]byte(nil), p[:min(len(p), lightWindow-c.size)]...)}
		c.flying = append(c.flying, f)
		c.size += len(f.data)
		c.mu.Unlock()
		c.send(f)
		n, p = n+len(f.data), p[len(f.data):]
	}
	return n, nil
}

func (c *course) send(f *flight) {
	c.from.t.wire.bytes.Add(int64(len(f.data)))
	c.carry(func() { c.land(f) })
}

// carry has something happen at the reader's end.
func (c *course) carry(then func()) {
	c.from.t.wire.carry(c.from.t.own, c.to.t.own.own, 0, c.from.closed, then)
}

// land takes in what has arrived, in the order of sending.
func (c *course) land(f *flight) {
	c.mu.Lock()
	f.landed = true
	for len(c.flying) > 0 && c.flying[0].landed {
		next := c.flying[0]
		c.flying = c.flying[1:]
		c.finished = c.finished || next.last
		if len(next.data) > 0 && c.readErr == nil {
			c.arrived = append(c.arrived, next.data)
		} else {
			c.size -= len(next.data)
		}
	}
	c.changed.Broadcast()
	c.mu.Unlock()
	c.announce()
}

// announce tells the other peer of the stream, once.
func (c *course) announce() {
	c.mu.Lock()
	first := c.first
	c.first = nil
	c.mu.Unlock()
	if first != nil {
		first()
	}
}

func (c *course) read(p []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.readErr != nil:
			return 0, c.readErr
		case c.readBy.passed():
			return 0, os.ErrDeadlineExceeded
		case len(p) == 0:
			return 0, nil
		case len(c.arrived) > 0:
			n = copy(p, c.arrived[0])
			if c.arrived[0] = c.arrived[0][n:]; len(c.arrived[0]) == 0 {
				c.arrived = c.arrived[1:]
			}
			c.size -= n
			c.changed.Broadcast()
			return n, nil
		case c.finished:
			return 0, io.EOF
		}
		c.changed.Wait()
	}
}

// end sets how reading and writing fail from now on, where they did not yet.
func (c *course) end(reading, writing error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.readErr == nil && reading != nil {
		c.readErr, c.arrived = reading, nil
	}
	if c.writeErr == nil && writing != nil {
		c.writeErr = writing
	}
	c.changed.Broadcast()
}

// finish is the writer's: nothing follows.
func (c *course) finish() error {
	c.mu.Lock()
	if c.writeErr != nil {
		c.mu.Unlock()
		return nil
	}
	c.writeErr = io.ErrClosedPipe
	f := &flight{last: true}
	c.flying = append(c.flying, f)
	c.mu.Unlock()
	c.send(f)
	return nil
}

// stop is the reader's: nothing more is wanted.
func (c *course) stop(code network.StreamErrorCode) {
	c.mu.Lock()
	over := c.finished || c.readErr != nil
	c.mu.Unlock()
	c.end(&network.StreamError{ErrorCode: code}, nil)
	if !over {
		c.to.t.wire.carry(c.to.t.own, c.from.t.own.own, 0, c.to.closed, func() {
			c.end(nil, &network.StreamError{ErrorCode: code, Remote: true})
		})
	}
}

// alarm is a deadline; the zero value is none. The course's lock guards it.
type alarm struct {
	at    time.Time
	timer *time.Timer
}

func (a *alarm) passed() bool { return !a.at.IsZero() && !time.Now().Before(a.at) }

func (a *alarm) set(c *course, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
	if a.at = at; !at.IsZero() {
		a.timer = time.AfterFunc(time.Until(at), func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.changed.Broadcast()
		})
	}
	c.changed.Broadcast()
}
