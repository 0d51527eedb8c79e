package keeper

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/route"
	"github.com/blackhole/blackhole/pkg/records"
)

// lookupTime is far longer than a delivery.
const lookupTime = time.Second

// foreseeing returns a network of 30 peers with slow lookups, and a record.
func foreseeing(t *testing.T, foresee func(found []peer.ID) []peer.ID) (*cluster, *records.Record) {
	w := newCluster(t, 30, never)
	w.dht.edit(func() { w.dht.delay, w.dht.foresee = lookupTime, foresee })
	return w, keepertest.NewProvider(t).Sign(t, keepertest.Offer("one", keepertest.Nowhere), 1, time.Now())
}

// publish stores a record at its keepers, checks that they have it and that the outcome counts no other peer, and returns the time of
// the Store.
func (w *cluster) publish(t *testing.T, r *records.Record) time.Duration {
	t.Helper()
	start := time.Now()
	o := w.nodes[0].Store(t.Context(), []*records.Record{r})[0]
	took := time.Since(start)
	require.NoError(t, o.Err)
	keepers := map[*node]bool{}
	for _, c := range r.Cells() {
		for _, n := range w.keepersOf(c) {
			keepers[n] = true
		}
	}
	require.Equal(t, records.Stored{On: len(keepers), Of: len(keepers)}, o.Stored)
	for n := range keepers {
		require.Equal(t, 1, n.Index.Len())
	}
	return took
}

// The records are at all keepers when the lookups end, and each keeper got them once.
func TestStoreGoesAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := foreseeing(t, func(found []peer.ID) []peer.ID { return found })
		require.Equal(t, lookupTime, w.publish(t, r))
		for _, n := range w.nodes {
			require.LessOrEqual(t, n.counts.Operations("serve_store"), 1)
		}
	})
}

// Records with common cells go ahead too.
func TestSeveralRecordsGoAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := foreseeing(t, func(found []peer.ID) []peer.ID { return found })
		start := time.Now()
		for _, o := range w.nodes[0].Store(t.Context(), keepertest.Batch(t, keepertest.NewProvider(t), 2, start)) {
			require.NoError(t, o.Err)
			require.Equal(t, o.Stored.Of, o.Stored.On)
		}
		require.Equal(t, lookupTime, time.Since(start))
	})
}

// The end of a lookup decides who the keepers are, not what was likely.
func TestLikelyKeepersDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := foreseeing(t, func(found []peer.ID) []peer.ID { return found[1:] })
		require.Greater(t, w.publish(t, r), lookupTime, "the nearest keepers get the record after the lookups")
	})
}

// A likely keeper that gives no answer costs no time.
func TestSilentLikelyKeeperCostsNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := foreseeing(t, func(found []peer.ID) []peer.ID { return found })
		i := slices.IndexFunc(w.nodes, func(n *node) bool { return n.Self == route.Nearest(route.KeyOf(r.Cells()[0]), w.dht.peers, 1)[0] })
		if i == 0 {
			i = 1 + slices.IndexFunc(w.nodes[1:], func(n *node) bool { return n.Self == route.Nearest(route.KeyOf(r.Cells()[0]), w.dht.peers, 2)[1] })
		}
		gone := w.nodes[i]
		gone.silent()
		w.dht.edit(func() { w.dht.silent = []peer.ID{gone.Self} })
		w.nodes = slices.Delete(w.nodes, i, i+1)
		t.Cleanup(func() { gone.leave(t) })
		require.Less(t, w.publish(t, r), lookupTime+100*time.Millisecond)
		require.Zero(t, gone.Index.Len())
	})
}

// Many records share lookups; they do not go ahead.
func TestManyRecordsDoNotGoAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := foreseeing(t, func(found []peer.ID) []peer.ID { return found })
		start := time.Now()
		recs := keepertest.Batch(t, keepertest.NewProvider(t), aheadRecords+1, start)
		w.nodes[0].Store(t.Context(), recs)
		require.Greater(t, time.Since(start), lookupTime)
	})
}
