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
			if _, err := io.ReadFull(conn, reply); err != nil {
				return Outcome{}, err
			}
			if reply[0] != 5 {
				return Outcome{State: WrongProtocol, Detail: "answered no SOCKS5"}, nil
			}
			return s.answered("offers a method"), nil
		}}
}
