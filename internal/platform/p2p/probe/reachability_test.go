package probe

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/records"
)

const (
	unknown     = records.Reachability("")
	reachable   = records.Reachable
	unreachable = records.Unreachable
)

func testProbeConfig() Config {
	return Config{
		Interval: time.Second, Confirm: 2 * time.Second, Timeout: 100 * time.Millisecond, Capacity: 4, Keep: 10 * time.Second,
	}
}

// trackerFixture drives a tracker by hand.
type trackerFixture struct {
	*tracker
	t   *testing.T
	now time.Time
}

func newTrackerFixture(t *testing.T) *trackerFixture {
	return &trackerFixture{tracker: newTracker(testProbeConfig()), t: t, now: time.Unix(1000, 0)}
}

// probe returns the only due probe.
func (f *trackerFixture) probe() probe {
	f.t.Helper()
	due := f.next(16, f.now)
	require.Len(f.t, due, 1)
	return due[0]
}

func (f *trackerFixture) quiet() {
	f.t.Helper()
	require.Empty(f.t, f.next(16, f.now))
}

func (f *trackerFixture) pass(d time.Duration) { f.now = f.now.Add(d) }

func (f *trackerFixture) require(id peer.ID, want records.Reachability) {
	f.t.Helper()
	m, ok := f.measured(id)
	require.Equal(f.t, want != unknown, ok)
	require.Equal(f.t, want, m.State)
	require.Equal(f.t, want == unreachable, slices.Contains(f.unreachable(), id))
}

func (f *trackerFixture) fail(p probe) bool {
	return f.done(p, outcome{result: failed, dialed: true}, f.now)
}

func (f *trackerFixture) pong(p probe) {
	require.False(f.t, f.done(p, outcome{result: answered, roundTrip: time.Millisecond}, f.now))
}

func TestUnknownUntilProbed(t *testing.T) {
	f := newTrackerFixture(t)
	f.track("t", "a", false, f.now)
	f.require("a", unknown)
	p := f.probe()
	f.quiet() // one probe of a peer at a time
	f.pong(p)
	f.require("a", reachable)
	m, _ := f.measured("a")
	require.Equal(t, time.Millisecond, m.RoundTrip)
	require.Equal(t, f.now, m.CheckedAt)
	require.Zero(t, f.epoch, "the unreachable set is unchanged")
	f.quiet()
	f.pass(time.Second)
	f.probe()
}

func TestTwoFailedDialsAreEvidence(t *testing.T) {
	f := newTrackerFixture(t)
	f.track("t", "a", false, f.now)
	first := f.now
	require.True(t, f.fail(f.probe()), "lookups avoid the peer")
	require.True(t, f.avoid("a", f.now))
	f.require("a", unknown)
	require.Zero(t, f.epoch)
	f.quiet()
	f.disconnected("a", f.now)
	f.suspect("a", f.now)
	f.track("t", "a", false, f.now)
	f.pass(f.conf.Confirm - 1)
	f.quiet()

	f.pass(1)
	p := f.probe()
	require.True(t, p.search, "the known addresses failed")
	require.True(t, f.fail(p))
	f.require("a", unreachable)
	m, _ := f.measured("a")
	require.Equal(t, first, m.Since)
	require.Equal(t, f.now, m.CheckedAt)
	require.EqualValues(t, 1, f.epoch)

	f.pass(time.Second)
	p = f.probe()
	require.False(t, f.fail(p), "no change")
	require.EqualValues(t, 1, f.epoch)
	f.connected("a", f.now)
	f.require("a", reachable)
	require.EqualValues(t, 2, f.epoch)
}

// TestFirstFailureIsTold: a peer that does not answer any more is told of before a second failure decides.
func TestFirstFailureIsTold(t *testing.T) {
	f := newTrackerFixture(t)
	f.track("t", "a", true, f.now)
	f.disconnected("a", f.now)
	f.fail(f.probe())
	f.require("a", reachable)
	m, _ := f.measured("a")
	require.Equal(t, f.now, m.Since)
	f.pass(f.conf.Confirm)
	f.pong(f.probe())
	m, _ = f.measured("a")
	require.Zero(t, m.Since)
}

