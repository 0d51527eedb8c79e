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
	mu      sync.Mutex
	down    map[peer.ID]bool
	linked  map[peer.ID]bool // with an open connection
	checks  map[peer.ID]int
	busy    int
	peak    int
	removed []peer.ID
	member  peer.ID // of the routing table
}

func (s *fakeNetwork) check(ctx context.Context, p probe) outcome {
	s.mu.Lock()
	s.busy++
	s.peak = max(s.peak, s.busy)
	s.checks[p.id]++
	down := s.down[p.id]
	s.mu.Unlock()
	defer func() { s.mu.Lock(); s.busy--; s.mu.Unlock() }()
	if down {
		<-ctx.Done() // like a host that drops packets
		return outcome{result: failed, dialed: true}
	}
	<-time.After(time.Millisecond) // virtual time
	return outcome{result: answered, dialed: !s.connected(p.id), roundTrip: time.Millisecond}
}

func (s *fakeNetwork) connected(id peer.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.linked[id]
}

// connect gives this peer an open connection to another.
func (s *fakeNetwork) connect(id peer.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.linked[id] = true
}
func (s *fakeNetwork) watch(id peer.ID) bool { return id == s.member }
func (s *fakeNetwork) gone(id peer.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removed = append(s.removed, id)
}

// checked returns the number of probes of a peer.
func (s *fakeNetwork) checked(id peer.ID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checks[id]
}

// lost returns the peers that gone was called for.
func (s *fakeNetwork) lost() []peer.ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.removed)
}

// atOnce returns the most probes that ran concurrently.
func (s *fakeNetwork) atOnce() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peak
}

func (s *fakeNetwork) set(id peer.ID, down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down[id] = down
}

// feed is an event subscription without a bus.
type feed chan any

func (f feed) Out() <-chan any { return f }
func (f feed) Close() error    { return nil }
func (f feed) Name() string    { return "test" }

func withProber(t *testing.T, play func(p *Prober, s *fakeNetwork, events feed)) {
	synctest.Test(t, func(t *testing.T) {
		conf := Config{}.complete()
		s := &fakeNetwork{down: map[peer.ID]bool{}, linked: map[peer.ID]bool{}, checks: map[peer.ID]int{}, member: "member"}
		p := newProber("self", s, conf)
		ctx, cancel := context.WithCancel(t.Context())
		events := make(feed)
		done := make(chan struct{})
		p.events = events
		go func() { p.Run(ctx); close(done) }()
		play(p, s, events)
		cancel()
		<-done
	})
}

func TestProberDefaults(t *testing.T) {
	withProber(t, func(p *Prober, s *fakeNetwork, _ feed) {
		s.set("b", true)
		p.Track("t", "a", "b", "self", "")
		synctest.Wait()
		_, ok := p.Measured("a")
		require.False(t, ok)
		m, ok := p.Measured("self")
		require.True(t, ok)
		require.Equal(t, records.Reachable, m.State)

		time.Sleep(11 * time.Second) // one timeout
		synctest.Wait()
		m, ok = p.Measured("a")
		require.True(t, ok)
		require.Equal(t, records.Reachable, m.State)
		require.Equal(t, []peer.ID{"b"}, s.lost(), "from the routing table")
		require.Empty(t, p.Unreachable(), "one failure")
		require.Equal(t, 1, s.checked("b"))
		time.Sleep(2*time.Minute + 11*time.Second) // p.conf.Confirm and one timeout
		synctest.Wait()
		require.Equal(t, []peer.ID{"b"}, p.Unreachable())
		require.EqualValues(t, 1, p.Epoch())

		p.Track("t", "a")
		s.set("b", false)
		time.Sleep(10 * time.Minute) // one interval
		synctest.Wait()
		require.Empty(t, p.Unreachable())
		require.EqualValues(t, 2, p.Epoch())
		require.Equal(t, 2, s.checked("a"))
	})
}

// TestWatchedPeersAreProbedEachMinute, others at most once in ten.
func TestWatchedPeersAreProbedEachMinute(t *testing.T) {
	withProber(t, func(p *Prober, s *fakeNetwork, _ feed) {
		p.Track("t", "a", "w")
		p.Watch("t", time.Now().Add(5*time.Minute+30*time.Second), "w")
		for range 19 {
			time.Sleep(30 * time.Second)
			p.Track("t", "a", "w")
		}
		synctest.Wait()
		require.Equal(t, 1, s.checked("a"), "within 9.5 minutes, asked for 20 times")
		require.Equal(t, 7, s.checked("w"), "the last one a minute after the one before the end")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 2, s.checked("a"))
	})
}

// TestAnnouncementRevivesAnUnreachablePeer: a new record leads to an early probe, at most once a minute.
func TestAnnouncementRevivesAnUnreachablePeer(t *testing.T) {
	withProber(t, func(p *Prober, s *fakeNetwork, _ feed) {
		s.set("a", true)
		p.Track("t", "a")
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		require.Equal(t, []peer.ID{"a"}, p.Unreachable())
		require.Equal(t, 3, s.checked("a"))
		for range 100 {
			p.Announced("a")
		}
		time.Sleep(time.Minute + 15*time.Second)
		synctest.Wait()
		require.Equal(t, 4, s.checked("a"))
		s.set("a", false)
		p.Announced("a")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, p.Unreachable())
	})
}

func TestProberEvents(t *testing.T) {
	withProber(t, func(p *Prober, s *fakeNetwork, events feed) {
		s.connect("a")
		p.Track("t", "a")
		time.Sleep(time.Second)
		s.set("a", true)
		events <- event.EvtPeerConnectednessChanged{Peer: "a", Connectedness: libp2p.NotConnected}
		events <- event.EvtPeerConnectednessChanged{Peer: "stranger", Connectedness: libp2p.NotConnected}
		s.set("member", true)
		events <- event.EvtPeerConnectednessChanged{Peer: "member", Connectedness: libp2p.NotConnected}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.ElementsMatch(t, []peer.ID{"a", "member"}, s.lost())
		require.Empty(t, p.Unreachable())
		time.Sleep(p.conf.Confirm + 10*time.Second)
		synctest.Wait()
		require.Equal(t, []peer.ID{"a", "member"}, p.Unreachable())
		events <- event.EvtPeerConnectednessChanged{Peer: "a", Connectedness: libp2p.Connected}
		synctest.Wait()
		require.Equal(t, []peer.ID{"member"}, p.Unreachable())
		close(events) // the host closed first
		synctest.Wait()
	})
}

func TestProberBoundsItsProbes(t *testing.T) {
	withProber(t, func(p *Prober, s *fakeNetwork, _ feed) {
		var ids []peer.ID
		for i := range 2000 {
			ids = append(ids, peer.ID([]byte{byte(i), byte(i >> 8), 'p'}))
		}
		p.Track("t", ids...)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 16, s.atOnce())
		p.mu.Lock()
		require.Equal(t, 1024, p.tracker.observed.Len())
		p.mu.Unlock()
		_, ok := p.Measured(ids[0])
		require.False(t, ok, "tracked longest ago")
		for _, id := range ids[2000-1024:] {
			_, ok := p.Measured(id)
			require.True(t, ok)
		}
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		_, ok = p.Measured(ids[1999])
		require.False(t, ok, "not tracked for longer than Keep")
	})
}
