//go:build lab

package daemon

import (
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

func TestClockFile(t *testing.T) {
	dir := t.TempDir()
	now := newClock(dir)
	require.InDelta(t, time.Now().Unix(), now().Unix(), 2)
	require.NoError(t, os.WriteFile(filepath.Join(dir, clockFile), []byte("-1h\n"), 0o600))
	require.Eventually(t, func() bool { return time.Until(now().Round(0)) < -59*time.Minute }, time.Minute, time.Millisecond)
}