// TestRoundTripOfAPath: a round trip belongs to the connection, and to an answer.
func TestRoundTripOfAPath(t *testing.T) {
	f := newTrackerFixture(t)
	f.conf.Interval, f.conf.Confirm = time.Hour, time.Hour
	f.track("t", "a", true, f.now)
	f.pong(f.probe())
	f.connected("a", f.now)
	m, _ := f.measured("a")
	require.Zero(t, m.RoundTrip)
	p := f.probe()
	require.False(t, f.done(p, outcome{result: busy, dialed: true}, f.now))
	m, _ = f.measured("a")
	require.Equal(t, records.Busy, m.State)
	require.Zero(t, m.RoundTrip)
	due, _ := f.nextDue()
	require.Equal(t, f.now.Add(searchAfter), due, "a peer that is ending looks busy, too")
}

func TestBackoffGrowsAndEnds(t *testing.T) {
	f := newTrackerFixture(t)
	f.track("t", "a", false, f.now)
	f.fail(f.probe())
	f.pass(f.conf.Confirm)
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 16} {
		f.fail(f.probe())
		due, ok := f.nextDue()
		require.True(t, ok)
		require.Equal(t, want*time.Second, due.Sub(f.now))
		f.now = due
	}
	f.track("t", "a", false, f.now) // after the answer the observation can end again
	f.pong(f.probe())
	f.pass(time.Second)
	p := f.probe()
	require.False(t, p.search)
	f.fail(p)
	f.pass(f.conf.Confirm)
	f.fail(f.probe())
	due, _ := f.nextDue()
	require.Equal(t, time.Second, due.Sub(f.now), "a sign of life resets the backoff")

	slow := newTracker(Config{Interval: time.Minute, Capacity: 1})
	require.Equal(t, maxBackoff, slow.backoff(100))
}

func TestSilentConnectionIsRedialedFirst(t *testing.T) {
	f := newTrackerFixture(t)
	f.track("t", "a", true, f.now)
	f.require("a", reachable)
	p := f.probe()
	require.False(t, p.fresh)
	require.False(t, f.done(p, outcome{result: failed}, f.now))
	f.require("a", reachable)
	p = f.probe()
	require.True(t, p.fresh)
	require.True(t, f.fail(p))
	f.require("a", reachable)
	f.pass(f.conf.Confirm)
	p = f.probe()
	require.False(t, p.fresh, "no connection is left")
	require.True(t, f.fail(p))
	f.require("a", unreachable)
}

func TestLossIsCheckedAtOnce(t *testing.T) {
	f := newTrackerFixture(t)
	f.track("t", "a", true, f.now)
	f.pong(f.probe())
	f.quiet()
	f.disconnected("a", f.now)
	f.require("a", reachable)
	require.True(t, f.fail(f.probe()))

	f.disconnected("a", f.now) // of an incomplete connection
	f.quiet()
}

// TestRefusalsDecideSoon: a machine whose process died refuses connections. Two refusals decide, ten seconds apart; silence waits longer.
func TestRefusalsDecideSoon(t *testing.T) {
	for _, again := range []result{refused, failed} {
		f := newTrackerFixture(t)
		f.conf.Interval, f.conf.Confirm, f.conf.Keep = 10*time.Minute, 2*time.Minute, time.Hour
		f.track("t", "a", true, f.now)
		f.pong(f.probe())
		f.pass(5 * time.Minute)
		f.disconnected("a", f.now)
		require.True(t, f.done(f.probe(), outcome{result: refused, dialed: true}, f.now))
		f.require("a", reachable)
		f.pass(refusedAgain - 1)
		f.quiet()
		f.pass(1)
		f.done(f.probe(), outcome{result: again, dialed: true}, f.now)
		f.require("a", map[result]records.Reachability{refused: unreachable, failed: reachable}[again])
	}
}

