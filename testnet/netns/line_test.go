package netns

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLine: a slow link carries what fits, in order, and loses what would wait too long.
func TestLine(t *testing.T) {
	now := time.Now()
	l := &line{perSecond: 1000}
	for i := range 3 {
		wait, ok := l.take(100, now)
		require.True(t, ok)
		require.Equal(t, time.Duration(i+1)*100*time.Millisecond, wait)
	}
	_, ok := l.take(100, now)
	require.True(t, ok)
	_, ok = l.take(100, now)
	require.False(t, ok)
	wait, ok := l.take(100, now.Add(time.Second))
	require.True(t, ok)
	require.Equal(t, 100*time.Millisecond, wait)
	wait, ok = (*line)(nil).take(1500, now)
	require.True(t, ok)
	require.Zero(t, wait)
}
