package scout_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/agent/directory/scout"
)

func steady() float64 { return 0.5 }

func newScout() *scout.Scout { return scout.New(scout.Config{Jitter: steady}) }

const ms = time.Millisecond

// The first two scenes of the design document: a leader that is there, and an election that is under way.
func TestLeaderIsFound(t *testing.T) {
	s := newScout()
	require.Empty(t, s.Advance(0, scout.Woke{}).Ask, "there is nobody to ask yet")
	step := s.Advance(0, scout.Members{Peers: []string{"c2", "c1", "c2"}})
	require.Equal(t, []string{"c1", "c2"}, step.Ask)
	require.Equal(t, 375*ms, step.Wake)
	require.Empty(t, s.Advance(ms, scout.Answer{From: "c1", Round: step.Round, Term: 4}).Ask)
	require.Empty(t, s.Advance(ms, scout.Answer{From: "c2", Round: step.Round, Term: 4}).Ask)
	require.Equal(t, scout.State{}, s.State())

	require.Empty(t, s.Advance(374*ms, scout.Woke{}).Ask)
	step = s.Advance(375*ms, scout.Woke{})
	require.Equal(t, []string{"c1", "c2"}, step.Ask)
	s.Advance(376*ms, scout.Answer{From: "c1", Round: step.Round, Term: 5, Leader: "c2"})
	require.Equal(t, scout.Polling, s.State().Phase, "it must say so itself")
	step = s.Advance(377*ms, scout.Answer{From: "c2", Round: step.Round, Term: 5, Leader: "c2"})
	require.Equal(t, scout.State{Phase: scout.Direct, Leader: "c2", Term: 5}, s.State())
	require.Equal(t, 377*ms+375*ms, step.Wake)

	step = s.Advance(step.Wake, scout.Woke{})
	require.Equal(t, []string{"c2"}, step.Ask, "from now on it alone")
	step = s.Advance(800*ms, scout.Answer{From: "c2", Round: step.Round, Term: 5, Leader: "c2"})
	require.Equal(t, 800*ms+750*ms, step.Wake, "less and less often")
}

// The fourth: the leader is gone, and all are asked at once.
func TestLeaderIsLost(t *testing.T) {
	for name, lose := range map[string]func(s *scout.Scout, now time.Duration, round uint64) scout.Step{
		"it fails": func(s *scout.Scout, now time.Duration, r uint64) scout.Step {
			return s.Advance(now, scout.Failed{From: "c1", Round: r})
		},
		"it is quiet": func(s *scout.Scout, now time.Duration, _ uint64) scout.Step {
			return s.Advance(now+time.Second, scout.Woke{})
		},
		"it says so": func(s *scout.Scout, now time.Duration, r uint64) scout.Step {
			return s.Advance(now, scout.Answer{From: "c1", Round: r, Term: 6})
		},
		"others say": func(s *scout.Scout, now time.Duration, _ uint64) scout.Step {
			return s.Advance(now, scout.Doubt{Term: 5})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScout()
			first := s.Advance(0, scout.Members{Peers: []string{"c1", "c2"}})
			now := s.Advance(0, scout.Answer{From: "c1", Round: first.Round, Term: 5, Leader: "c1"}).Wake
			direct := s.Advance(now, scout.Woke{})
			require.Equal(t, []string{"c1"}, direct.Ask)
			s.Advance(now, scout.Doubt{Term: 4})
			s.Advance(now, scout.Failed{From: "c1", Round: first.Round})
			s.Advance(now, scout.Failed{From: "c2", Round: direct.Round})
			require.Equal(t, scout.Direct, s.State().Phase)

			step := lose(s, now, direct.Round)
			require.Equal(t, []string{"c1", "c2"}, step.Ask)
			require.Equal(t, scout.State{Term: 5}, s.State())
			s.Advance(step.Wake-ms, scout.Answer{From: "c1", Round: direct.Round, Term: 5, Leader: "c1"})
			require.Equal(t, scout.Polling, s.State().Phase, "an answer of an earlier round is old")
			s.Advance(step.Wake-ms, scout.Answer{From: "c2", Round: step.Round, Term: 4, Leader: "c2"})
			require.Equal(t, scout.Polling, s.State().Phase, "never back to a lower term")
			s.Advance(step.Wake-ms, scout.Answer{From: "c2", Round: step.Round, Term: 6, Leader: "c2"})
			require.Equal(t, scout.State{Phase: scout.Direct, Leader: "c2", Term: 6}, s.State())
		})
	}
}

