package directory

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestCommittedWaitsForAnElection: a registration in the first seconds waits for the leader at most two seconds, and
// none waits after five seconds without one.
func TestCommittedWaitsForAnElection(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		a := c.add("a")
		a.Publish([]instances.Change{running("storage", "x")})
		a.Start()
		key, began := running("storage", "x").Key, time.Now()
		wait := func() (time.Duration, error) {
			from := time.Now()
			_, err := a.Committed(t.Context(), key)
			return time.Since(from), err
		}
		took, err := wait()
		require.ErrorIs(t, err, fault.Unavailable)
		require.Equal(t, 2*time.Second, took)
		time.Sleep(time.Until(began.Add(4 * time.Second)))
		took, err = wait()
		require.ErrorIs(t, err, fault.Unavailable)
		require.Equal(t, time.Second, took, "five seconds after the start the group is down")
		took, err = wait()
		require.ErrorIs(t, err, fault.Unavailable)
		require.Zero(t, took)

		c.elect("a")
		time.Sleep(time.Second)
		_, err = wait()
		require.NoError(t, err)
		c.elect("")
		time.Sleep(time.Second)
		a.Publish([]instances.Change{running("storage", "y")})
		key = running("storage", "y").Key
		time.AfterFunc(time.Second, func() { c.elect("b") })
		took, err = wait()
		require.NoError(t, err, "the next leader came in time")
		require.Less(t, took, 2*time.Second)
	})
}
