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

// A silent peer is last for longer each time, until it answers. An answer ends no distrust.
func TestSilenceIsAvoided(t *testing.T) {
	s, now := newStatsCache(), time.Now()
	for _, last := range []time.Duration{15 * time.Second, 30 * time.Second, time.Minute, time.Minute} {
		s.miss("mute", now)
		require.True(t, s.avoided("mute", now.Add(last-1)))
		require.False(t, s.avoided("mute", now.Add(last)))
		now = now.Add(last)
	}
	s.miss("mute", now)
	s.observe("mute", time.Millisecond)
	require.False(t, s.avoided("mute", now))
	s.miss("mute", now)
	require.False(t, s.avoided("mute", now.Add(avoidFor)))

	s.miss("liar", now)
	s.avoid("liar", now.Add(distrustFor))
	s.observe("liar", time.Millisecond)
	require.True(t, s.avoided("liar", now.Add(distrustFor-1)))
}

// A peer whose answers are outdated again and again is last for longer each time, and after a long pause as at first.
func TestOutdatedIsAvoided(t *testing.T) {
	s, now := newStatsCache(), time.Now()
	for range 2 {
		for _, last := range []time.Duration{15, 30, 60, 120, 240, 480, 480} {
			s.outdated("late", now)
			s.observe("late", time.Millisecond)
			require.True(t, s.avoided("late", now.Add(last*time.Second-1)))
			require.False(t, s.avoided("late", now.Add(last*time.Second)))
			now = now.Add(last * time.Second)
		}
		now = now.Add(distrustFor + 1)
	}
}
