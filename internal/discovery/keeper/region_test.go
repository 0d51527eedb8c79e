package keeper

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/pkg/records"
)

// Storing a provider's records across a continent takes few lookups, and each record reaches its
// keepers.
func TestStoreLooksUpByRegion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 32, large, func(_ int, c *protocol.Config) { c.Limits.Sync = -1 })
		recs := keepertest.Spread(t, 100, rand.New(rand.NewPCG(8, 8)))
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

		set, err := w.nodes[0].closest.Keepers(t.Context(), recs[0].Cells()[0])
		require.NoError(t, err)
		other := set.Peers[0]
		if other == w.nodes[0].Self {
			other = set.Peers[1]
		}
		w.nodes[0].closest.Suspect(other)
		before := w.dht.asked()
		time.Sleep(failedTTL)
		_, err = w.nodes[0].closest.Keepers(t.Context(), recs[0].Cells()[0])
		require.NoError(t, err)
		synctest.Wait()
		require.Greater(t, w.dht.asked(), before, "results with a failed peer are dropped")
	})
}

// TestSilentInALookup: a peer that gives one lookup no answer, for a lost packet, keeps its cells while it is connected. A
// change would not reach it otherwise, and its own answers would call themselves complete without the change.
func TestSilentInALookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 5, func(_ int, c *protocol.Config) { c.Limits.Sync = -1 })
		asker, silent := w.nodes[0], w.nodes[3]
		r := keepertest.Spread(t, 1, rand.New(rand.NewPCG(8, 8)))[0]
		require.NoError(t, asker.host.Connect(t.Context(), peer.AddrInfo{ID: silent.Self, Addrs: silent.host.Addrs()}))
		w.dht.edit(func() { w.dht.silent = []peer.ID{silent.Self} })
		sets, err := asker.closest.KeepersOf(t.Context(), r.Cells())
		require.NoError(t, err)
		require.Len(t, sets[0].Peers, 5)
		require.Contains(t, sets[0].Peers, silent.Self)

		require.NoError(t, asker.host.Network().ClosePeer(silent.Self))
		asker.closest.Forget(silent.Self, r.Cells())
		sets, err = asker.closest.KeepersOf(t.Context(), r.Cells())
		require.NoError(t, err)
		require.NotContains(t, sets[0].Peers, silent.Self, "without a connection it is gone")
	})
}

// Lookups under way cannot answer for each other, so many cells begin with few of them. Of some 700 networks one has a cell whose peers
// are so close by chance that each peer looks around first: two in a row are none.
func TestManyCellsShareSlowLookups(t *testing.T) {
	few := 0
	for try := 0; try < 2 && few < 4; try++ {
		synctest.Test(t, func(t *testing.T) {
			w := newCluster(t, 32, func(_ int, c *protocol.Config) { c.Limits.Sync = -1 })
			w.dht.edit(func() { w.dht.delay = 50 * time.Millisecond })
			var cells []records.CellKey
			for _, r := range keepertest.Spread(t, 20, rand.New(rand.NewPCG(8, 8))) {
				cells = append(cells, r.Cells()...)
			}
			few = 0
			for _, n := range w.nodes[:8] {
				before := w.dht.asked()
				_, err := n.closest.KeepersOf(t.Context(), cells)
				require.NoError(t, err)
				if w.dht.asked()-before < lookups {
					few++
				}
			}
		})
	}
	require.GreaterOrEqual(t, few, 4, "it depends on the random peers; all at once are never fewer")
}
