package httpapi

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/access"
)

// crowded is a server of which one caller may have three connections.
func crowded(t *testing.T) (dial func(request string) (net.Conn, *bufio.Reader)) {
	a := newAgentFixture(t, func(c *Config) { c.ConnContext = access.ConnContext })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- a.Serve(access.NewConnections(4, nil).Listener(l)) }()
	t.Cleanup(func() {
		a.Server.Close()
		require.NoError(t, <-ended)
	})
	return func(request string) (net.Conn, *bufio.Reader) {
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		_, err = fmt.Fprint(c, request)
		require.NoError(t, err)
		return c, bufio.NewReader(c)
	}
}

// TestHalfRequests: requests that never end give way to those of the same caller that do.
func TestHalfRequests(t *testing.T) {
	dial := crowded(t)
	var half []net.Conn
	for range 20 {
		c, _ := dial("POST /v1/discovery/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
		half = append(half, c)
	}
	require.Eventually(t, func() bool { // the server reads what has arrived meanwhile
		_, r := dial("GET /v1/peers HTTP/1.1\r\nHost: localhost\r\n\r\n")
		resp, err := http.ReadResponse(r, nil)
		return err == nil && resp.StatusCode == 200
	}, time.Minute, time.Millisecond)
	_, err := half[0].Read(make([]byte, 1))
	require.Error(t, err, "closed")
}

// TestProbesBesideThePool: while a caller has its share of connections, each with a request, its probes are answered and closed, and
// nothing else is served.
func TestProbesBesideThePool(t *testing.T) {
	dial := crowded(t)
	for range 3 {
		_, r := dial("GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
		resp, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		require.Equal(t, 200, resp.StatusCode)
	}
	for range 1000 {
		dial("GET /v1/sta") // silent from here on
	}
	for path, code := range map[string]int{"/livez": 200, "/readyz": 200, "/v1/peers": 429} {
		_, r := dial("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n")
		resp, err := http.ReadResponse(r, nil)
		require.NoError(t, err, path)
		require.Equal(t, code, resp.StatusCode, path)
		require.True(t, resp.Close, "%s %v", path, resp.Header)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err, path)
		_, err = r.ReadByte()
		require.Error(t, err, path)
	}
}