// TestEarlyRefusalDelaysNothing: a refusal before the time does not decide, and the next one does as soon as it may.
func TestEarlyRefusalDelaysNothing(t *testing.T) {
	f := newTrackerFixture(t)
	f.conf.Interval, f.conf.Confirm, f.conf.Keep = 10*time.Minute, 2*time.Minute, time.Hour
	f.track("t", "a", true, f.now)
	f.pong(f.probe())
	f.pass(5 * time.Minute)
	f.disconnected("a", f.now)
	gone := outcome{result: refused, dialed: true}
	require.True(t, f.done(f.probe(), gone, f.now))
	f.pass(refusedAgain / 2)
	f.find("a").due = f.now
	require.False(t, f.done(f.probe(), gone, f.now))
	f.require("a", reachable)
	f.pass(refusedAgain/2 - 1)
	f.quiet()
	f.pass(1)
	f.done(f.probe(), gone, f.now)
	f.require("a", unreachable)
}

// TestNewConnectionsMayEnd: a crowded peer ends connections soon, and is dialed once in an interval. One that lasted is missed at once.
func TestNewConnectionsMayEnd(t *testing.T) {
	f := newTrackerFixture(t)
	f.conf.Interval, f.conf.Keep = 10*time.Minute, time.Hour
	f.track("t", "a", false, f.now)
	f.done(f.probe(), outcome{result: answered, dialed: true, linked: true}, f.now)
	f.pass(time.Second)
	f.disconnected("a", f.now)
	f.quiet()
	f.pass(10 * time.Minute)
	f.done(f.probe(), outcome{result: answered, dialed: true, linked: true}, f.now)
	f.pass(2 * time.Minute)
	f.disconnected("a", f.now)
	f.probe()
}

// TestOwnLatenessIsNoSilence: while this process runs late, a ping without an answer ends no connection.
func TestOwnLatenessIsNoSilence(t *testing.T) {
	f := newTrackerFixture(t)
	f.track("t", "a", true, f.now)
	require.False(t, f.done(f.probe(), outcome{result: failed, late: true}, f.now))
	p := f.probe()
	require.False(t, p.fresh, "the connection stays")
	require.False(t, f.done(p, outcome{result: failed}, f.now))
	require.True(t, f.probe().fresh)

	var p1 pulse
	at := f.now
	require.False(t, p1.lateSince(at, at))
	for range 8 {
		p1.beat(at)
		at = at.Add(pulseEvery)
		require.False(t, p1.lateSince(f.now, at))
	}
	at = at.Add(lateness)
	require.True(t, p1.lateSince(at.Add(-time.Second), at), "the beat itself is late")
	p1.beat(at)
	require.True(t, p1.lateSince(at.Add(-time.Second), at))
	require.False(t, p1.lateSince(at, at.Add(pulseEvery)), "a probe that began afterwards")
}

func TestLossDuringProbeOutdatesItsAnswer(t *testing.T) {
	f := newTrackerFixture(t)
	f.track("t", "a", true, f.now)
	p := f.probe()
	f.disconnected("a", f.now)
	f.pong(p)
	require.True(t, f.fail(f.probe()))
}

func TestConnectionDuringProbeExcusesOneFailure(t *testing.T) {
	f := newTrackerFixture(t)
	f.track("t", "a", false, f.now)
	p := f.probe()
	f.connected("a", f.now)
	require.False(t, f.fail(p))
	f.require("a", reachable)
	p = f.probe()
	f.connected("a", f.now)
	require.True(t, f.fail(p), "only once")

	f = newTrackerFixture(t)
	f.track("t", "a", false, f.now)
	p = f.probe()
	f.connected("a", f.now) // by the probe's own dial
	require.True(t, f.done(p, outcome{result: failed, dialed: true, linked: true}, f.now))
}

func TestUndecidedChangesNothing(t *testing.T) {
	f := newTrackerFixture(t)
	f.track("t", "a", false, f.now)
	for range 10 {
		require.False(t, f.done(f.probe(), outcome{result: undecided, dialed: true}, f.now))
		f.require("a", unknown)
		f.quiet()
		f.pass(time.Second)
		f.track("t", "a", false, f.now)
	}
}

