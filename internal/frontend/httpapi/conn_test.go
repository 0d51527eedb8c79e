package httpapi

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// counted counts the writes to a connection.
type counted struct {
	net.Conn
	writes int
}

func (c *counted) Write(p []byte) (int, error) {
	c.writes++
	return c.Conn.Write(p)
}

// one is a listener of one connection.
type one struct{ conn net.Conn }

func (l *one) Accept() (net.Conn, error) {
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	return nil, net.ErrClosed
}

func (l *one) Close() error   { return nil }
func (l *one) Addr() net.Addr { return &net.TCPAddr{} }

// TestAnswersGoInOnePiece: a short answer takes one write, for all methods, and the connection
// stays usable.
func TestAnswersGoInOnePiece(t *testing.T) {
	far, near := net.Pipe()
	defer far.Close()
	c := &counted{Conn: near}
	body := ""
	s := &http.Server{ConnContext: new(Server).withConn, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		write(&response{ResponseWriter: w, conn: connOf(r)}, http.StatusOK, []byte(body))
	})}
	require.ErrorIs(t, s.Serve(conns{&one{conn: c}}), net.ErrClosed)
	defer s.Close()
	in := bufio.NewReader(far)
	for _, size := range []int{0, 1, 3900, 4000, 4096, 5000, 20_000, maxHeld, maxHeld + 1} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			body, c.writes = strings.Repeat("x", size), 0
			_, err := fmt.Fprintf(far, "%s / HTTP/1.1\r\nHost: localhost\r\n\r\n", method)
			require.NoError(t, err)
			resp, err := http.ReadResponse(in, &http.Request{Method: method})
			require.NoError(t, err)
			require.EqualValues(t, size, resp.ContentLength)
			if method == http.MethodGet {
				got, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				require.Len(t, got, size)
			}
			resp.Body.Close()
			if size <= maxHeld {
				require.Equal(t, 1, c.writes, "%s %d", method, size)
			}
		}
	}
}

// TestEventStreamsAreNotBuffered: each stream tells a proxy to pass its events on, also in the header alone.
func TestEventStreamsAreNotBuffered(t *testing.T) {
	agent, group, offers := newAgentFixture(t), newCoordFixture(t), newFixture(t)
	for stream, got := range map[string]http.Header{
		"instances": agent.send(t, "HEAD "+watched, "", header("Accept", "text/event-stream")).header,
		"keys":      group.send(t, "HEAD /watch?key=a", "").header,
		"offers":    do(offers.handler, "HEAD", watchPath, "").Header(),
		"events":    do(offers.handler, "HEAD", "/v1/events", "").Header(),
	} {
		require.Equal(t, []string{"text/event-stream", "no"}, []string{got.Get("Content-Type"), got.Get("X-Accel-Buffering")}, stream)
	}
}