func TestWhoIsNamedIsAsked(t *testing.T) {
	s := newScout()
	require.Empty(t, s.Advance(0, scout.Hint{Term: 1, Leader: "c9"}).Ask)
	step := s.Advance(0, scout.Members{Peers: []string{"c1", "c2"}})
	round := step.Round
	require.Equal(t, []string{"c9"}, s.Advance(0, scout.Answer{From: "c1", Round: round, Term: 5, Leader: "c9"}).Ask, "it may be new")
	require.Empty(t, s.Advance(0, scout.Answer{From: "c2", Round: round, Term: 5, Leader: "c9"}).Ask)
	// Two that name each other are each asked once more, and that is all.
	require.Equal(t, []string{"c1"}, s.Advance(0, scout.Answer{From: "c9", Round: round, Term: 5, Leader: "c1"}).Ask)
	require.Equal(t, []string{"c9"}, s.Advance(0, scout.Answer{From: "c1", Round: round, Term: 5, Leader: "c9"}).Ask)
	require.Empty(t, s.Advance(0, scout.Answer{From: "c9", Round: round, Term: 5, Leader: "c1"}).Ask)
	require.Empty(t, s.Advance(0, scout.Answer{From: "stranger", Round: round, Term: 9, Leader: "stranger"}).Ask)
	require.Equal(t, scout.Polling, s.State().Phase)
	require.Equal(t, []string{"c3"}, s.Advance(0, scout.Members{Peers: []string{"c1", "c3"}}).Ask)
	s.Advance(0, scout.Answer{From: "c3", Round: round, Term: 5, Leader: "c3"})
	require.Equal(t, "c3", s.State().Leader)

	require.Empty(t, s.Advance(0, scout.Hint{Term: 5, Leader: "c1"}).Ask)
	require.Empty(t, s.Advance(0, scout.Hint{Term: 4, Leader: "c8"}).Ask)
	require.Equal(t, []string{"c4"}, s.Advance(0, scout.Hint{Term: 6, Leader: "c4"}).Ask)
	s.Advance(0, scout.Answer{From: "c4", Round: round, Term: 6, Leader: "c4"})
	require.Equal(t, scout.State{Phase: scout.Direct, Leader: "c4", Term: 6}, s.State())
}

// While nobody answers the time between two rounds grows to the most; when members answer that they have no
// leader it stays short.
func TestBackOff(t *testing.T) {
	waits := func(answered bool) (all []time.Duration) {
		s := newScout()
		now := time.Duration(0)
		step := s.Advance(now, scout.Members{Peers: []string{"c1"}})
		for range 7 {
			if answered {
				step = s.Advance(now, scout.Answer{From: "c1", Round: step.Round, Term: 3})
			}
			all = append(all, step.Wake-now)
			now = step.Wake
			step = s.Advance(now, scout.Woke{})
		}
		return all
	}
	require.Equal(t, []time.Duration{375 * ms, 750 * ms, 1500 * ms, 3000 * ms, 3750 * ms, 3750 * ms, 3750 * ms}, waits(false))
	require.Equal(t, []time.Duration{375 * ms, 750 * ms, 750 * ms, 750 * ms, 750 * ms, 750 * ms, 750 * ms}, waits(true))
}

// world is members that change leaders, behind a network that loses and delays.
type world struct {
	t       *rapid.T
	rng     *rand.Rand
	scout   *scout.Scout
	now     time.Duration
	wake    time.Duration
	queue   []message
	term    uint64
	leader  string
	down    map[string]bool
	knows   map[string]scout.Answer // what each member believes
	said    map[string]uint64       // highest term in which each said that it leads
	lossy   bool
	asked   int
	members []string
}

