package bootstrap

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	flagRuns = flag.Int("bootstrap.runs", 50, "simulated bootstraps for each kind of network")
	flagSeed = flag.Uint64("bootstrap.seed", 1, "first seed")
)

// harsh is a network with every fault.
func harsh(n Network, peers int) cluster {
	return cluster{
		network: n, peers: peers,
		loss: 0.1, twice: 0.1, delay: 300 * time.Millisecond,
		split: 0.5, oneWay: 0.3, crash: 0.01, heal: 30 * time.Second, limit: 90 * time.Second,
	}
}

// TestSafeAndLive is the promise of the package: at most E voters never choose two memberships, and all peers
// know one soon after the faults end.
func TestSafeAndLive(t *testing.T) {
	for _, size := range []struct{ e, peers int }{{1, 1}, {2, 2}, {3, 3}, {3, 2}, {4, 4}, {5, 5}, {5, 3}, {7, 7}} {
		for _, mode := range []Mode{Listed, Unlisted} {
			t.Run(fmt.Sprintf("%s E=%d peers=%d", mode, size.e, size.peers), func(t *testing.T) {
				n := home(size.e)
				if mode == Listed {
					n = listed(t, size.e)
				}
				campaign(t, harsh(n, size.peers))
			})
		}
	}
}

func campaign(t *testing.T, w cluster) {
	var first, all time.Duration
	for i := range *flagRuns {
		seed := *flagSeed + uint64(i)
		r := simulate(t, w, seed)
		require.Empty(t, r.broken, "seed %d", seed)
		require.True(t, r.settled(), "seed %d: not founded after %s", seed, r.now.Sub(r.start))
		require.Len(t, r.proven, 1, "seed %d", seed)
		first += r.first.Sub(r.start)
		all += r.now.Sub(r.start)
	}
	n := time.Duration(*flagRuns)
	t.Logf("%d runs: first certificate after %s, all know after %s (means)", *flagRuns,
		(first / n).Round(time.Millisecond), (all / n).Round(time.Millisecond))
}

// TestSafeWithoutMemory loses data directories. Too few voters may be left, but peers without memory do not
// replace them.
func TestSafeWithoutMemory(t *testing.T) {
	for _, e := range []int{2, 3, 5} {
		w := harsh(listed(t, e), e)
		w.crash, w.wipe = 0.03, 0.3
		founded := 0
		for i := range *flagRuns {
			seed := *flagSeed + uint64(i)
			r := simulate(t, w, seed)
			require.Empty(t, r.broken, "E=%d seed %d", e, seed)
			founded += len(r.proven)
		}
		require.Positive(t, founded, "E=%d", e)
		t.Logf("E=%d: %d of %d founded", e, founded, *flagRuns)
	}
}

// TestFlawsAreFound plants classic mistakes one at a time, which the simulation must find.
func TestFlawsAreFound(t *testing.T) {
	tests := []struct {
		name  string
		plant func(*cluster)
	}{
		{"answers before it is on disk", func(w *cluster) { w.flaws.replyFirst = true }},
		{"proposes its own charter in place of the accepted one", func(w *cluster) { w.flaws.forgetAccepted = true }},
		{"counts one signer twice", func(w *cluster) {
			*w = harsh(listed(t, 5), 5) // with E = 3 one other signature suffices
			w.flaws.countDoubles = true
		}},
		{"keeps promises in memory only", func(w *cluster) { w.flaws.forgetPromises = true }},
		{"takes a majority of the visible for a quorum", func(w *cluster) { w.flaws.majorityVisible = true }},
		{"votes after it lost its memory", func(w *cluster) { w.wipe, w.voteAfterLoss = 0.5, true }},
	}
	const most = 5000
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := harsh(listed(t, 3), 3)
			w.crash = 0.04
			test.plant(&w)
			for seed := range uint64(most) {
				if r := simulate(t, w, *flagSeed+seed); r.broken != "" {
					t.Logf("seed %d: %s", *flagSeed+seed, r.broken)
					return
				}
			}
			t.Fatalf("not found in %d runs", most)
		})
	}
}

// TestTimeToFound measures the bootstrap without faults, and with loss, long delays and splits of up to 20 s.
func TestTimeToFound(t *testing.T) {
	for _, e := range []int{1, 2, 3, 4, 5, 7} {
		calm := cluster{network: listed(t, e), peers: e, delay: 20 * time.Millisecond, limit: time.Minute}
		rough := calm
		rough.loss, rough.delay, rough.split, rough.heal, rough.limit = 0.1, 300*time.Millisecond, 0.5, 20*time.Second, 2*time.Minute
		t.Run(fmt.Sprintf("calm E=%d", e), func(t *testing.T) { campaign(t, calm) })
		t.Run(fmt.Sprintf("rough E=%d", e), func(t *testing.T) { campaign(t, rough) })
	}
}

// TestCrowdIsFoundOut breaks the rule that the mode Unlisted cannot enforce. Two groups may form; then all peers
// learn of the conflict.
func TestCrowdIsFoundOut(t *testing.T) {
	w := harsh(home(3), 4)
	w.crash, w.split, w.crowd = 0, 1, true
	twice := 0
	for i := range *flagRuns {
		seed := *flagSeed + uint64(i)
		r := simulate(t, w, seed)
		require.Empty(t, r.broken, "seed %d", seed)
		require.True(t, r.settled(), "seed %d: not all know", seed)
		twice += len(r.proven) - 1
	}
	t.Logf("%d of %d runs founded two groups; each of them told", twice, *flagRuns)
	require.Positive(t, twice, "the test does not test what it should")
}