// TestDoubtOfOthers: the failures of enough others make the first own one decide, whichever comes first. Nothing decides without an own one.
func TestDoubtOfOthers(t *testing.T) {
	f := newTrackerFixture(t)
	f.conf.Interval, f.conf.Confirm, f.conf.Keep = time.Hour, time.Minute, time.Hour
	f.track("t", "a", false, f.now)
	f.pong(f.probe())
	require.False(t, f.doubt("a", true, f.now))
	f.quiet()
	f.pass(suspectAfter)
	f.pong(f.probe())
	f.require("a", reachable)
	f.pass(suspectAfter)
	require.False(t, f.doubt("a", false, f.now), "too few")
	require.True(t, f.fail(f.probe()))
	f.require("a", reachable)
	require.True(t, f.doubt("a", true, f.now))
	f.require("a", unreachable)
	require.False(t, f.doubt("a", true, f.now), "no change")
	f.connected("a", f.now)
	f.require("a", reachable)

	require.False(t, f.doubt("a", true, f.now))
	f.pass(suspectAfter)
	require.True(t, f.fail(f.probe()))
	f.require("a", unreachable)
	f.pass(doubtfulAfter)
	f.pong(f.probe())
	f.require("a", reachable)
	require.False(t, f.doubt("nobody", true, f.now))
}

// TestBusyIsConfirmedOnce: a peer that ends resets a connection, as a crowded one does.
func TestBusyIsConfirmedOnce(t *testing.T) {
	f := newTrackerFixture(t)
	f.conf.Interval, f.conf.Confirm = time.Hour, time.Minute
	refused := outcome{result: busy, dialed: true}
	f.track("t", "a", false, f.now)
	require.False(t, f.done(f.probe(), refused, f.now))
	f.pass(f.conf.Confirm)
	f.track("t", "a", false, f.now)
	require.False(t, f.done(f.probe(), refused, f.now))
	f.pass(f.conf.Confirm)
	f.quiet()
}

func TestUnknownAddressIsWeakEvidence(t *testing.T) {
	f := newTrackerFixture(t)
	f.track("t", "a", false, f.now)
	for range addressMisses - 1 {
		require.False(t, f.done(f.probe(), outcome{result: addressUnknown, dialed: true}, f.now))
		f.require("a", unknown)
		f.pass(time.Second)
	}
	for range 2 {
		require.True(t, f.done(f.probe(), outcome{result: addressUnknown, dialed: true}, f.now))
		f.pass(f.conf.Confirm)
	}
	f.require("a", unreachable)
}

func TestForgetting(t *testing.T) {
	f := newTrackerFixture(t)
	f.track("t", "alive", false, f.now)
	f.pong(f.probe())
	f.pass(time.Millisecond)
	f.track("t", "dead", false, f.now)
	require.True(t, f.fail(f.probe()))
	f.pass(f.conf.Confirm)
	for _, p := range f.next(16, f.now) {
		if p.id == "dead" {
			f.fail(p)
		} else {
			f.pong(p)
		}
	}
	f.pass(11 * time.Second)
	for _, p := range f.next(16, f.now) {
		f.fail(p)
	}
	f.require("alive", unknown)
	f.require("dead", unreachable) // otherwise answers would contain it again

	epoch := f.epoch
	for i := range 4 {
		f.track("t", peer.ID(fmt.Sprint(i)), false, f.now)
	}
	require.Equal(t, 5, f.observed.Len())
	f.track("t", "one more", false, f.now)
	require.Equal(t, 5, f.observed.Len())
	f.require("dead", unreachable) // newer observations never displace it
	require.Equal(t, epoch, f.epoch)
	f.pass(forgetAfter)
	f.next(0, f.now)
	f.require("dead", unknown)
	require.Equal(t, epoch+1, f.epoch)
	require.False(t, f.fail(probe{id: "dead"}), "an outcome after forgetting")
}

func TestConcurrencyTakesTheLongestDue(t *testing.T) {
	f := newTrackerFixture(t)
	f.track("t", "c", false, f.now)
	f.pass(time.Millisecond)
	f.track("t", "b", false, f.now)
	f.track("t", "a", false, f.now)
	got := f.next(2, f.now)
	require.Equal(t, []probe{{id: "c"}, {id: "a"}}, got)
	require.Empty(t, f.next(0, f.now))
	require.Equal(t, []probe{{id: "b"}}, f.next(2, f.now))
	_, ok := f.nextDue()
	require.False(t, ok, "all probes are running")
}

