package probe

import (
	"context"
	"crypto/tls"
	"io"
	"strings"

	"github.com/blackhole/blackhole/internal/platform/clean"
)

// libp2pKind begins the handshake of a libp2p address: multistream-select over TCP, or QUIC. It does not prove the id of the peer: the
// prober of peers does.
func libp2pKind() kind {
	return kind{name: "libp2p", schemes: []string{"libp2p"}, speak: func(ctx context.Context, s *session) (Outcome, error) {
		if s.target.Secure {
			return s.quic(ctx, &tls.Config{NextProtos: []string{"libp2p"}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}) //nolint:gosec // such certificates are self-signed; the answer counts
		}
		const hello = "\x13/multistream/1.0.0\n"
		conn, end, err := s.Open(ctx)
		if err != nil {
			return Outcome{}, err
		}
		defer end()
		if _, err := io.WriteString(conn, hello); err != nil {
			return Outcome{}, err
		}
		reply := make([]byte, len(hello))
		n, err := io.ReadFull(conn, reply)
		switch {
		case !strings.HasPrefix(hello, string(reply[:n])):
			return Outcome{}, &Foreign{"multistream", clean.Text(string(reply[:n]), maxText)}
		case err != nil:
			return Outcome{}, err
		}
		return s.answered("multistream"), nil
	}}
}

// parseMultiaddr reads /ip4|ip6|dns|dns4|dns6/HOST/tcp|udp/PORT[/quic-v1][/p2p/ID]. Other transports are not measured.
func parseMultiaddr(addr string) (Target, bool) {
	parts := strings.Split(strings.TrimPrefix(addr, "/"), "/")
	if len(parts) < 4 {
		return Target{}, false
	}
	switch parts[0] {
	case "ip4", "ip6", "dns", "dns4", "dns6":
	default:
		return Target{}, false
	}
	rest := parts[4:]
	quic := len(rest) > 0 && rest[0] == "quic-v1"
	if quic {
		rest = rest[1:]
	}
	if quic != (parts[2] == "udp") || parts[2] != "udp" && parts[2] != "tcp" || len(rest) != 0 && (len(rest) != 2 || rest[0] != "p2p") {
		return Target{}, false
	}
	t, ok := Target{Host: strings.ToLower(parts[1])}.as("libp2p", parts[3], nil)
	t.Secure = quic
	return t, ok && t.Host != ""
}
