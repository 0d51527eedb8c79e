package leader_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/coordination/leader"
)

const ms = time.Millisecond

func steady() float64 { return 0.5 }

func newTracker() *leader.Tracker {
	return leader.New(leader.Config{Self: "self", Jitter: steady})
}

// of is a leadership in the first incarnation.
func of(term uint64, p peer.ID) leader.Leadership { return leader.Leadership{Term: term, Peer: p} }

func answer(from peer.ID, term uint64, p peer.ID) leader.Answer {
	return leader.Answer{From: from, Leadership: of(term, p)}
}

func ids(names ...peer.ID) []peer.ID { return names }

// TestLeaderIsFound plays the first two scenes of the design document: an election ends, and a leader answers.
func TestLeaderIsFound(t *testing.T) {
	tr := newTracker()
	require.Empty(t, tr.Advance(0, leader.Tick{}).Ask, "no peer is known yet")
	step := tr.Advance(0, leader.Peers{"c1", "c2"})
	require.Equal(t, ids("c1", "c2"), step.Ask)
	require.Equal(t, 375*ms, step.Wake)
	require.Equal(t, 2, tr.Open())
	require.Empty(t, tr.Advance(ms, answer("c1", 4, "")).Ask)
	require.Empty(t, tr.Advance(ms, answer("c2", 4, "")).Ask)
	require.Zero(t, tr.Open())
	require.Equal(t, leader.Leadership{}, tr.Known())

	require.Empty(t, tr.Advance(374*ms, leader.Tick{}).Ask)
	require.Equal(t, ids("c1", "c2"), tr.Advance(375*ms, leader.Tick{}).Ask)
	tr.Advance(376*ms, answer("c1", 5, "c2"))
	require.Empty(t, tr.Known().Peer, "the leader must say so itself")
	step = tr.Advance(377*ms, answer("c2", 5, "c2"))
	require.Equal(t, of(5, "c2"), tr.Known())
	require.Equal(t, 377*ms+375*ms, step.Wake)

	require.Equal(t, ids("c2"), tr.Advance(step.Wake, leader.Tick{}).Ask, "from now on only the leader")
	tr.Advance(800*ms, answer("c2", 5, "c2"))
	require.Empty(t, tr.Advance(1500*ms, leader.Tick{}).Ask, "more rarely each time")
	require.Equal(t, ids("c2"), tr.Advance(1550*ms, leader.Tick{}).Ask)
}

