package sim

import (
	"flag"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var manyDeaths = flag.Bool("deaths", false, "play 40 peers, for figures")

// TestDeath has peers of a network die without a word, as by SIGKILL. Their connections break and cannot be made again. Their offers leave
// every answer within ten seconds, and no other offer does.
func TestDeath(t *testing.T) {
	long(t)
	peers, dying := 16, 2
	if *manyDeaths {
		peers, dying = 40, 8
	}
	for what, refuses := range map[string]bool{"refuses connections": true, "is silent afterwards": false} {
		var gone []time.Duration
		synctest.Test(t, func(t *testing.T) {
			w := newCluster(t, Params{Peers: peers, Seed: 1, RTT: 50 * time.Millisecond})
			w.wire.refuses, w.wire.shares = refuses, true
			w.join(peers)
			w.trade(t)
			for n, victim := range w.peers[peers-dying:] {
				time.Sleep(time.Minute)
				gone = append(gone, w.watchEnd(victim, func() { require.NoError(t, victim.close()) })...)
				for _, p := range w.alive() {
					require.Len(t, w.found(p), 3*(peers-n-1), "at %s", p.id)
				}
			}
			require.Empty(t, w.failures)
		})
		s := spreadOf(gone)
		t.Logf("%d peers, %d die, and the machine %s: out of another peer's answers after p50 %v ms, p99 %v ms, most %v ms", peers, dying, what, s.P50, s.P99, s.Max)
		require.LessOrEqual(t, s.P99, 10_000.0)
	}
}
