package keep

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
)

// The radius of a key equals the distance of its farthest keeper.
func TestRadius(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 5))
	for range 200 {
		everybody := keepertest.PeersOf(1 + random.IntN(60))
		self := everybody[0]
		n := NewTable(self, everybody, false)
		key := fmt.Sprint(random.Int64())
		closest := Nearest(key, everybody, Replicas)
		r, kept := n.RadiusOf(key)
		require.Equal(t, slices.Contains(closest, self), kept)
		if !kept {
			continue
		}
		for _, id := range everybody {
			require.Equal(t, slices.Contains(closest, id), r.Covers(HashOf(string(id))))
		}
		require.ElementsMatch(t, closest, append(n.keepers(&r), self))
	}
}
