package keep

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// crowd is a network of peers as the look-ups of one of them see it.
type crowd struct {
	peers []Words
	sizes sizes
	own   float64
	now   time.Time
}

func newCrowd(r *rand.Rand, n int) *crowd {
	c := &crowd{now: time.Unix(1000, 0)}
	for range n {
		c.peers = append(c.peers, HashOf(string(drawn(r))))
	}
	c.own = peersAt(c.nearest(c.peers[0], Network+1)[Network], Network)
	return c
}

// nearest returns the least distances of peers to a hash.
func (c *crowd) nearest(to Words, n int) []Words {
	away := make([]Words, len(c.peers))
	for i, p := range c.peers {
		away[i] = to.xor(p)
	}
	slices.SortFunc(away, Words.compare)
	return away[:n]
}

// look looks a key up.
func (c *crowd) look(key string) (crowded bool) {
	return c.sizes.crowded(key, c.nearest(HashOf(key), Network), c.own, c.now)
}

// Keepers whose ids an attacker chose among many are noticed, whether this peer has looked much up before or nothing. Others are not
// accused. Who tries few, about as many as there are peers, is seldom noticed, and has fewer of the keepers.
func TestChosenKeepersAreNoticed(t *testing.T) {
	const rounds, honest = 15, 1000
	for _, tc := range []struct{ tries, before, noticed int }{{10_000, 0, rounds}, {10_000, 40, rounds}, {4000, 40, rounds - 1}, {1000, 40, 0}} {
		noticed, hostile := 0, 0
		for round := range rounds {
			r := rand.New(rand.NewPCG(uint64(round), uint64(tc.before)))
			c := newCrowd(r, honest)
			key := fmt.Sprint("cell ", round)
			for i := range tc.before {
				require.False(t, c.look(fmt.Sprint("other ", round, i)))
			}
			require.False(t, c.look(key), "before the attack")
			for range Replicas {
				c.peers = append(c.peers, HashOf(string(closestOf(r, key, tc.tries))))
			}
			last := c.nearest(HashOf(key), Replicas)[Replicas-1]
			for _, p := range c.peers[honest:] {
				if !last.less(HashOf(key).xor(p)) {
					hostile++
				}
			}
			if c.look(key) {
				noticed++
			}
		}
		t.Logf("ten ids, each the best of %d, %d look-ups before: %d of %d noticed, %.1f of 10 keepers hostile",
			tc.tries, tc.before, noticed, rounds, float64(hostile)/rounds)
		require.GreaterOrEqual(t, noticed, tc.noticed)
	}
}

// In networks of any size, growing ones too, nobody is accused.
func TestHonestKeepersAreNotAccused(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	c := newCrowd(r, 25)
	for i := range 2000 {
		if i%100 == 99 { // neighbours are known at once, look-ups remembered
			for range len(c.peers) / 4 {
				c.peers = append(c.peers, HashOf(string(drawn(r))))
			}
			c.own = peersAt(c.nearest(c.peers[0], Network+1)[Network], Network)
		}
		c.now = c.now.Add(time.Second / 10)
		require.False(t, c.look(fmt.Sprint(i)), "%d peers", len(c.peers))
		require.LessOrEqual(t, len(c.sizes.samples), sizeSamples)
	}
}

// A region is named by keys in its outer half, in the outer half of the rest, and so on; in one of any size.
func TestTargetsAround(t *testing.T) {
	at := HashOf("key")
	for _, peers := range []float64{21, 40, 1000, 100_000} {
		reach := regionPeers / peers
		targets := targetsAround(at, reach, func(n int) int { return n / 2 })
		require.Len(t, targets, regionTargets)
		slices.SortFunc(targets, func(a, b string) int { return HashOf(b).xor(at).compare(HashOf(a).xor(at)) })
		for i, x := range targets {
			away := HashOf(x).xor(at).share() / math.Exp2(math.Floor(math.Log2(reach))+1-float64(i))
			require.True(t, 0.5 <= away && away < 1, "%g peers: %d is at %g", peers, i, away)
		}
	}
	require.Less(t, len(targetsAround(at, 1e-12, func(int) int { return 0 })), regionTargets, "no search without end")
}
