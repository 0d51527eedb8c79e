package probe

import (
	"context"
	"io"
)

// socksKind offers the methods of SOCKS5 (RFC 1928): none and a password. It asks for no connection.
func socksKind() kind {
	return kind{name: "socks5", schemes: []string{"socks5", "socks5h", "socks"}, protocols: []string{"socks5"}, over: []string{"", "tcp"}, port: 1080,
		speak: func(ctx context.Context, s *session) (Outcome, error) {
			conn, end, err := s.Open(ctx)
			if err != nil {
				return Outcome{}, err
			}
			defer end()
			if _, err := conn.Write([]byte{5, 2, 0, 2}); err != nil {
				return Outcome{}, err
			}
			reply := make([]byte, 2)
			n, err := io.ReadFull(conn, reply)
			switch {
			case n > 0 && reply[0] != 5:
				return Outcome{}, &Foreign{Wanted: "SOCKS5"}
			case err != nil:
				return Outcome{}, err
			case reply[1] != 0: // a password, another method, or none of those offered
				return Outcome{State: Closed, Detail: "wants a password, or another proof"}, nil
			}
			return s.answered("lets in"), nil
		}}
}
