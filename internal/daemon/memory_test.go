package daemon

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Little live data may have as much garbage, much of it half as much, and nothing jumps between.
func TestGarbagePercent(t *testing.T) {
	for live, percent := range map[uint64]int{0: 100, 1: 100, smallHeap: 100, smallHeap * 4 / 3: 75, 2 * smallHeap: 50, 1 << 40: 50} {
		require.Equal(t, percent, garbagePercent(live), live)
	}
}
