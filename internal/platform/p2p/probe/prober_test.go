package probe

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	libp2p "github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/records"
)

// fakeNetwork is a network of live and dead peers.
type fakeNetwork struct {
	mu      sync.Mutex            // guards the fields below
	down    map[peer.ID]bool      // like a host that drops packets
	refuses map[peer.ID]bool      // like one without the process
	linked  map[peer.ID]bool      // with an open connection
	dials   map[peer.ID][]opening // to each
	busy    int
	peak    int
	removed []peer.ID
	member  peer.ID            // of the routing table
	during  func(peer.ID) bool // happens in a dial; it reports whether the dial fails nevertheless
}

type opening struct{ fresh, search bool }

func (s *fakeNetwork) ping(ctx context.Context, id peer.ID) Outcome {
	s.mu.Lock()
	down := s.down[id]
	s.mu.Unlock()
	if down {
		<-ctx.Done()
		return Outcome{State: records.Unreachable}
	}
	<-time.After(time.Millisecond)
	return Outcome{State: records.Reachable, RoundTrip: time.Millisecond}
}

func (s *fakeNetwork) dial(ctx context.Context, id peer.ID, fresh, search bool) Outcome {
	s.mu.Lock()
	s.busy++
	s.peak = max(s.peak, s.busy)
	s.dials[id] = append(s.dials[id], opening{fresh, search})
	s.linked[id] = s.linked[id] && !fresh
	refuses, during := s.refuses[id], s.during
	s.mu.Unlock()
	defer func() { s.mu.Lock(); s.busy--; s.mu.Unlock() }()
	if during != nil && during(id) || refuses {
		return Outcome{State: records.Unreachable, Refused: refuses, Dialed: true}
	}
	o := s.ping(ctx, id)
	o.Dialed = true
	return o
}

func (s *fakeNetwork) connected(id peer.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.linked[id]
}

func (s *fakeNetwork) watch(id peer.ID) bool { return id == s.member }

func (s *fakeNetwork) gone(id peer.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removed = append(s.removed, id)
}

// edit changes the network.
func (s *fakeNetwork) edit(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// dialed returns the dials of a peer.
func (s *fakeNetwork) dialed(id peer.ID) []opening {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.dials[id])
}

// feed is an event subscription without a bus.
type feed chan any

func (f feed) Out() <-chan any { return f }
func (f feed) Close() error    { return nil }
func (f feed) Name() string    { return "test" }

func withProber(t *testing.T, play func(t *testing.T, p *Prober, s *fakeNetwork, events feed)) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeNetwork{
			down: map[peer.ID]bool{}, refuses: map[peer.ID]bool{}, linked: map[peer.ID]bool{}, dials: map[peer.ID][]opening{}, member: "member",
		}
		p := newProber("self", s, Config{})
		ctx, cancel := context.WithCancel(t.Context())
		events := make(feed)
		done := make(chan struct{})
		p.events = events
		go func() { p.Run(ctx); close(done) }()
		play(t, p, s, events)
		cancel()
		<-done
	})
}

