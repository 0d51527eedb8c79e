package daemon

import (
	"bytes"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCallersAreBounded: callers have a quarter of the descriptors, and the log tells once a minute that one was refused.
func TestCallersAreBounded(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var log bytes.Buffer
	refusals := make(chan struct{})
	c := newCallers(400, slog.New(slog.NewTextHandler(&log, nil)), func() { refusals <- struct{}{} })
	l := c.on(inner)
	defer l.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := l.Accept(); err != nil {
				return
			}
		}
	}()
	for range 75 + 2 { // one client leaves a quarter of the 100 places
		conn, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
	}
	<-refusals
	<-refusals
	require.NoError(t, l.Close())
	<-ended
	require.Equal(t, 75, c.pool.Used())
	require.Equal(t, 1, strings.Count(log.String(), "refused a connection of a caller"), log.String())
	require.Nil(t, c.on(nil))
}
