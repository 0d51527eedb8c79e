package sim

import (
	"flag"
	"fmt"
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

// TestDeathInAnyShape has one provider's machine refuse or fall silent in networks of any size, of one office or of many: a closed one counts
// peers, since its prefixes say nothing. Whoever asks loses it in 20 s after the connections broke.
func TestDeathInAnyShape(t *testing.T) {
	for _, c := range []struct {
		peers  int
		closed bool
	}{{3, false}, {3, true}, {10, false}, {10, true}, {25, false}} {
		for what, most := range map[string]float64{"refuses": 20_000, "is silent": 20_000} {
			if c.peers == 25 && (what == "is silent" || testing.Short()) {
				continue // as ten, at a high price
			}
			t.Run(fmt.Sprintf("%d peers, closed %t, %s", c.peers, c.closed, what), func(t *testing.T) {
				if c.peers > 3 {
					long(t)
				}
				synctest.Test(t, func(t *testing.T) {
					w := newCluster(t, Params{Peers: c.peers, Seed: 3, RTT: 20 * time.Millisecond})
					w.wire.refuses, w.wire.shares, w.wire.closed = what == "refuses", true, c.closed
					w.join(c.peers)
					w.trade(t)
					time.Sleep(3 * time.Minute)
					victim := w.peers[c.peers-1]
					s := spreadOf(w.watchEnd(victim, func() { require.NoError(t, victim.close()) }))
					t.Logf("out of the others' answers after p50 %v ms, most %v ms", s.P50, s.Max)
					require.LessOrEqual(t, s.Max, most)
					for _, p := range w.alive() {
						require.Len(t, w.found(p), 3*(c.peers-1), "at %s", p.id)
					}
					require.Empty(t, w.failures)
				})
			})
		}
	}
}
