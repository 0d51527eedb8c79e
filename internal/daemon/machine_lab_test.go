//go:build lab

package daemon

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestShift: only the wall clock moves.
func TestShift(t *testing.T) {
	for _, d := range []time.Duration{0, time.Nanosecond, -time.Nanosecond, 999_999_999, time.Hour, -25 * time.Hour, 10 * 365 * 24 * time.Hour} {
		now := time.Now()
		moved := shift(now, d)
		require.Zero(t, moved.Sub(now), "the monotonic clock stays")
		require.Equal(t, now.Round(0).Add(d).UnixNano(), moved.UnixNano())
		require.Equal(t, now.Round(0).Add(d).UnixNano(), moved.Round(0).UnixNano())
	}
}

// TestResolverFile: names in offers are asked of the server in the file.
func TestResolverFile(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = server.Close() }()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, resolverFile), []byte(server.LocalAddr().String()+"\n"), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan error)
	go func() {
		_, err := newResolver(dir).LookupTXT(ctx, "a.net.")
		asked <- err
	}()
	_, _, err = server.ReadFrom(make([]byte, 512))
	require.NoError(t, err)
	cancel()
	require.Error(t, <-asked)
}

func TestClockFile(t *testing.T) {
	dir := t.TempDir()
	now := newClock(dir)
	require.InDelta(t, time.Now().Unix(), now().Unix(), 2)
	require.NoError(t, os.WriteFile(filepath.Join(dir, clockFile), []byte("-1h\n"), 0o600))
	require.Eventually(t, func() bool { return time.Until(now().Round(0)) < -59*time.Minute }, time.Minute, time.Millisecond)
}
