package coordtest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestInProcess(t *testing.T) {
	coordtest.Run(t, func(testing.TB) coordtest.API {
		api := coordtest.InProcess(coordtest.New(coordtest.Config{}))
		api.Directory = true
		return api
	})
}

// With a clock that runs, time passes by itself.
func TestSoloOnARunningClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := coordtest.New(coordtest.Config{
			Now:   time.Now,
			After: func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop },
		})
		grant := func(ttl int64) coord.LeaseID {
			r, _, err := ops.Of(s).Do(t.Context(), ops.Command{Op: &ops.LeaseGrant{TTL: ttl}})
			require.NoError(t, err)
			return r.Lease
		}
		long, short := grant(60_000), grant(5_000)
		for _, lease := range []coord.LeaseID{short, long} {
			began := time.Now()
			r, _, err := ops.Of(s).Acquire(t.Context(), ops.Command{Op: &ops.Lock{Name: "db", Lease: lease, Wait: true}}, time.Minute)
			require.NoError(t, err)
			require.True(t, r.Lock.Granted)
			require.Equal(t, lease == long, time.Since(began) == 5*time.Second)
		}
		began := time.Now()
		r, _, err := ops.Of(s).Acquire(t.Context(), ops.Command{Op: &ops.Lock{Name: "db", Lease: grant(60_000), Wait: true}}, time.Second)
		require.NoError(t, err)
		require.False(t, r.Lock.Granted)
		require.Equal(t, time.Second, time.Since(began))
	})
}

// Timers run in the order of their times, new ones included.
func TestClock(t *testing.T) {
	var c coordtest.Clock
	var rang []time.Duration
	start := c.Now()
	ring := func() { rang = append(rang, c.Now().Sub(start)) }
	c.After(3, ring)
	c.After(1, func() { ring(); c.After(1, ring); c.After(100, ring) })
	stop := c.After(2, ring)
	require.True(t, stop())
	require.False(t, stop())
	c.Advance(10)
	require.Equal(t, []time.Duration{1, 2, 3}, rang)
	require.Equal(t, time.Duration(10), c.Now().Sub(start))
}

func BenchmarkKeepAlive(b *testing.B) {
	s := coordtest.New(coordtest.Config{})
	ids := make([]coord.LeaseID, 1000)
	for i := range ids {
		r, _, err := ops.Of(s).Do(b.Context(), ops.Command{Op: &ops.LeaseGrant{TTL: 60_000}})
		require.NoError(b, err)
		ids[i] = r.Lease
	}
	for b.Loop() {
		_, _, err := ops.Of(s).KeepAlive(b.Context(), "", ids)
		require.NoError(b, err)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(ids)), "ns/lease")
}
