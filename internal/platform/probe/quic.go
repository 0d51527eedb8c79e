package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"

	"github.com/quic-go/quic-go"
)

// quicKind completes a handshake of QUIC with the protocols of HTTP/3. An endpoint that speaks another protocol over QUIC answers too.
func quicKind() kind {
	return kind{name: "quic", schemes: []string{"quic", "h3", "http3"}, protocols: []string{"quic", "h3", "http3"}, over: []string{"", "udp"},
		secure: []string{"quic", "h3", "http3", "udp", ""}, speak: func(ctx context.Context, s *session) (Outcome, error) {
			return s.quic(ctx, s.tls("h3"))
		}}
}

// quic completes a handshake with the first address.
func (s *session) quic(ctx context.Context, c *tls.Config) (Outcome, error) {
	c.MinVersion = tls.VersionTLS13
	socket, err := net.ListenUDP("udp", nil)
	if err != nil {
		return Outcome{}, errUnmeasured
	}
	defer func() { _ = socket.Close() }()
	transport := &quic.Transport{Conn: socket}
	defer func() { _ = transport.Close() }()
	conn, err := transport.Dial(ctx, net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.addrs[0], s.target.Port)), c, &quic.Config{HandshakeIdleTimeout: Timeout})
	var told *quic.TransportError
	var other *quic.VersionNegotiationError
	switch {
	case err == nil:
		_ = conn.CloseWithError(0, "")
		return s.answered("handshake"), nil
	case errors.As(err, &other):
		return s.answered("speaks other versions of QUIC"), nil
	case errors.As(err, &told) && told.Remote && told.ErrorCode == quic.ConnectionRefused:
		return Outcome{State: Closed, Detail: "speaks QUIC, and takes no connection now"}, nil
	case errors.As(err, &told) && told.Remote:
		return s.answered("speaks QUIC, and another protocol over it"), nil
	default:
		return Outcome{}, err
	}
}
