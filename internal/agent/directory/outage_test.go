package directory

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
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
