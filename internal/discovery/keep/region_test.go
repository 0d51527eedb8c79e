package keep

import (
	"fmt"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
)

// The peers that a region settles are the closest in the whole network.
func TestRegionAgainstWholeNetwork(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		everybody := keepertest.PeersOf(rapid.IntRange(Network+1, 300).Draw(t, "peers"))
		offset := rapid.IntRange(0, 1<<20).Draw(t, "ids")
		for i := range everybody {
			everybody[i] = peer.ID(fmt.Sprintf("peer-%d", offset+i))
		}
		self, others := everybody[0], everybody[1:]
		key := fmt.Sprint("key-", offset)
		g := newRegion(key, Nearest(key, others, Network), time.Time{})
		own := HashOf(string(self))
		if !g.settles(g.target, own, Replicas) {
			t.Fatal("an answer does not settle its own key")
		}
		known := []peer.ID{self}
		for _, n := range g.peers {
			known = append(known, n.Id)
		}
		for i := range 200 {
			other := fmt.Sprint("other-", offset, i)
			if g.settles(HashOf(other), own, Replicas) {
				require.Equal(t, Nearest(other, everybody, Replicas), Nearest(other, known, Replicas))
			}
		}
	})
}

// The bound equals the minimum over all values of an eight-bit key space.
func TestLeastBeyond(t *testing.T) {
	for radius := range 256 {
		for apart := range 256 {
			want := 256
			for x := radius; x < 256; x++ {
				want = min(want, x^apart)
			}
			got := leastBeyond(Words{uint64(radius) << 56}, Words{uint64(apart) << 56})
			require.Equal(t, Words{uint64(want) << 56}, got, "radius %d apart %d", radius, apart)
		}
	}
}

// Many keys cost one lookup per region.
func TestKeysShareLookups(t *testing.T) {
	const peers, keys = 400, 10_000
	others := keepertest.PeersOf(peers)
	self := peer.ID("self")
	var r regions
	lookups := 0
	now := time.Now()
	for i := range keys {
		key := fmt.Sprint("key-", i)
		if _, ok := r.around(key, self, now); ok {
			continue
		}
		lookups++
		r.add(newRegion(key, Nearest(key, others, Network), now.Add(regionTTL)))
	}
	t.Logf("%d keys on %d peers cost %d lookups", keys, peers, lookups)
	require.Less(t, lookups, peers/2)
	_, ok := r.around("key-1", self, now.Add(regionTTL))
	require.False(t, ok, "results expire")
}
