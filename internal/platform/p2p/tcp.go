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

// userTimeout closes a TCP connection whose data stays without acknowledgement. TCP alone retransmits after
// growing pauses: after a network failure, the connection stays mute for nearly the same time again. Stopped
// and busy processes lose no connection, because their kernel acknowledges until its buffers are full.
const userTimeout = 8 * time.Second

// newNoise is libp2p's Noise with userTimeout on its connections.
func newNoise(id protocol.ID, key crypto.PrivKey, muxers []upgrader.StreamMuxer) (sec.SecureTransport, error) {
	t, err := noise.New(id, key, muxers)
	return timeoutSecurity{t}, err
}

// newTLS is libp2p's TLS with userTimeout on its connections.
func newTLS(id protocol.ID, key crypto.PrivKey, muxers []upgrader.StreamMuxer) (sec.SecureTransport, error) {
	t, err := libp2ptls.New(id, key, muxers)
	return timeoutSecurity{t}, err
}

// timeoutSecurity sets userTimeout on each connection at its handshake, because libp2p's TCP transport has no
// option for it. QUIC has its own security and timeouts.
type timeoutSecurity struct{ sec.SecureTransport }

// SecureInbound implements sec.SecureTransport.
func (t timeoutSecurity) SecureInbound(ctx context.Context, c net.Conn, p peer.ID) (sec.SecureConn, error) {
	applyUserTimeout(c, userTimeout)
	return t.SecureTransport.SecureInbound(ctx, c, p)
}

// SecureOutbound implements sec.SecureTransport.
func (t timeoutSecurity) SecureOutbound(ctx context.Context, c net.Conn, p peer.ID) (sec.SecureConn, error) {
	applyUserTimeout(c, userTimeout)
	return t.SecureTransport.SecureOutbound(ctx, c, p)
}

// applyUserTimeout sets TCP's user timeout (RFC 9293, 3.9.1; RFC 5482) on systems that support it. Other
// systems detect a dead connection later.
func applyUserTimeout(c net.Conn, d time.Duration) {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := socket.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { setUserTimeout(fd, d) })
	}
}
