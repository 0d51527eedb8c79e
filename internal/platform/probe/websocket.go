package probe

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // RFC 6455 requires it
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
)

// websocketKind upgrades a connection (RFC 6455).
func websocketKind() kind {
	return kind{name: "websocket", schemes: []string{"ws", "wss"}, protocols: []string{"websocket", "ws"}, over: web(), secure: []string{"wss", "https"}, port: 80, speak: speakWebSocket}
}

func speakWebSocket(ctx context.Context, s *session) (Outcome, error) {
	conn, end, err := s.Open(ctx, "http/1.1")
	if err != nil {
		return Outcome{}, err
	}
	defer end()
	nonce := make([]byte, 16)
	_, _ = rand.Read(nonce) // never fails
	key := base64.StdEncoding.EncodeToString(nonce)
	path := s.target.Path
	if path == "" {
		path = "/"
	}
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: Go-http-client/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n\r\n",
		path, s.target.authority(), key); err != nil {
		return Outcome{}, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, maxAnswer)), nil)
	if err != nil {
		return Outcome{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // RFC 6455 requires it
	a := answer{status: resp.StatusCode, header: resp.Header, secure: s.target.Secure}
	switch {
	case a.status == http.StatusSwitchingProtocols && resp.Header.Get("Sec-WebSocket-Accept") == base64.StdEncoding.EncodeToString(sum[:]):
		return s.answered("upgraded"), nil
	case a.status == http.StatusSwitchingProtocols:
		return Outcome{State: Wrong, Detail: "upgraded to something else"}, nil
	case a.status/100 == 2:
		return Outcome{State: Wrong, Detail: a.text() + ", and did not upgrade"}, nil
	}
	if a.status >= 400 {
		a.body, _ = io.ReadAll(resp.Body)
	}
	return a.refusal(false, s.target.Path != ""), nil
}
