package transport

import (
	"cmp"
	"context"
	"net"
	"sync"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"

	"github.com/blackhole/blackhole/internal/platform/p2p/dial"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	names "github.com/blackhole/blackhole/pkg/network"
)

// CallProtocol returns the protocol of gRPC between peers of a network.
func CallProtocol(n names.Name) protocol.ID { return protocol.ID(n.Protocol("coord", "1")) }

// ListenLimits bounds the connections of other peers. A zero field takes its default.
type ListenLimits struct {
	Total   int // open connections; 8192
	PerPeer int // open connections of one peer: gRPC needs one; 4
	Waiting int // not accepted yet; 64

	Known func(peer.ID) bool // as in Config
}

// Listener accepts the streams of CallProtocol as connections. It resets streams above its bounds.
type Listener struct {
	host    host.Host
	calls   protocol.ID
	limiter *rpc.Limiter

	mu      sync.Mutex // orders the close of waiting after sends
	waiting chan *conn
	closed  bool
}

var _ net.Listener = (*Listener)(nil)

// Listen accepts the streams of other peers of a network until Close.
func Listen(h host.Host, n names.Name, limits ListenLimits) *Listener {
	limits.Total = cmp.Or(limits.Total, 8192)
	limits.PerPeer = cmp.Or(limits.PerPeer, 4)
	limits.Waiting = cmp.Or(limits.Waiting, 64)
	l := &Listener{host: h, calls: CallProtocol(n), limiter: rpc.NewLimiter(limits.Total, limits.PerPeer, limits.Known), waiting: make(chan *conn, limits.Waiting)}
	h.SetStreamHandlerMatch(l.calls, rpc.Compatible(l.calls), l.serve)
	return l
}

func (l *Listener) serve(s network.Stream) {
	if s.Scope().SetService(service) != nil || !l.limiter.Enter(s) {
		_ = s.Reset()
		return
	}
	c := &conn{Stream: s, closed: func() { l.limiter.Leave(s) }}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		select {
		case l.waiting <- c:
			return
		default:
		}
	}
	c.abort()
}

// Accept waits for the next connection. After Close it returns net.ErrClosed.
func (l *Listener) Accept() (net.Conn, error) {
	c, ok := <-l.waiting
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

// Close accepts no more connections. Accepted ones stay open.
func (l *Listener) Close() error {
	l.host.RemoveStreamHandler(l.calls)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	close(l.waiting)
	for c := range l.waiting {
		c.abort()
	}
	return nil
}

// Addr returns this peer's id.
func (l *Listener) Addr() net.Addr { return addrOf(l.host.ID()) }

// Dial connects to the listener of another peer of a network, through a relay without a direct way. It dials at once, also
// soon after a failed dial: gRPC paces the dials. The connection is protected from trimming until its end.
// Errors: Invalid for this peer itself; Unavailable; Timeout; Canceled.
func Dial(ctx context.Context, h host.Host, n names.Name, to peer.ID) (net.Conn, error) {
	const op = "transport.Dial"
	if to == h.ID() {
		return nil, fault.In("peer", fault.New(op, fault.Invalid, "is this peer itself"))
	}
	if dials, ok := h.Network().(interface{ Backoff() *swarm.DialBackoff }); ok {
		dials.Backoff().Clear(to)
	}
	s, err := newStream(ctx, h, to, rpc.Proposals(h, to, CallProtocol(n))...)
	switch {
	case ctx.Err() != nil:
		if err == nil {
			_ = s.Reset()
		}
		return nil, fault.Wrap(op, ctx.Err())
	case err != nil:
		return nil, fault.As(op, fault.Unavailable, err)
	}
	held := service + "/" + s.ID()
	h.ConnManager().Protect(to, held)
	return &conn{Stream: s, closed: func() { h.ConnManager().Unprotect(to, held) }}, nil
}

// newStream prefers a connection over TCP, as members have: it costs less, and ends with the process behind it.
func newStream(ctx context.Context, h host.Host, to peer.ID, proposals ...protocol.ID) (network.Stream, error) {
	if c := dial.OverTCP(h, to); c != nil {
		if s, err := dial.On(ctx, c, proposals...); err == nil {
			return s, nil
		}
	}
	return h.NewStream(network.WithAllowLimitedConn(ctx, service), to, proposals...)
}

// Addr is the address of a peer: its id. A connection keeps its address, because each call on it asks for the text.
type Addr struct {
	Peer peer.ID
	text string
}

func addrOf(p peer.ID) Addr { return Addr{Peer: p, text: p.String()} }

// Network returns "libp2p".
func (Addr) Network() string { return "libp2p" }

// String returns the peer id in its usual form.
func (a Addr) String() string { return a.text }

// conn is a stream as a net.Conn.
type conn struct {
	network.Stream
	once   sync.Once
	closed func() // called once
}

var _ net.Conn = (*conn)(nil)

// LocalAddr returns this peer's id.
func (c *conn) LocalAddr() net.Addr { return addrOf(c.Stream.Conn().LocalPeer()) }

// RemoteAddr returns the remote peer's authenticated id.
func (c *conn) RemoteAddr() net.Addr { return addrOf(c.Stream.Conn().RemotePeer()) }

// Close lets written data arrive, and reads no more.
func (c *conn) Close() error {
	c.once.Do(c.closed)
	return c.Stream.Close()
}

func (c *conn) abort() {
	c.once.Do(c.closed)
	_ = c.Stream.Reset()
}
