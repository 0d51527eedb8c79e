package flood

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPace: a flood sends no more than its rate, whatever the number of messages at a time, and ends with its context.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace(100, 1)
		for range 50 {
			require.True(t, p.turn(t.Context(), 20))
		}
		require.InDelta(t, 1000/100, time.Since(p.began).Seconds(), 0.2)
		began := time.Now()
		require.False(t, p.turn(ended(t), 1))
		require.Equal(t, began, time.Now())
	})
}
