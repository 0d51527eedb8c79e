package p2p

import (
	"context"
	"net"
	"syscall"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/libp2p/go-libp2p/p2p/net/upgrader"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
)

// userTimeout is how long what was sent over TCP may stay without the other machine's acknowledgement
// until the connection is given up, to be dialed anew. Left alone, TCP sends it again after ever longer
// pauses: when a network was cut for a while the connection stays mute for nearly as long again. A process
// that is stopped, or busy, loses nothing by it, for its kernel acknowledges until its buffers are full.
const userTimeout = 8 * time.Second

// newNoise is libp2p's Noise, over connections that have the timeout.
func newNoise(id protocol.ID, key crypto.PrivKey, muxers []upgrader.StreamMuxer) (sec.SecureTransport, error) {
	t, err := noise.New(id, key, muxers)
	return timeoutSecurity{t}, err
}

// newTLS is libp2p's TLS, over connections that have the timeout.
func newTLS(id protocol.ID, key crypto.PrivKey, muxers []upgrader.StreamMuxer) (sec.SecureTransport, error) {
	t, err := libp2ptls.New(id, key, muxers)
	return timeoutSecurity{t}, err
}

// timeoutSecurity gives connections the timeout as they come by to be secured, for the TCP transport has no
// option for it. What brings its own security, as QUIC does, is not concerned.
type timeoutSecurity struct{ sec.SecureTransport }

// SecureInbound implements sec.SecureTransport.
func (i timeoutSecurity) SecureInbound(ctx context.Context, c net.Conn, p peer.ID) (sec.SecureConn, error) {
	applyUserTimeout(c, userTimeout)
	return i.SecureTransport.SecureInbound(ctx, c, p)
}

// SecureOutbound implements sec.SecureTransport.
func (i timeoutSecurity) SecureOutbound(ctx context.Context, c net.Conn, p peer.ID) (sec.SecureConn, error) {
	applyUserTimeout(c, userTimeout)
	return i.SecureTransport.SecureOutbound(ctx, c, p)
}

// applyUserTimeout sets TCP's user timeout (RFC 9293, 3.9.1; RFC 5482) where the system has one for a connection.
// Without it the connection works, and is slow to notice.
func applyUserTimeout(c net.Conn, d time.Duration) {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := socket.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { setUserTimeout(fd, d) })
	}
}
