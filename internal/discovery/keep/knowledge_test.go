package keep

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/pkg/records"
)

// tableOf returns a routing table of a small network.
func tableOf(ids ...peer.ID) *Table { return NewTable("self", ids, true) }

func everywhere() (Radius, bool) { return Radius{}, true }

// A peer has no knowledge before its first comparison with an informed keeper, and lacks some while it
// has not compared with a newcomer, or with a peer that returned.
func TestKnowledge(t *testing.T) {
	now := time.Now()
	conditions := condition.NewSet(slog.New(slog.DiscardHandler), func() time.Time { return now })
	w := newKnowledge(conditions, now)
	doubt := func() string { return w.doubt(everywhere, now) }
	w.observe(tableOf("a", "b", "c"), now)
	require.Contains(t, doubt(), "since it joined")
	ids, _ := w.Due(10, now)
	require.Equal(t, []peer.ID{"a", "b", "c"}, ids)
	w.Met("a", false)
	require.Contains(t, doubt(), "since it joined", "a joiner has not informed anybody")
	w.Met("b", true)
	require.Contains(t, doubt(), "with 1 keepers")
	w.Met("c", false)
	require.Empty(t, doubt())

	w.observe(tableOf("a", "b", "c", "d"), now)
	require.Contains(t, doubt(), "joined or returned")
	w.Missed("d", true, now)
	require.NotEmpty(t, doubt(), "it refused")
	_, next := w.Due(0, now)
	require.Equal(t, now.Add(meetFirst), next)
	now = now.Add(meetFor)
	_, _ = w.Due(0, now)
	require.Empty(t, doubt(), "who refuses for a minute delays nobody")

	w.Missed("a", false, now)
	require.Empty(t, doubt(), "it is silent: perhaps dead")
	w.Heard("a", now)
	require.Contains(t, doubt(), "joined or returned")
	ago, recent := w.Returned(now)
	require.True(t, recent)
	require.Zero(t, ago)
	w.Met("a", true)
	require.Empty(t, doubt())
	_, recent = w.Returned(now.Add(regainDoubt))
	require.False(t, recent)
}

// A member that asks and never compares delays answers for a minute, however often it asks. One that compared has a new minute after each
// silence, as it may return from behind a partition.
func TestMembersThatNeverCompare(t *testing.T) {
	now := time.Now()
	w := newKnowledge(nil, now)
	w.observe(tableOf("a", "b"), now)
	w.Met("b", true)
	fall := func(id peer.ID) {
		for range meetMisses {
			w.Missed(id, false, now)
		}
		require.True(t, w.Silent(id))
		require.Empty(t, w.doubt(everywhere, now))
	}
	fall("a")
	for w.Heard("a", now); w.doubt(everywhere, now) != ""; w.Heard("a", now) {
		now = now.Add(20 * time.Second)
		fall("a")
	}
	require.Equal(t, meetFor, now.Sub(w.started))
	epoch := w.epoch.Load()
	for range 10 {
		now = now.Add(3 * time.Second)
		w.Heard("a", now)
		require.Empty(t, w.doubt(everywhere, now))
	}
	require.Equal(t, epoch, w.epoch.Load(), "earlier answers are up to date")
	ids, _ := w.Due(10, now)
	require.Equal(t, []peer.ID{"a"}, ids, "it is tried again")

	w.Met("a", true)
	now = now.Add(slowFor)
	fall("a")
	w.Heard("a", now)
	require.Contains(t, w.doubt(everywhere, now), "joined or returned")

	now = now.Add(time.Second)
	fall("a")
	now = now.Add(2 * meetFor)
	w.Heard("a", now)
	require.Contains(t, w.doubt(everywhere, now), "joined or returned", "it was behind a cut, which is no time to compare")

	w.Met("a", true)
	far := make([]peer.ID, meetNearest+1)
	for i := range far {
		far[i] = peer.ID(fmt.Sprint("far", i))
	}
	w.observe(NewTable("self", far, false), now)
	last := NewTable("self", far, false).Peers[meetNearest].Id
	for _, p := range NewTable("self", far, false).Peers[:meetNearest] {
		w.Met(p.Id, true)
	}
	w.Missed(last, false, now)
	now = now.Add(2 * meetFor)
	w.Heard(last, now)
	require.Len(t, *w.unmet.Load(), 1, "contact with a distant member returned")
}