type message struct {
	at    time.Duration
	event scout.Event
}

func (w *world) step(e scout.Event) {
	before := w.scout.State()
	step := w.scout.Advance(w.now, e)
	after := w.scout.State()
	require.GreaterOrEqual(w.t, after.Term, before.Term, "back to a lower term")
	require.Equal(w.t, after.Phase == scout.Direct, after.Leader != "")
	if after.Leader != "" {
		require.GreaterOrEqual(w.t, w.said[after.Leader], after.Term, "%s never said so", after.Leader)
	}
	w.wake = step.Wake
	w.asked += len(step.Ask)
	for _, peer := range step.Ask {
		w.ask(peer, step.Round)
	}
}

// ask sends a question that is answered, lost, or fails.
func (w *world) ask(peer string, round uint64) {
	late := time.Duration(w.rng.IntN(40)) * ms
	if w.lossy && w.rng.IntN(4) == 0 {
		if w.rng.IntN(2) == 0 {
			w.queue = append(w.queue, message{w.now + late, scout.Failed{From: peer, Round: round}})
		}
		return
	}
	if w.down[peer] {
		w.queue = append(w.queue, message{w.now + late, scout.Failed{From: peer, Round: round}})
		return
	}
	a := w.knows[peer]
	a.From, a.Round = peer, round
	if a.Leader == peer {
		w.said[peer] = max(w.said[peer], a.Term)
	}
	w.queue = append(w.queue, message{w.now + late, a})
}

// elect makes a leader of a term, of which some members know at first.
func (w *world) elect() {
	w.term++
	w.leader = w.members[w.rng.IntN(len(w.members))]
	delete(w.down, w.leader)
	for _, peer := range w.members {
		if peer == w.leader || w.rng.IntN(2) == 0 {
			w.knows[peer] = scout.Answer{Term: w.term, Leader: w.leader}
		}
	}
}

func (w *world) run(d time.Duration) {
	for end, busy := w.now+d, 0; ; busy++ {
		require.Less(w.t, busy, 100_000, "it goes round and round")
		next := w.wake
		first := -1
		for i, m := range w.queue {
			if m.at < next {
				first, next = i, m.at
			}
		}
		if next > end {
			w.now = end
			return
		}
		w.now = max(w.now, next)
		if first < 0 {
			w.step(scout.Woke{})
			continue
		}
		m := w.queue[first]
		w.queue = slices.Delete(w.queue, first, first+1)
		w.step(m.event)
	}
}

// Whatever happened before, a leader that stays is found within the longest wait, and asked no more often than it should be.
func TestLeaderThatStaysIsFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		w := &world{
			t: t, rng: rng, scout: scout.New(scout.Config{Jitter: rng.Float64}), lossy: true,
			down: map[string]bool{}, knows: map[string]scout.Answer{}, said: map[string]uint64{}, members: []string{"a", "b", "c", "d", "e"},
		}
		w.step(scout.Members{Peers: w.members[:3]})
		for range rapid.IntRange(0, 12).Draw(t, "changes") {
			switch rng.IntN(5) {
			case 0, 1:
				w.elect()
			case 2:
				w.down[w.members[rng.IntN(5)]] = true
			case 3:
				w.step(scout.Doubt{Term: w.scout.State().Term})
			case 4:
				w.step(scout.Members{Peers: w.members[:1+rng.IntN(5)]})
			}
			w.run(time.Duration(rng.IntN(4000)) * ms)
		}
		w.elect()
		for _, peer := range w.members {
			w.knows[peer] = scout.Answer{Term: w.term, Leader: w.leader}
		}
		w.lossy = false
		w.step(scout.Members{Peers: w.members})
		w.run(7 * time.Second)
		require.Equal(t, scout.State{Phase: scout.Direct, Leader: w.leader, Term: w.term}, w.scout.State())
		w.asked = 0
		w.run(time.Minute)
		require.LessOrEqual(t, w.asked, 30)
		require.GreaterOrEqual(t, w.asked, 10)
	})
}
