package directory

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/instances"
)

// TestLogOfOutage checks that a long outage takes one warning, and its end one
// line.
func TestLogOfOutage(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		c.elect("a")
		b := c.add("b")
		b.Start()
		count := func(level, text string) int {
			synctest.Wait()
			return strings.Count(b.log.String(), "level="+level+" msg=\"the watch of the directory "+text)
		}
		time.Sleep(time.Minute)
		require.Zero(t, count("WARN", ""))
		for n := 1; n <= 2; n++ {
			b.cut(true)
			c.elect("a") // ends the watch
			time.Sleep(10 * time.Minute)
			require.Equal(t, n, count("WARN", "ended"))
			require.Equal(t, n-1, count("INFO", ""))
			b.cut(false)
			time.Sleep(time.Minute)
			require.Equal(t, n, count("WARN", "ended"))
			require.Equal(t, n, count("INFO", "delivers again"))
		}
	})
}

// TestEndWithoutContact checks that the instance of another peer, whose place a
// local one took without contact, comes back with the end of the local one.
func TestEndWithoutContact(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		c.elect("a")
		a, b := c.add("a"), c.add("b")
		x := running("storage", "x")
		a.Publish([]instances.Change{x})
		a.Start()
		b.Start()
		time.Sleep(time.Minute)
		b.cut(true)
		time.Sleep(10 * time.Second)
		other := running("storage", "x")
		other.Instance.Lease, other.Reason = "lease-of-b", instances.ReasonRegistered
		for range 2 {
			b.Publish([]instances.Change{other})
			b.Publish([]instances.Change{other})
			require.Equal(t, "b", b.Catalog.Get(x.Key).Peer)
			b.Publish([]instances.Change{{Key: x.Key}})
			require.Equal(t, "a", b.Catalog.Get(x.Key).Peer)
		}
		_, stale := b.ids("storage")
		require.True(t, stale)
		b.cut(false)
		time.Sleep(15 * time.Second)
		require.Equal(t, "a", b.Catalog.Get(x.Key).Peer)
		b.cut(true)
		time.Sleep(10 * time.Second)
		b.Publish([]instances.Change{{Key: x.Key}})
		require.Equal(t, "a", b.Catalog.Get(x.Key).Peer, "an end without a registration ends nothing of another peer's")
	})
}
