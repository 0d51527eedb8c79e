package p2p

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func testProbeConfig(t testing.TB) ProbeConfig {
	t.Helper()
	c, err := ProbeConfig{Interval: time.Second, Timeout: 100 * time.Millisecond, Capacity: 4, Keep: 10 * time.Second}.complete()
	require.NoError(t, err)
	return c
}

// world drives a machine by hand.
type world struct {
	*tracker
	t   *testing.T
	now time.Time
}

func newWorld(t *testing.T) *world {
	return &world{tracker: newTracker(testProbeConfig(t)), t: t, now: time.Unix(1000, 0)}
}

// probes takes the one probe that must be due.
func (w *world) probe() probe {
	w.t.Helper()
	due := w.next(16, w.now)
	require.Len(w.t, due, 1)
	return due[0]
}

func (w *world) quiet() {
	w.t.Helper()
	require.Empty(w.t, w.next(16, w.now))
}

func (w *world) pass(d time.Duration) { w.now = w.now.Add(d) }

func (w *world) require(id peer.ID, v reachability) {
	w.t.Helper()
	m, ok := w.measured(id)
	require.Equal(w.t, v != unknown, ok)
	require.Equal(w.t, v == reachable, m.Reachable)
	require.Equal(w.t, v == unreachable, slices.Contains(w.unreachable(), id))
}

func (w *world) fail(p probe) bool { return w.done(p, outcome{result: failed, dialed: true}, w.now) }

func (w *world) pong(p probe) {
	require.False(w.t, w.done(p, outcome{result: answered, roundTrip: time.Millisecond}, w.now))
}

func TestUnknownUntilProbed(t *testing.T) {
	w := newWorld(t)
	w.track("a", false, w.now)
	w.require("a", unknown)
	p := w.probe()
	w.quiet() // one probe per peer at a time
	w.pong(p)
	w.require("a", reachable)
	m, _ := w.measured("a")
	require.Equal(t, time.Millisecond, m.RoundTrip)
	require.Equal(t, w.now, m.CheckedAt)
	require.Zero(t, w.epoch, "nobody was or is unreachable")
	w.quiet()
	w.pass(time.Second)
	w.probe()
}

func TestFailedDialIsEvidence(t *testing.T) {
	w := newWorld(t)
	w.track("a", false, w.now)
	require.True(t, w.fail(w.probe()))
	w.require("a", unreachable)
	require.EqualValues(t, 1, w.epoch)

	w.pass(time.Second)
	p := w.probe()
	require.True(t, p.search, "the known addresses failed")
	require.False(t, w.fail(p), "no news")
	require.EqualValues(t, 1, w.epoch)
	w.connected("a", w.now)
	w.require("a", reachable)
	require.EqualValues(t, 2, w.epoch)
}

func TestBackoffGrowsAndEnds(t *testing.T) {
	w := newWorld(t)
	w.track("a", false, w.now)
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 16} {
		w.fail(w.probe())
		due, ok := w.nextDue()
		require.True(t, ok)
		require.Equal(t, want*time.Second, due.Sub(w.now))
		w.now = due
	}
	w.track("a", false, w.now) // the answer will end the exemption from forgetting
	w.pong(w.probe())
	w.pass(time.Second)
	p := w.probe()
	require.False(t, p.search)
	w.fail(p)
	due, _ := w.nextDue()
	require.Equal(t, time.Second, due.Sub(w.now), "a sign of life resets the backoff")

	slow := newTracker(ProbeConfig{Interval: time.Minute})
	require.Equal(t, maxBackoff, slow.backoff(100))
}

func TestSilentConnectionIsSuspectFirst(t *testing.T) {
	w := newWorld(t)
	w.track("a", true, w.now)
	w.require("a", reachable)
	p := w.probe()
	require.False(t, p.fresh)
	require.False(t, w.done(p, outcome{result: failed}, w.now))
	w.require("a", reachable)
	p = w.probe()
	require.True(t, p.fresh)
	require.True(t, w.fail(p))
	w.require("a", unreachable)
	w.pass(time.Second)
	require.False(t, w.probe().fresh, "there is no connection left to distrust")
}

func TestLossIsCheckedAtOnce(t *testing.T) {
	w := newWorld(t)
	w.track("a", true, w.now)
	w.pong(w.probe())
	w.quiet()
	w.disconnected("a", w.now)
	w.require("a", reachable)
	require.True(t, w.fail(w.probe()))

	w.disconnected("a", w.now) // of a half-made connection
	w.quiet()
}

func TestLossDuringProbeOutdatesItsAnswer(t *testing.T) {
	w := newWorld(t)
	w.track("a", true, w.now)
	p := w.probe()
	w.disconnected("a", w.now)
	w.pong(p)
	require.True(t, w.fail(w.probe()))
}