// A member that compared, and asks while it gives no answer, is slow: it delays no answer, and lacks no contact. Without a request for a
// while it is silent, as any other.
func TestSlowMember(t *testing.T) {
	now := time.Now()
	w := newKnowledge(nil, now)
	w.observe(tableOf("a", "b"), now)
	w.Met("a", true)
	w.Met("b", true)
	w.Heard("a", now)
	epoch := w.epoch.Load()
	for range 10 {
		now = now.Add(slowFor - 1)
		w.Missed("a", false, now)
		require.False(t, w.Silent("a"))
		w.Heard("a", now)
		require.Empty(t, w.doubt(everywhere, now))
	}
	_, recent := w.Returned(now)
	require.False(t, recent)
	require.Equal(t, epoch, w.epoch.Load())
	w.Missed("a", false, now.Add(slowFor))
	require.True(t, w.Silent("a"))
	w.Heard("a", now.Add(slowFor))
	require.Contains(t, w.doubt(everywhere, now), "joined or returned")
}

// A member that did not speak the protocol while it started, and sends a request, may have records. One that goes on with both has a
// minute as any other.
func TestStartingMember(t *testing.T) {
	now := time.Now()
	w := newKnowledge(nil, now)
	w.observe(tableOf("a"), now)
	w.Strange("a", now)
	require.True(t, w.KeepsNothing("a"))
	require.Empty(t, *w.unmet.Load())
	doubts := 0
	for range 100 {
		w.Heard("a", now)
		doubts += len(*w.unmet.Load())
		now = now.Add(time.Millisecond)
		w.Strange("a", now)
	}
	require.LessOrEqual(t, doubts, int(meetFor/regainDoubt))
	require.Positive(t, doubts)
	w.Met("a", true)
	require.False(t, w.KeepsNothing("a"))
}

// A peer that loses most of its network says so until most have returned, or until the smaller network
// has lasted.
func TestIsolation(t *testing.T) {
	now := time.Now()
	conditions := condition.NewSet(slog.New(slog.DiscardHandler), func() time.Time { return now })
	fresh := func() *knowledge {
		w := newKnowledge(conditions, now)
		w.observe(tableOf("a", "b", "c", "d", "e", "f", "g"), now)
		for _, id := range []peer.ID{"a", "b", "c", "d", "e", "f", "g"} {
			w.Met(id, true)
		}
		return w
	}
	w := fresh()
	epoch := w.epoch.Load()
	w.observe(tableOf("a", "b", "c", "d"), now)
	require.Empty(t, w.doubt(everywhere, now))
	require.Equal(t, epoch, w.epoch.Load())
	w.observe(tableOf("a", "b"), now.Add(10*time.Second))
	require.Contains(t, w.doubt(everywhere, now.Add(10*time.Second)), "lost contact with 5 of 7 peers")
	require.Greater(t, w.epoch.Load(), epoch)
	require.Equal(t, []string{"isolated"}, conditions.ActiveNames())

	w.observe(tableOf("a", "b", "c", "d"), now.Add(20*time.Second))
	require.Empty(t, conditions.ActiveNames())
	require.Contains(t, w.doubt(everywhere, now), "joined or returned", "before the comparison")
	w.Met("c", true)
	w.Met("d", true)
	require.Empty(t, w.doubt(everywhere, now))

	w = fresh()
	w.observe(tableOf("a"), now)
	require.NotEmpty(t, w.doubt(everywhere, now))
	w.observe(tableOf("a", "h"), now.Add(lostFor+time.Second))
	w.Met("h", false)
	require.Empty(t, w.doubt(everywhere, now.Add(lostFor+time.Second)), "the smaller network has lasted")

	w = fresh()
	for i, left := range [][]peer.ID{{"a", "b", "c", "d", "e"}, {"a", "b", "c"}, {"a", "b"}} {
		now = now.Add(2 * isolatedIn)
		w.observe(tableOf(left...), now)
		require.Empty(t, w.doubt(everywhere, now), i)
	}
	w.observe(tableOf(), now)
	require.NotEmpty(t, w.doubt(everywhere, now), "all are lost")
}

