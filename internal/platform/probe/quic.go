package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"net"

	"github.com/quic-go/quic-go"
)

// quicKind completes a handshake of QUIC with the protocols of HTTP/3. An endpoint that speaks another protocol over QUIC answers too.
func quicKind() kind {
	return kind{name: "quic", schemes: []string{"quic", "h3", "http3"}, protocols: []string{"quic", "h3", "http3"}, over: []string{"", "udp"},
		secure: []string{"quic", "h3", "http3", "udp", ""}, speak: func(ctx context.Context, s *session) (Outcome, error) {
			return s.quic(ctx, s.tls("h3"))
		}}
}

// quic completes a handshake.
func (s *session) quic(ctx context.Context, c *tls.Config) (Outcome, error) {
	c.MinVersion = tls.VersionTLS13
	detail := "handshake"
	err := s.packets(ctx, func(ctx context.Context, socket net.PacketConn, to net.Addr) error {
		transport := &quic.Transport{Conn: socket}
		defer func() { _ = transport.Close() }()
		conn, err := transport.Dial(ctx, to, c, &quic.Config{HandshakeIdleTimeout: Timeout})
		var told *quic.TransportError
		switch {
		case err == nil:
			_ = conn.CloseWithError(0, "")
		case errors.As(err, &told) && told.Remote:
			detail = "speaks QUIC, and another protocol over it"
			return nil
		}
		return err
	})
	if err != nil {
		return Outcome{}, err
	}
	return s.answered(detail), nil
}
