package health

import (
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/platform/probe"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// play returns the status after each result: '+' passes.
func play(v *checkState, r thresholds, results string) string {
	var got []byte
	for _, c := range results {
		v.advance(c == '+', r)
		mark := map[instance.Status]byte{instance.StatusUnknown: '?', instance.StatusUp: 'U', instance.StatusDown: 'D'}[v.status()]
		if v.damped() {
			mark = 'H'
		}
		got = append(got, mark)
	}
	return string(got)
}

func TestThresholds(t *testing.T) {
	for _, tc := range []struct {
		name          string
		healthy, down uint8
		results, want string
	}{
		{"first pass", 1, 3, "+", "U"},
		{"failures before any status", 1, 3, "---+", "??DU"},
		{"threshold of passes", 3, 1, "++-+++", "??DDDU"},
		{"a pass starts the count anew", 1, 3, "+--+--+---", "UUUUUUUUUD"},
		{"alternating is no flapping", 2, 2, "++-+-+-+-+-+", "?UUUUUUUUUUU"},
		{"two losses are forgiven", 1, 1, "+-+-+", "UDUDU"},
		{"the third in a row is held", 1, 1, "+-+-+-+", "UDUDUDH"},
		{"one loss in twelve checks is not held", 1, 1, "+-++++++++++-++++++++++-++++++++++-+", "UDUUUUUUUUUUDUUUUUUUUUUDUUUUUUUUUUDU"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Equal(t, tc.want, play(new(checkState), thresholds{healthy: tc.healthy, unhealthy: tc.down}, tc.results))
		})
	}
}

// TestHeldIsLetGo checks RFC 2439, section 4.2: suppression ends within the
// ceiling, and only after stability.
func TestHeldIsLetGo(t *testing.T) {
	var v checkState
	r := thresholds{healthy: 1, unhealthy: 1}
	for range 100 {
		play(&v, r, "+-")
	}
	require.True(t, v.held)
	held := 0
	for v.advance(true, r); v.damped(); v.advance(true, r) {
		held++
		require.LessOrEqual(t, held, 24)
	}
	require.Greater(t, held, 12)
	require.Equal(t, instance.StatusUp, v.status())
}

// TestThresholdsAgainstHistory compares the thresholds with a search of the
// history.
func TestThresholdsAgainstHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := thresholds{
			healthy:   rapid.Uint8Range(1, 100).Draw(t, "healthy"),
			unhealthy: rapid.Uint8Range(1, 100).Draw(t, "unhealthy"),
		}
		var v checkState
		var history []bool
		want := instance.StatusUnknown
		for _, streak := range rapid.SliceOfN(rapid.IntRange(0, 300), 1, 12).Draw(t, "streaks") {
			passing := len(history) == 0 || !history[len(history)-1]
			for range streak {
				v.advance(passing, r)
				history = append(history, passing)
				if ends(history, true, int(r.healthy)) {
					want = instance.StatusUp
				} else if ends(history, false, int(r.unhealthy)) {
					want = instance.StatusDown
				}
				require.Equal(t, want, v.found, "without damping")
			}
		}
	})
}

func ends(history []bool, in bool, n int) bool {
	return len(history) >= n && !slices.Contains(history[len(history)-n:], !in)
}

func TestClasses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, int64(windowSpan)).Draw(t, "time"))
		e := time.Duration(rapid.Int64Range(0, int64(windowSpan)).Draw(t, "other"))
		require.Less(t, int(class(d)), 112)
		require.InDelta(t, float64(d), float64(middle(class(d))), max(float64(unit), float64(d)/8))
		if d <= e {
			require.LessOrEqual(t, class(d), class(e))
		}
	})
	require.Equal(t, class(windowSpan), class(math.MaxInt64))
	require.Equal(t, class(0), class(-1))
}

type check struct {
	slot    int64
	passing bool
	took    time.Duration
	status  instance.Status
}