// TestCheck: an open connection is asked first, and a new one where that is silent, within one timeout. A failure
// leaves the routing table, is avoided, and has the next check search for addresses.
func TestCheck(t *testing.T) {
	withProber(t, func(t *testing.T, p *Prober, s *fakeNetwork, _ feed) {
		require.Equal(t, Outcome{State: records.Reachable}, p.Check(t.Context(), "self"))
		s.edit(func() { s.linked["a"], s.linked["b"], s.down["b"], s.refuses["c"] = true, true, true, true })
		require.Equal(t, Outcome{State: records.Reachable, RoundTrip: time.Millisecond}, p.Check(t.Context(), "a"))
		require.Empty(t, s.dialed("a"))
		require.False(t, p.Avoid("a"))

		began := time.Now()
		require.Equal(t, Outcome{State: records.Unreachable, Dialed: true}, p.Check(t.Context(), "b"))
		require.Equal(t, p.conf.Timeout, time.Since(began))
		require.Equal(t, []opening{{fresh: true}}, s.dialed("b"))
		require.Equal(t, Outcome{State: records.Unreachable, Refused: true, Dialed: true}, p.Check(t.Context(), "c"))
		require.Equal(t, []peer.ID{"b", "c"}, s.removed)
		require.True(t, p.Avoid("b"))
		require.False(t, p.Refuses("b"), "it may be behind a cut")
		require.True(t, p.Refuses("c"))
		p.Check(t.Context(), "c")
		require.Equal(t, []opening{{}, {search: true}}, s.dialed("c"))
		s.edit(func() { s.refuses["c"] = false })
		require.Equal(t, records.Reachable, p.Check(t.Context(), "c").State)
		require.False(t, p.Avoid("c"))
		require.False(t, p.Refuses("c"))
		time.Sleep(avoidMemory)
		require.False(t, p.Avoid("b"), "too long ago")
	})
}

// TestConnectionDuringCheck: one that opens while a dial fails is asked.
func TestConnectionDuringCheck(t *testing.T) {
	withProber(t, func(t *testing.T, p *Prober, s *fakeNetwork, _ feed) {
		s.during = func(id peer.ID) bool { s.edit(func() { s.linked[id] = true }); return true }
		require.Equal(t, records.Reachable, p.Check(t.Context(), "a").State)
	})
}

// TestChecksOfOnePeerMeet: whoever asks while one runs gets its outcome, or nothing if it cannot wait.
func TestChecksOfOnePeerMeet(t *testing.T) {
	withProber(t, func(t *testing.T, p *Prober, s *fakeNetwork, _ feed) {
		s.edit(func() { s.down["a"] = true })
		ends := make(chan Outcome, 3)
		for range 2 {
			go func() { ends <- p.Check(t.Context(), "a") }()
		}
		synctest.Wait()
		hasty, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Zero(t, p.Check(hasty, "a"))
		for range 2 {
			require.Equal(t, records.Unreachable, (<-ends).State)
		}
		require.Len(t, s.dialed("a"), 1)
		stopped, stop := context.WithCancel(t.Context())
		go func() { ends <- p.Check(stopped, "a") }()
		synctest.Wait()
		stop()
		require.Zero(t, <-ends, "the shutdown caused the failure")
	})
}

// TestOwnLatenessIsNoSilence: while this process runs late, a ping without an answer ends no connection, and no
// silence counts.
func TestOwnLatenessIsNoSilence(t *testing.T) {
	withProber(t, func(t *testing.T, p *Prober, s *fakeNetwork, _ feed) {
		s.edit(func() { s.linked["a"], s.down["a"], s.down["b"] = true, true, true })
		late := func() {
			time.Sleep(time.Second)
			p.mu.Lock()
			p.pulse.late = time.Now()
			p.mu.Unlock()
		}
		go late()
		require.Zero(t, p.Check(t.Context(), "a"))
		require.True(t, s.connected("a"), "the connection stays")
		require.Equal(t, records.Unreachable, p.Check(t.Context(), "a").State)
		go late()
		require.Equal(t, Outcome{Dialed: true}, p.Check(t.Context(), "b"))
		require.False(t, p.Avoid("b"))
	})
}

func TestPulse(t *testing.T) {
	var p pulse
	began := time.Unix(1000, 0)
	at := began
	require.False(t, p.lateSince(at, at))
	for range 8 {
		p.beat(at)
		at = at.Add(pulseEvery)
		require.False(t, p.lateSince(began, at))
	}
	at = at.Add(lateness)
	require.True(t, p.lateSince(at.Add(-time.Second), at), "the beat itself is late")
	p.beat(at)
	require.True(t, p.lateSince(at.Add(-time.Second), at))
	require.False(t, p.lateSince(at, at.Add(pulseEvery)), "a check that began afterwards")
}

