package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

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
	o := Outcome{State: Answers, Detail: "handshake"}
	err := s.packets(ctx, func(ctx context.Context, socket net.PacketConn, to net.Addr) error {
		transport := &quic.Transport{Conn: socket}
		defer func() { _ = transport.Close() }()
		conn, err := transport.Dial(ctx, to, c, &quic.Config{HandshakeIdleTimeout: Timeout})
		var told *quic.TransportError
		var other *quic.VersionNegotiationError
		switch {
		case err == nil:
			_ = conn.CloseWithError(0, "")
		case errors.As(err, &other):
			o.Detail = "speaks other versions of QUIC"
		case errors.As(err, &told) && told.Remote && told.ErrorCode == quic.ConnectionRefused:
			o = Outcome{State: Closed, Detail: "speaks QUIC, and takes no connection now"}
		case errors.As(err, &told) && told.Remote:
			o.Detail = "speaks QUIC, and another protocol over it"
		default:
			return err
		}
		return nil
	})
	if err != nil {
		return Outcome{}, err
	}
	if o.State == Answers {
		o.RoundTrip = time.Since(s.began)
	}
	return o, nil
}