// Peers whose machines refuse connections have ended: their loss isolates nobody, from the moment when this is known. Those that had
// ended before excuse no later loss.
func TestEndedPeersIsolateNobody(t *testing.T) {
	now := time.Now()
	conditions := condition.NewSet(slog.New(slog.DiscardHandler), func() time.Time { return now })
	w := newKnowledge(conditions, now)
	ended := map[peer.ID]bool{}
	w.refuses = func(id peer.ID) bool { return ended[id] }
	strangers := keepertest.PeersOf(12)
	honest := []peer.ID{"a", "b", "c", "d", "e", "f", "g"}
	w.observe(tableOf(slices.Concat(honest, strangers)...), now)
	for _, id := range slices.Concat(honest, strangers) {
		w.Met(id, true)
	}
	w.observe(tableOf(honest...), now)
	require.Contains(t, w.doubt(everywhere, now), "lost contact with 12 of 19 peers")
	require.ElementsMatch(t, strangers, w.review(now), "they are checked")
	require.Empty(t, w.review(now.Add(2*time.Second)), "not again at once")
	for _, id := range strangers[:4] {
		ended[id] = true
	}
	w.review(now)
	require.Equal(t, []string{"isolated"}, conditions.ActiveNames(), "seven of fifteen are left")
	ended[strangers[4]] = true
	w.review(now)
	require.Empty(t, w.doubt(everywhere, now))
	require.Empty(t, conditions.ActiveNames())

	for _, id := range strangers {
		ended[id] = true
	}
	now = now.Add(time.Second)
	w.observe(tableOf("a", "b", "c"), now)
	require.Contains(t, w.doubt(everywhere, now), "lost contact with 4 of 7 peers")
	w.review(now)
	require.NotEmpty(t, w.doubt(everywhere, now))

	w = newKnowledge(nil, now)
	w.refuses = func(peer.ID) bool { return true }
	w.observe(tableOf("a", "b"), now)
	w.Met("a", true)
	w.observe(tableOf(), now)
	w.review(now)
	require.Contains(t, w.doubt(everywhere, now), "lost contact with 2 of 2 peers", "nobody is left")
}

// A process that was suspended has missed changes, although its connections look alive.
func TestSuspensionEndsKnowledge(t *testing.T) {
	now := time.Now()
	w := newKnowledge(nil, now)
	w.observe(tableOf("a", "b"), now)
	w.Met("a", true)
	w.Met("b", true)
	w.alive(now)
	for range 5 { // a busy machine
		now = now.Add(suspendedFor)
		w.alive(now)
	}
	require.Empty(t, w.doubt(everywhere, now))
	epoch := w.epoch.Load()

	now = now.Add(suspendedFor + time.Second)
	w.alive(now)
	require.Contains(t, w.doubt(everywhere, now), "with 2 keepers")
	require.Greater(t, w.epoch.Load(), epoch)
	ids, _ := w.Due(10, now)
	require.Equal(t, []peer.ID{"a", "b"}, ids)
	w.Met("a", true)
	w.Met("b", true)
	require.Empty(t, w.doubt(everywhere, now))
	w.alive(now.Add(-time.Hour)) // the clock was set back
	require.Empty(t, w.doubt(everywhere, now))
}

// A peer that awaits more changes than it remembers says that it lacks some, and one that got a newer version awaits nothing.
func TestAwait(t *testing.T) {
	now := time.Now()
	w := newKnowledge(nil, now)
	name := func(i int) records.Name { return records.Name{Provider: "p", ID: fmt.Sprint(i)} }
	for i := range mostAwaited {
		w.Await(name(i), 2, now)
		w.Await(name(i), 1, now.Add(time.Second))
	}
	require.False(t, w.Late.Load())
	w.Came(name(0), 1)
	require.Len(t, w.awaited, mostAwaited, "an older version came")
	for i := range mostAwaited {
		w.Came(name(i), 2+uint64(i))
	}
	w.overdue(now.Add(time.Hour))
	require.False(t, w.Late.Load())
	for i := range mostAwaited + 1 {
		require.False(t, w.Late.Load())
		w.Await(name(i), 1, now)
	}
	require.True(t, w.Late.Load())
	w.CaughtUp(now.Add(time.Second))
	w.overdue(now.Add(arrival))
	require.False(t, w.Late.Load())
	w.overdue(now.Add(arrival + time.Second))
	require.True(t, w.Late.Load())
	require.Empty(t, w.awaited)
}