// TestSuspicionGrowsAndEnds: each further silence doubles the time for which lookups avoid a peer.
func TestSuspicionGrowsAndEnds(t *testing.T) {
	m, now := newTracker(Config{Interval: time.Minute, Confirm: time.Minute, Capacity: 1, Keep: time.Hour}), time.Unix(0, 0)
	m.track("t", "a", true, now)
	require.False(t, m.avoid("a", now))
	m.suspect("a", now)
	require.True(t, m.avoid("a", now.Add(avoidFirst-1)))
	now = now.Add(avoidFirst)
	require.False(t, m.avoid("a", now))
	m.suspect("a", now)
	m.suspect("a", now)
	require.True(t, m.avoid("a", now.Add(2*avoidFirst-1)))
	require.False(t, m.avoid("a", now.Add(2*avoidFirst)))
	m.find("a").responded()
	require.False(t, m.avoid("a", now))
	for range 20 {
		m.suspect("a", now)
		now = now.Add(avoidMost)
		require.False(t, m.avoid("a", now))
	}
	later := now.Add(2 * avoidMemory)
	m.suspect("a", later)
	require.True(t, m.avoid("a", later))
	require.False(t, m.avoid("a", later.Add(avoidFirst)), "earlier silence is forgotten")
}

// TestSignsOfLifeEndSuspicion: a connection and an answered ping end the avoidance of a peer.
func TestSignsOfLifeEndSuspicion(t *testing.T) {
	f := newTrackerFixture(t)
	f.track("t", "a", false, f.now)
	f.suspect("a", f.now)
	require.True(t, f.avoid("a", f.now))
	f.connected("a", f.now)
	require.False(t, f.avoid("a", f.now))
	f.suspect("a", f.now)
	f.pong(f.probe())
	require.False(t, f.avoid("a", f.now))
	f.suspect("a", f.now)
	f.pass(suspectAfter)
	f.fail(f.probe())
	f.pass(2 * avoidFirst)
	require.True(t, f.avoid("a", f.now), "the last probe failed")
}

// TestTrackerInvariants calls the methods of a tracker in random order.
func TestTrackerInvariants(t *testing.T) {
	ids := []peer.ID{"a", "b", "c", "d", "e", "f"}
	rapid.Check(t, func(t *rapid.T) {
		m, now := newTracker(Config{Interval: time.Second, Confirm: time.Second, Capacity: 4, Keep: 10 * time.Second}), time.Unix(0, 0)
		var flying []probe
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			before, epoch := m.unreachable(), m.epoch
			id := rapid.SampledFrom(ids).Draw(t, "id")
			switch rapid.IntRange(0, 7).Draw(t, "call") {
			case 0:
				m.track(rapid.SampledFrom([]string{"s", "t"}).Draw(t, "caller"), id, rapid.Bool().Draw(t, "connected"), now)
			case 1:
				m.connected(id, now)
			case 2:
				m.disconnected(id, now)
			case 3:
				flying = append(flying, m.next(rapid.IntRange(0, 3).Draw(t, "slots"), now)...)
			case 4:
				if len(flying) > 0 {
					o := outcome{result: result(rapid.IntRange(0, 5).Draw(t, "result")), dialed: rapid.Bool().Draw(t, "dialed")}
					m.done(flying[0], o, now)
					flying = flying[1:]
				}
			case 5:
				now = now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond)
			case 6:
				m.watch(id, now.Add(time.Minute), now)
			case 7:
				m.announced(id)
			}
			after := m.unreachable()
			if m.epoch == epoch && !slices.Equal(before, after) {
				t.Fatalf("%v became %v in epoch %d", before, after, epoch)
			}
			if m.observed.Len()-len(after) > 4 || !slices.IsSorted(after) {
				t.Fatalf("broken: %d observed, unreachable %v", m.observed.Len(), after)
			}
		}
	})
}
