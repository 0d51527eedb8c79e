package protocol

import (
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
)

func TestHedgeDelay(t *testing.T) {
	s := newStatsCache()
	require.Equal(t, hedgeMin, s.hedgeDelay(nil))
	require.Equal(t, hedgeAfter, s.hedgeDelay([]peer.ID{"new"}))
	for range 50 {
		s.observe("fast", time.Millisecond)
		s.observe("slow", 400*time.Millisecond)
	}
	require.Equal(t, hedgeMin, s.hedgeDelay([]peer.ID{"fast"}))
	require.InDelta(t, 400*time.Millisecond, s.hedgeDelay([]peer.ID{"fast", "slow"}), float64(50*time.Millisecond))
	s.observe("slow", time.Minute)
	require.Equal(t, hedgeMax, s.hedgeDelay([]peer.ID{"slow"}))
}