func TestConnectionDuringProbeExcusesOneFailure(t *testing.T) {
	w := newWorld(t)
	w.track("a", false, w.now)
	p := w.probe()
	w.connected("a", w.now)
	require.False(t, w.fail(p))
	w.require("a", reachable)
	p = w.probe()
	w.connected("a", w.now)
	require.True(t, w.fail(p), "not for ever")

	w = newWorld(t)
	w.track("a", false, w.now)
	p = w.probe()
	w.connected("a", w.now) // by our own dial
	require.True(t, w.done(p, outcome{result: failed, dialed: true, linked: true}, w.now))
}

func TestUndecidedChangesNothing(t *testing.T) {
	w := newWorld(t)
	w.track("a", false, w.now)
	for range 10 {
		require.False(t, w.done(w.probe(), outcome{result: undecided, dialed: true}, w.now))
		w.require("a", unknown)
		w.quiet()
		w.pass(time.Second)
		w.track("a", false, w.now)
	}
}

func TestNowhereIsWeakEvidence(t *testing.T) {
	w := newWorld(t)
	w.track("a", false, w.now)
	for range addressMisses - 1 {
		require.False(t, w.done(w.probe(), outcome{result: addressUnknown, dialed: true}, w.now))
		w.require("a", unknown)
		w.pass(time.Second)
	}
	require.True(t, w.done(w.probe(), outcome{result: addressUnknown, dialed: true}, w.now))
	w.require("a", unreachable)
}

func TestForgetting(t *testing.T) {
	w := newWorld(t)
	w.track("alive", false, w.now)
	w.pong(w.probe())
	w.track("dead", false, w.now)
	w.fail(w.probe())
	w.pass(11 * time.Second)
	for _, p := range w.next(16, w.now) {
		w.fail(p)
	}
	w.require("alive", unknown)
	w.require("dead", unreachable) // forgotten, it would be offered again

	epoch := w.epoch
	for i := range 4 {
		w.track(peer.ID(fmt.Sprint(i)), false, w.now)
	}
	require.Len(t, w.observed, 4)
	w.require("dead", unknown) // pushed out
	require.Equal(t, epoch+1, w.epoch)
	require.False(t, w.fail(probe{id: "dead"}), "an outcome after forgetting")
}

func TestConcurrencyTakesTheLongestDue(t *testing.T) {
	w := newWorld(t)
	w.track("c", false, w.now)
	w.pass(time.Millisecond)
	w.track("b", false, w.now)
	w.track("a", false, w.now)
	got := w.next(2, w.now)
	require.Equal(t, []probe{{id: "c"}, {id: "a"}}, got)
	require.Empty(t, w.next(0, w.now))
	require.Equal(t, []probe{{id: "b"}}, w.next(2, w.now))
	_, ok := w.nextDue()
	require.False(t, ok, "all are under way")
}

// TestMachineInvariants feeds any sequence of calls to a machine.
func TestMachineInvariants(t *testing.T) {
	ids := []peer.ID{"a", "b", "c", "d", "e", "f"}
	rapid.Check(t, func(t *rapid.T) {
		m, now := newTracker(ProbeConfig{Interval: time.Second, Capacity: 4, Keep: 10 * time.Second}), time.Unix(0, 0)
		var flying []probe
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			before, epoch := m.unreachable(), m.epoch
			id := rapid.SampledFrom(ids).Draw(t, "id")
			switch rapid.IntRange(0, 5).Draw(t, "call") {
			case 0:
				m.track(id, rapid.Bool().Draw(t, "connected"), now)
			case 1:
				m.connected(id, now)
			case 2:
				m.disconnected(id, now)
			case 3:
				flying = append(flying, m.next(rapid.IntRange(0, 3).Draw(t, "slots"), now)...)
			case 4:
				if len(flying) > 0 {
					o := outcome{result: result(rapid.IntRange(0, 3).Draw(t, "result")), dialed: rapid.Bool().Draw(t, "dialed")}
					m.done(flying[0], o, now)
					flying = flying[1:]
				}
			case 5:
				now = now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond)
			}
			after := m.unreachable()
			if m.epoch == epoch && !slices.Equal(before, after) {
				t.Fatalf("%v became %v in epoch %d", before, after, epoch)
			}
			if len(m.observed) > 4 || m.recent.Len() != len(m.observed) || !slices.IsSorted(after) {
				t.Fatalf("broken: %d subjects, %d listed, unreachable %v", len(m.observed), m.recent.Len(), after)
			}
		}
	})
}