// TestLeaderIsLost plays the fourth scene: the leader is gone, and all peers are asked at once.
func TestLeaderIsLost(t *testing.T) {
	for name, lose := range map[string]func(tr *leader.Tracker, now time.Duration) leader.Step{
		"it fails": func(tr *leader.Tracker, now time.Duration) leader.Step {
			return tr.Advance(now, leader.Failed{From: "c1"})
		},
		"it is silent": func(tr *leader.Tracker, now time.Duration) leader.Step {
			return tr.Advance(now+time.Second, leader.Tick{})
		},
		"it says so": func(tr *leader.Tracker, now time.Duration) leader.Step {
			return tr.Advance(now, answer("c1", 6, ""))
		},
		"it refuses a caller": func(tr *leader.Tracker, now time.Duration) leader.Step {
			return tr.Advance(now, leader.Refused{Leader: "c1"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTracker()
			tr.Advance(0, leader.Peers{"c1", "c2"})
			now := tr.Advance(0, answer("c1", 5, "c1")).Wake
			tr.Advance(0, answer("c2", 5, "c1"))
			require.Equal(t, ids("c1"), tr.Advance(now, leader.Tick{}).Ask)
			tr.Advance(now, leader.Refused{Leader: "c2"})
			tr.Advance(now, leader.Failed{From: "c2"})
			require.Equal(t, of(5, "c1"), tr.Known())

			step := lose(tr, now)
			require.Contains(t, step.Ask, peer.ID("c2"))
			require.Equal(t, of(5, ""), tr.Known())
			if !slices.Contains(step.Ask, "c1") { // the question before the loss is still open
				step = tr.Advance(step.Wake-2*ms, answer("c1", 5, "c1"))
				require.Empty(t, tr.Known().Peer, "an answer to an earlier question proves nothing")
				require.Equal(t, ids("c1"), step.Ask, "so the peer is asked again")
			}
			tr.Advance(step.Wake-ms, answer("c2", 4, "c2"))
			require.Empty(t, tr.Known().Peer, "never back to a lower term")
			require.Equal(t, ids("c2"), tr.Advance(step.Wake-ms, leader.Claim{From: "c1", Leadership: of(6, "c2")}).Ask)
			tr.Advance(step.Wake-ms, answer("c2", 6, "c2"))
			require.Equal(t, of(6, "c2"), tr.Known())
		})
	}
}

// TestNamedPeerIsAsked: a peer that others call the leader is asked, and only its own word counts.
func TestNamedPeerIsAsked(t *testing.T) {
	tr := newTracker()
	require.Empty(t, tr.Advance(0, leader.Claim{From: "c1", Leadership: of(1, "c9")}).Ask)
	tr.Advance(0, leader.Peers{"c1", "c2"})
	require.Equal(t, ids("c9"), tr.Advance(0, answer("c1", 5, "c9")).Ask, "a peer may be new")
	require.Empty(t, tr.Advance(0, answer("c2", 5, "c9")).Ask)
	// Two peers that name each other are each asked once more, and no further.
	require.Equal(t, ids("c1"), tr.Advance(0, answer("c9", 5, "c1")).Ask)
	require.Equal(t, ids("c9"), tr.Advance(0, answer("c1", 5, "c9")).Ask)
	require.Empty(t, tr.Advance(0, answer("c9", 5, "c1")).Ask)
	require.Empty(t, tr.Advance(0, answer("stranger", 9, "stranger")).Ask)
	require.Empty(t, tr.Known().Peer, "the stranger was not asked")
	require.Empty(t, tr.Advance(0, leader.Claim{From: "c2", Leadership: of(5, "self")}).Ask, "this peer knows better")
	require.Equal(t, ids("c3"), tr.Advance(0, leader.Peers{"c1", "c3"}).Ask)
	tr.Advance(0, answer("c3", 5, "c3"))
	require.Equal(t, of(5, "c3"), tr.Known())

	require.Empty(t, tr.Advance(0, leader.Claim{From: "c2", Leadership: of(5, "c1")}).Ask)
	require.Empty(t, tr.Advance(0, leader.Claim{From: "c2", Leadership: of(4, "c8")}).Ask)
	require.Equal(t, ids("c4"), tr.Advance(0, leader.Claim{From: "c2", Leadership: of(6, "c4")}).Ask)
	require.Equal(t, of(5, "c3"), tr.Known(), "until the named peer confirms it")
	tr.Advance(0, answer("c4", 6, "c4"))
	require.Equal(t, of(6, "c4"), tr.Known())
}

// TestOneLeaderPerTerm: a second peer that claims a term is not believed.
func TestOneLeaderPerTerm(t *testing.T) {
	tr := newTracker()
	tr.Advance(0, leader.Peers{"c1", "c2"})
	tr.Advance(0, answer("c1", 5, "c1"))
	tr.Advance(0, answer("c2", 5, "c2"))
	tr.Advance(0, leader.Claim{From: "c3", Leadership: of(5, "c3")})
	require.Equal(t, of(5, "c1"), tr.Known())
}

// TestAnnouncement: the leader's own announcement needs no question.
func TestAnnouncement(t *testing.T) {
	tr := newTracker()
	tr.Advance(0, leader.Claim{From: "c1", Leadership: of(3, "c1")})
	require.Equal(t, of(3, "c1"), tr.Known())
	step := tr.Advance(0, leader.Claim{From: "c2", Leadership: of(4, "c2")})
	require.Equal(t, of(4, "c2"), tr.Known())
	require.Equal(t, ids("c2"), tr.Advance(step.Wake, leader.Tick{}).Ask, "the announcement may be old")
}

// TestMember: a voting member replaces all questions; a learner, which never drops its leader, does not.
func TestMember(t *testing.T) {
	tr := newTracker()
	tr.Advance(0, leader.Peers{"c1", "c2"})
	tr.Advance(0, answer("c1", 1, ""))
	tr.Advance(0, answer("c2", 1, ""))
	belief := leader.Member{Leadership: of(2, "c1"), Votes: true}
	tr.Advance(0, belief)
	require.Equal(t, of(2, "c1"), tr.Known())
	for now := time.Duration(0); now < time.Minute; now += 100 * ms {
		require.Empty(t, tr.Advance(now, leader.Tick{Waiting: true}).Ask)
	}
	require.Equal(t, ids("c1", "c2"), tr.Advance(time.Minute, leader.Member{}).Ask, "the member lost its leader")
	require.Equal(t, of(2, ""), tr.Known())

	belief.Votes = false
	tr.Advance(time.Minute, belief)
	require.Equal(t, of(2, "c1"), tr.Known())
	require.Empty(t, tr.Advance(2*time.Minute, answer("c2", 2, "")).Ask)
	require.Empty(t, tr.Advance(2*time.Minute, answer("c1", 2, "c1")).Ask)
	require.Equal(t, ids("c1"), tr.Advance(3*time.Minute, leader.Tick{}).Ask)
	require.Equal(t, ids("c2"), tr.Advance(4*time.Minute, leader.Tick{}).Ask, "all are asked; the question to c1 is open")
	tr.Advance(4*time.Minute, belief)
	require.Empty(t, tr.Known().Peer, "an unchanged belief counts no more")
}

// TestSelf: this peer leads only while its own member says so.
func TestSelf(t *testing.T) {
	tr := newTracker()
	tr.Advance(0, leader.Peers{"c1"})
	tr.Advance(0, leader.Member{Leadership: of(2, "self"), Votes: true})
	require.Equal(t, of(2, "self"), tr.Known())
	tr.Advance(0, leader.Refused{Leader: "self"})
	tr.Advance(0, leader.Suspect{Leader: "self"})
	require.Equal(t, of(2, "self"), tr.Known())
	require.Equal(t, ids("c9"), tr.Advance(time.Second, leader.Claim{From: "c1", Leadership: of(3, "c9")}).Ask)
	tr.Advance(time.Second, leader.Claim{From: "c1", Leadership: of(3, "c1")})
	require.Equal(t, of(3, "c1"), tr.Known(), "another leads a later term")
	tr.Advance(time.Second, leader.Member{Leadership: of(2, "self"), Votes: true})
	require.Equal(t, of(3, "c1"), tr.Known())
}

// TestSuspect: a caller's suspicion has the leader asked again, which keeps its place if it answers.
func TestSuspect(t *testing.T) {
	tr := newTracker()
	tr.Advance(0, leader.Peers{"c1", "c2"})
	tr.Advance(0, answer("c1", 5, "c1"))
	require.Empty(t, tr.Advance(0, leader.Suspect{Leader: "c2"}).Ask)
	require.Equal(t, ids("c1"), tr.Advance(0, leader.Suspect{Leader: "c1"}).Ask)
	require.Empty(t, tr.Advance(0, leader.Suspect{Leader: "c1"}).Ask, "once is enough")
	tr.Advance(ms, answer("c1", 5, "c1"))
	require.Equal(t, of(5, "c1"), tr.Known())

	require.Equal(t, ids("c1"), tr.Advance(2*ms, leader.Suspect{Leader: "c1"}).Ask)
	tr.Advance(999*ms, leader.Tick{})
	require.Equal(t, of(5, "c1"), tr.Known())
	tr.Advance(1002*ms, leader.Tick{})
	require.Empty(t, tr.Known().Peer, "it was silent for too long")
}

// TestWaitingCalls: while calls wait, the leader is checked at least once a second.
func TestWaitingCalls(t *testing.T) {
	tr := newTracker()
	tr.Advance(0, leader.Peers{"c1"})
	step := tr.Advance(0, answer("c1", 5, "c1"))
	last, longest := time.Duration(0), time.Duration(0)
	for now := step.Wake; now < time.Minute; now = step.Wake {
		if step = tr.Advance(now, leader.Tick{Waiting: true}); len(step.Ask) == 0 {
			continue
		}
		longest, last = max(longest, now-last), now
		step = tr.Advance(now, answer("c1", 5, "c1"))
	}
	require.LessOrEqual(t, longest, time.Second)
}

// TestWatches: under open watches the leader is checked every 2 to 3 s, and more often while a call waits.
func TestWatches(t *testing.T) {
	tr := newTracker()
	tr.Advance(0, leader.Peers{"c1"})
	step := tr.Advance(0, answer("c1", 5, "c1"))
	asked := 0
	until := func(now, end time.Duration, tick leader.Tick) time.Duration {
		for ; now < end; now = step.Wake {
			if step = tr.Advance(now, tick); len(step.Ask) > 0 {
				asked++
				step = tr.Advance(now, answer("c1", 5, "c1"))
			}
			require.Greater(t, step.Wake, now)
		}
		return now
	}
	now := until(step.Wake, time.Minute, leader.Tick{Watching: true})
	require.InDelta(t, 30, asked, 5)
	asked = 0
	now = until(now, 2*time.Minute, leader.Tick{Watching: true, Waiting: true})
	require.InDelta(t, 120, asked, 15)

	now = until(now, 3*time.Minute, leader.Tick{})
	tr.Advance(now, leader.Tick{})
	step = tr.Advance(now, answer("c1", 5, "c1"))
	require.Greater(t, step.Wake, now+2*time.Second)
	require.Equal(t, now+500*ms, tr.Advance(now, leader.Called{}).Wake)
	require.Equal(t, now+500*ms, tr.Advance(now+400*ms, leader.Called{}).Wake, "further calls do not postpone the look at the first")
	require.Equal(t, step.Wake, tr.Advance(now+500*ms, leader.Tick{}).Wake, "both were answered")
}

// TestGivenUp: a leader that says unasked that it leads no more is believed, in its term.
func TestGivenUp(t *testing.T) {
	tr := newTracker()
	tr.Advance(0, leader.Peers{"c1", "c2"})
	tr.Advance(0, answer("c1", 5, "c1"))
	tr.Advance(0, answer("c2", 5, "c1"))
	require.Empty(t, tr.Advance(ms, leader.Claim{From: "c2", Leadership: of(5, "")}).Ask, "not the word of the leader")
	require.Empty(t, tr.Advance(ms, leader.Claim{From: "c1", Leadership: of(4, "")}).Ask, "the word of an earlier term")
	require.Equal(t, of(5, "c1"), tr.Known())
	require.Equal(t, ids("c1", "c2"), tr.Advance(ms, leader.Claim{From: "c1", Leadership: of(5, "")}).Ask)
	require.Empty(t, tr.Known().Peer)
}

// TestNeeded: a caller need not wait for the next round, but callers together do not flood the peers.
func TestNeeded(t *testing.T) {
	tr := newTracker()
	tr.Advance(0, leader.Peers{"c1", "c2"})
	tr.Advance(ms, answer("c1", 5, ""))
	require.Empty(t, tr.Advance(10*ms, leader.Needed{}).Ask, "too early")
	require.Equal(t, ids("c1"), tr.Advance(20*ms, leader.Tick{}).Ask, "but soon; c2 is still asked")
	tr.Advance(21*ms, answer("c1", 5, ""))
	require.Equal(t, ids("c1"), tr.Advance(60*ms, leader.Needed{}).Ask)
	tr.Advance(61*ms, answer("c1", 5, "c1"))
	require.Empty(t, tr.Advance(100*ms, leader.Needed{}).Ask, "it is known")
}

// TestIncarnation: a newer incarnation ends every leadership of an older one, and its terms begin anew.
func TestIncarnation(t *testing.T) {
	tr := newTracker()
	tr.Advance(0, leader.Peers{"c1", "c2"})
	tr.Advance(0, answer("c1", 9, "c1"))
	renewed := leader.Leadership{Incarnation: 1, Term: 2, Peer: "c2"}
	require.Equal(t, ids("c1"), tr.Advance(0, leader.Claim{From: "c3", Leadership: renewed}).Ask, "c2 is still asked")
	require.Equal(t, leader.Leadership{Incarnation: 1}, tr.Known())
	tr.Advance(0, leader.Member{Leadership: of(10, "c1"), Votes: true})
	tr.Advance(0, answer("c1", 10, "c1"))
	require.Empty(t, tr.Known().Peer)
	tr.Advance(0, leader.Answer{From: "c2", Leadership: renewed})
	require.Equal(t, renewed, tr.Known())
}

// TestBacksOff: questions into the void become rare, and stay frequent during an election.
func TestBacksOff(t *testing.T) {
	count := func(answers bool) int {
		tr := newTracker()
		step := tr.Advance(0, leader.Peers{"c1"})
		rounds := 0
		for now := time.Duration(0); now < time.Minute; now = step.Wake {
			for _, p := range step.Ask {
				rounds++
				if answers {
					tr.Advance(now, answer(p, 1, ""))
				} else {
					tr.Advance(now, leader.Failed{From: p})
				}
			}
			step = tr.Advance(now, leader.Tick{})
		}
		return rounds
	}
	require.Less(t, count(false), 25)
	require.Greater(t, count(true), 60)
}

// TestAgainstPeers plays random peers, with lost, late and wrong answers, and demands: one open question per peer,
// confirmed terms never fall, and the real leader is found soon after the faults end.
func TestAgainstPeers(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		all := ids("c1", "c2", "c3", "c4")
		tr := leader.New(leader.Config{Self: "self", Jitter: rng.Float64})
		open := map[peer.ID]time.Duration{}
		now, term, lead := time.Duration(0), uint64(1), peer.ID("c1")
		var last leader.Leadership
		step := leader.Step{}
		apply := func(e leader.Event) {
			step = tr.Advance(now, e)
			for _, p := range step.Ask {
				require.NotContains(rt, open, p, "one open question per peer")
				open[p] = now + time.Duration(rng.Int64N(int64(2*time.Second)))
			}
			require.Equal(rt, len(open), tr.Open())
			require.GreaterOrEqual(rt, tr.Known().Term, last.Term)
			last = tr.Known()
		}
		reply := func(p peer.ID, faulty bool) {
			delete(open, p)
			switch knows := lead; {
			case faulty && rng.IntN(3) == 0:
				apply(leader.Failed{From: p})
				return
			case faulty && rng.IntN(3) == 0:
				apply(answer(p, uint64(rng.Int64N(int64(term)+1)), all[rng.IntN(len(all))]))
			default:
				apply(answer(p, term, knows))
			}
		}
		apply(leader.Peers(all))
		faults := 20 * time.Second
		for now < faults+30*time.Second {
			now += time.Duration(1+rng.Int64N(50)) * ms
			faulty := now < faults
			for _, p := range all {
				if at, ok := open[p]; ok && (now >= at || !faulty) {
					reply(p, faulty)
				}
			}
			if faulty && rng.IntN(20) == 0 {
				term++
				lead = all[rng.IntN(len(all))]
			}
			if faulty && rng.IntN(10) == 0 {
				apply(leader.Refused{Leader: tr.Known().Peer})
			}
			if rng.IntN(10) == 0 {
				apply(leader.Needed{})
			}
			if now >= step.Wake {
				apply(leader.Tick{Waiting: rng.IntN(2) == 0, Watching: rng.IntN(2) == 0})
			}
		}
		require.Equal(rt, of(term, lead), tr.Known())
	})
}
