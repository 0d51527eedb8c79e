package registry

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/instance"
)

// TestShortStopKeepsTheStatus: a status outlives a stop that is orderly and short, once.
func TestShortStopKeepsTheStatus(t *testing.T) {
	const (
		unknown   = instance.StatusUnknown
		up        = instance.StatusUp
		unhealthy = instance.StatusUnhealthy
		starting  = instance.StatusStarting
		out       = instance.StatusOutOfService
	)
	stop := epoch().Add(29 * time.Second)
	for name, c := range map[string]struct {
		suspend bool
		after   time.Duration
		want    [6]instance.Status
	}{
		"short":       {true, 2 * time.Second, [6]instance.Status{up, up, starting, out, unhealthy, unknown}},
		"as long":     {true, 15 * time.Second, [6]instance.Status{up, up, starting, out, unhealthy, unknown}},
		"long":        {true, 16 * time.Second, [6]instance.Status{unknown, unknown, unknown, out, unknown, unknown}},
		"clock back":  {true, -time.Second, [6]instance.Status{unknown, unknown, unknown, out, unknown, unknown}},
		"without one": {false, time.Second, [6]instance.Status{unknown, unknown, unknown, out, unknown, unknown}},
	} {
		t.Run(name, func(t *testing.T) {
			conf := config(vfs.NewMem())
			r := open(t, conf, epoch())
			late := registration("e")
			register(t, r, late, stop.Add(-late.Spec.UnhealthyAfter-30*time.Second))
			register(t, r, registration("a"), epoch())
			register(t, r, checked("b"), epoch())
			require.True(t, r.Report(checked("b").Key, true, up, epoch()))
			begins := registration("c")
			begins.Status = starting
			register(t, r, begins, epoch())
			register(t, r, registration("d"), epoch())
			_, err := r.SetStatus(registration("d").Key, out, epoch())
			require.NoError(t, err)
			register(t, r, checked("f"), epoch())
			if c.suspend {
				require.NoError(t, r.Suspend(stop))
			}
			require.NoError(t, r.Close())

			now := stop.Add(c.after)
			r = open(t, conf, now)
			for n, id := range []string{"a", "b", "c", "d", "e", "f"} {
				require.Equal(t, c.want[n], status(t, r, id), id)
			}
			require.NoError(t, r.Close())
			r = open(t, conf, now)
			require.Equal(t, unknown, status(t, r, "a"), "the status counts for one start")
		})
	}
}

// TestResumedInstanceHasItsFullTime: silence counts from the start.
func TestResumedInstanceHasItsFullTime(t *testing.T) {
	conf := config(vfs.NewMem())
	r := open(t, conf, epoch())
	after := register(t, r, registration("a"), epoch()).Spec.UnhealthyAfter
	stop := epoch().Add(after - time.Second)
	require.NoError(t, r.Suspend(stop))
	require.NoError(t, r.Close())

	start := stop.Add(time.Second)
	r = open(t, conf, start)
	require.Equal(t, start.Add(after), r.Expire(start))
	_, heard := r.LastBeat(registration("a").Key)
	require.False(t, heard, "the stop is no heartbeat")
	r.Expire(start.Add(after))
	require.Equal(t, instance.StatusUnhealthy, status(t, r, "a"))
}
