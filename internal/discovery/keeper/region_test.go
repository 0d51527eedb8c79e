package keeper

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/records"
)

// The peers that a region settles are the closest in the whole network.
func TestRegionAgainstWholeNetwork(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		everybody := peersOf(rapid.IntRange(Network+1, 300).Draw(t, "peers"))
		offset := rapid.IntRange(0, 1<<20).Draw(t, "ids")
		for i := range everybody {
			everybody[i] = peer.ID(fmt.Sprintf("peer-%d", offset+i))
		}
		self, others := everybody[0], everybody[1:]
		key := fmt.Sprint("key-", offset)
		g := newRegion(key, nearest(key, others, Network), time.Time{})
		own := sha256.Sum256([]byte(self))
		if !g.settles(g.target, own, Replicas) {
			t.Fatal("an answer does not settle its own key")
		}
		known := []peer.ID{self}
		for _, n := range g.peers {
			known = append(known, n.id)
		}
		for i := range 200 {
			other := fmt.Sprint("other-", offset, i)
			if g.settles(sha256.Sum256([]byte(other)), own, Replicas) {
				require.Equal(t, nearest(other, everybody, Replicas), nearest(other, known, Replicas))
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
			got := leastBeyond(distance{byte(radius)}, distance{byte(apart)})
			require.Equal(t, byte(want), got[0], "radius %d apart %d", radius, apart)
			require.True(t, bytes.Equal(got[1:], make([]byte, len(got)-1)))
		}
	}
}

// Many keys cost one lookup per region.
func TestKeysShareLookups(t *testing.T) {
	const peers, keys = 400, 10_000
	others := peersOf(peers)
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
		r.add(newRegion(key, nearest(key, others, Network), now.Add(regionTTL)))
	}
	t.Logf("%d keys on %d peers cost %d lookups", keys, peers, lookups)
	require.Less(t, lookups, peers/2)
	_, ok := r.around("key-1", self, now.Add(regionTTL))
	require.False(t, ok, "results expire")
}

// Storing a provider's records across a continent takes few lookups, and each record reaches its
// keepers.
func TestStoreLooksUpByRegion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 32, large, func(_ int, c *Config) { c.Limits.Sync = -1 })
		recs := spread(t, 100, rand.New(rand.NewPCG(8, 8)))
		cells := map[string]bool{}
		for _, r := range recs {
			for _, c := range r.Cells() {
				cells[c.String()] = true
			}
		}
		for _, o := range w.nodes[0].Store(t.Context(), recs) {
			require.NoError(t, o.Err)
			require.Equal(t, o.Stored.Of, o.Stored.On)
		}
		t.Logf("%d records of %d cells cost %d lookups", len(recs), len(cells), w.dht.asked())
		require.Less(t, w.dht.asked(), len(cells)/5)
		for _, r := range recs {
			for _, c := range r.Cells() {
				for _, n := range w.keepersOf(c) {
					_, ok := n.Index.Get(r.Name())
					require.True(t, ok)
				}
			}
		}

		set, err := w.nodes[0].closest.keepers(t.Context(), recs[0].Cells()[0])
		require.NoError(t, err)
		other := set.peers[0]
		if other == w.nodes[0].Self {
			other = set.peers[1]
		}
		w.nodes[0].closest.refreshSets(other)
		_, known := w.nodes[0].closest.regions.around(routingKey(recs[0].Cells()[0]), w.nodes[0].Self, time.Now())
		require.False(t, known, "results with a failed peer are dropped")
	})
}

// Lookups under way cannot answer for each other, so many cells begin with few of them.
// TestSilentInALookup: a peer that gives one lookup no answer, for a lost packet, keeps its cells while it is connected. A
// change would not reach it otherwise, and its own answers would call themselves complete without the change.
func TestSilentInALookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 5, func(_ int, c *Config) { c.Limits.Sync = -1 })
		asker, silent := w.nodes[0], w.nodes[3]
		r := spread(t, 1, rand.New(rand.NewPCG(8, 8)))[0]
		require.NoError(t, asker.Host.Connect(t.Context(), peer.AddrInfo{ID: silent.Self, Addrs: silent.Host.Addrs()}))
		w.dht.edit(func() { w.dht.silent = []peer.ID{silent.Self} })
		sets, err := asker.closest.keepersOf(t.Context(), r.Cells())
		require.NoError(t, err)
		require.Len(t, sets[0].peers, 5)
		require.Contains(t, sets[0].peers, silent.Self)

		require.NoError(t, asker.Host.Network().ClosePeer(silent.Self))
		asker.closest.mistaken(silent.Self, r.Cells())
		sets, err = asker.closest.keepersOf(t.Context(), r.Cells())
		require.NoError(t, err)
		require.NotContains(t, sets[0].peers, silent.Self, "without a connection it is gone")
	})
}

func TestManyCellsShareSlowLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 32, func(_ int, c *Config) { c.Limits.Sync = -1 })
		w.dht.edit(func() { w.dht.delay = 50 * time.Millisecond })
		var cells []records.CellKey
		for _, r := range spread(t, 20, rand.New(rand.NewPCG(8, 8))) {
			cells = append(cells, r.Cells()...)
		}
		few := 0
		for _, n := range w.nodes[:8] {
			before := w.dht.asked()
			_, err := n.closest.keepersOf(t.Context(), cells)
			require.NoError(t, err)
			if w.dht.asked()-before < lookups {
				few++
			}
		}
		require.GreaterOrEqual(t, few, 4, "it depends on the random peers; all at once are never fewer")
	})
}