// TestEvents: a follower hears of all connections. The loss of that with a member of the routing table alone causes a
// check.
func TestEvents(t *testing.T) {
	withProber(t, func(t *testing.T, p *Prober, s *fakeNetwork, events feed) {
		told := make(map[peer.ID]Change)
		p.Follow(func(id peer.ID, c Change) { told[id] = c })
		s.edit(func() { s.refuses["a"], s.refuses["member"] = true, true })
		for _, id := range []peer.ID{"a", "member"} {
			events <- event.EvtPeerConnectednessChanged{Peer: id, Connectedness: libp2p.NotConnected}
		}
		synctest.Wait()
		require.Equal(t, map[peer.ID]Change{"a": Closed, "member": Missed}, told)
		require.Empty(t, s.dialed("a"))
		require.Equal(t, []peer.ID{"member"}, s.removed)
		require.True(t, p.Avoid("member"))
		events <- event.EvtPeerConnectednessChanged{Peer: "member", Connectedness: libp2p.Connected}
		synctest.Wait()
		require.Equal(t, Opened, told["member"])
		require.False(t, p.Avoid("member"))
		close(events) // the host closed first
		synctest.Wait()
	})
}

// TestSuspectsAreChecked, few at a time, and each seldom. Beyond the room for them they are only avoided.
func TestSuspectsAreChecked(t *testing.T) {
	withProber(t, func(t *testing.T, p *Prober, s *fakeNetwork, _ feed) {
		p.Suspect("a", "self", "")
		require.True(t, p.Avoid("a"))
		time.Sleep(time.Second)
		require.False(t, p.Avoid("a"), "it answered")
		p.Suspect("a", "a")
		synctest.Wait()
		require.Len(t, s.dialed("a"), 1, "its answer is young")
		require.True(t, p.Avoid("a"))
		p.Responded("a")
		require.False(t, p.Avoid("a"))

		var ids []peer.ID
		s.edit(func() {
			for i := range 2 * maxSuspects {
				ids = append(ids, peer.ID([]byte{byte(i), byte(i >> 8), 'p'}))
				s.down[ids[i]] = true
			}
		})
		p.Suspect(ids...)
		time.Sleep(time.Hour)
		s.edit(func() { require.Equal(t, checksAtOnce, s.peak) })
		checked := 0
		for _, id := range ids {
			checked += len(s.dialed(id))
		}
		require.LessOrEqual(t, checked, maxSuspects+checksAtOnce)
		require.GreaterOrEqual(t, checked, maxSuspects)
	})
}

// TestSuspicionGrowsAndEnds: each further silence doubles the time for which lookups avoid a peer.
func TestSuspicionGrowsAndEnds(t *testing.T) {
	var s suspicion
	now := time.Unix(1000, 0)
	require.False(t, s.avoided(now))
	s.silent(now)
	require.True(t, s.avoided(now.Add(avoidFirst-1)))
	now = now.Add(avoidFirst)
	require.False(t, s.avoided(now))
	s.silent(now)
	s.silent(now)
	require.True(t, s.avoided(now.Add(2*avoidFirst-1)))
	require.False(t, s.avoided(now.Add(2*avoidFirst)))
	s.checked(Outcome{}, now)
	require.True(t, s.avoided(now), "that check says nothing")
	s.checked(Outcome{State: records.Reachable}, now)
	require.False(t, s.avoided(now))
	for range 20 {
		s.silent(now)
		now = now.Add(avoidMost)
		require.False(t, s.avoided(now))
	}
	now = now.Add(2 * avoidMemory)
	s.silent(now)
	require.True(t, s.avoided(now))
	require.False(t, s.avoided(now.Add(avoidFirst)), "earlier silence is forgotten")
	s.checked(Outcome{State: records.Unreachable}, now)
	require.True(t, s.avoided(now.Add(avoidMemory-1)))
}
