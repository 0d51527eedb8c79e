package grpcapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
)

// tapped is a client's connection that keeps what it sends and receives.
type tapped struct {
	net.Conn
	mu       sync.Mutex
	out, in  bytes.Buffer
	messages int // writes
}

func (c *tapped) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.Write(p[:n])
	c.messages++
	return n, err
}

func (c *tapped) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in.Write(p[:n])
	return n, err
}

// count returns the frames of a kind in what a side sent.
func count(t *testing.T, sent []byte, kind http2.FrameType) (n int) {
	t.Helper()
	for r := http2.NewFramer(io.Discard, bytes.NewReader(sent)); ; {
		f, err := r.ReadFrame()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return n
		}
		require.NoError(t, err)
		if f.Header().Type == kind {
			n++
		}
	}
}

// TestCallCostsNoPing: neither side measures the bandwidth, and a call is one write.
func TestCallCostsNoPing(t *testing.T) {
	const many = 200
	s := serve(t, grpcapi.Config{Coordination: plane(coordtest.New(coordtest.Config{}))})
	var conn *tapped
	c := dial(t, "passthrough:///peer", grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		raw, err := s.listener.DialContext(ctx)
		conn = &tapped{Conn: raw}
		return conn, err
	}))
	for i := range many {
		_, err := c.KV().Put(t.Context(), fmt.Sprint("k", i), bytes.Repeat([]byte{1}, 4<<10))
		require.NoError(t, err)
	}
	conn.mu.Lock()
	defer conn.mu.Unlock()
	require.Zero(t, count(t, conn.out.Bytes()[len(http2.ClientPreface):], http2.FramePing))
	require.Zero(t, count(t, conn.in.Bytes(), http2.FramePing))
	require.GreaterOrEqual(t, count(t, conn.out.Bytes()[len(http2.ClientPreface):], http2.FrameData), many)
	require.Less(t, conn.messages, many+many/4)
}