func TestWindowAgainstList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		interval := rapid.SampledFrom([]time.Duration{time.Minute, 7 * time.Minute, time.Hour}).Draw(t, "interval")
		w := newWindow(interval)
		n := int64(max(windowMin, math.Ceil(float64(windowSpan)/float64(interval))))
		slot := rapid.Int64Range(-3, 3).Draw(t, "start")
		var all []check
		for range rapid.IntRange(0, 100).Draw(t, "checks") {
			c := check{
				slot: slot, passing: rapid.Bool().Draw(t, "passing"),
				took:   time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "took")),
				status: rapid.SampledFrom([]instance.Status{instance.StatusUp, instance.StatusDown}).Draw(t, "status"),
			}
			o := outcome{at: time.Unix(c.slot, 0), took: c.took}
			if !c.passing {
				o.err = fault.Unavailable
			}
			w.add(c.slot, o, c.status)
			all = append(all, c)
			slot += rapid.SampledFrom([]int64{1, 1, 1, 2, 5, 59, 60, 61, 1000}).Draw(t, "step")
		}
		now := slot + rapid.Int64Range(-1, 100).Draw(t, "later")
		if len(all) > 0 {
			now = max(now, all[len(all)-1].slot)
		}
		all = slices.DeleteFunc(all, func(c check) bool { return c.slot <= now-n })
		requireMeasured(t, all, w.measure(now))
	})
}

func requireMeasured(t *rapid.T, all []check, got Measured) {
	var up, bad int
	var times []time.Duration
	for _, c := range all {
		if c.status == instance.StatusUp {
			up++
		}
		if c.passing {
			times = append(times, c.took)
		} else {
			bad++
		}
	}
	require.Equal(t, len(all), got.Checks)
	require.Equal(t, bad, got.Failed)
	if len(all) > 0 {
		require.InDelta(t, 100*float64(up)/float64(len(all)), got.UptimePercent, 1e-9)
		require.Equal(t, uint32(bad*10_000/len(all)), got.ErrorRate)
	}
	if len(times) == 0 {
		require.Zero(t, got.P50+got.P95)
		return
	}
	slices.Sort(times)
	for q, p := range map[float64]time.Duration{0.5: got.P50, 0.95: got.P95} {
		exact := times[int(math.Ceil(q*float64(len(times))))-1]
		require.InDelta(t, float64(exact), float64(p), max(float64(unit), float64(exact)/8))
	}
}

func TestGate(t *testing.T) {
	g := probe.NewPolicy()
	for _, text := range []string{
		"0.0.0.0", "0.1.2.3", "169.254.169.254", "169.254.170.2", "224.0.0.1", "239.255.255.250", "255.255.255.255",
		"240.0.0.1", "100.100.100.200", "168.63.129.16", "::", "fe80::1", "fe80::a9fe:a9fe%eth0", "fec0::1", "ff02::1",
		"fd00:ec2::254", "fd20:ce::254", "::ffff:169.254.169.254", "::ffff:0.0.0.0", "::169.254.169.254",
		"64:ff9b::169.254.169.254", "64:ff9b:1::a9fe:a9fe", "2002:a9fe:a9fe::1", "2001:0:1::1", "2001:db8::1%eth0",
	} {
		for _, local := range []bool{false, true} {
			err := g.Check(netip.MustParseAddr(text), local)
			require.ErrorIs(t, err, fault.Forbidden, "%s, local %t", text, local)
		}
	}
	require.ErrorIs(t, g.Check(netip.Addr{}, true), fault.Forbidden)
	for _, text := range []string{"127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "::127.0.0.1", "2002:7f00:1::"} {
		require.ErrorIs(t, g.Check(netip.MustParseAddr(text), false), fault.Forbidden, text)
		require.NoError(t, g.Check(netip.MustParseAddr(text), true), text)
	}
	for _, text := range []string{"10.0.1.1", "192.168.1.1", "100.64.0.1", "8.8.8.8", "2a00::1", "fd12::1", "64:ff9b::808:808"} {
		require.NoError(t, g.Check(netip.MustParseAddr(text), false), text)
	}
}
