package keeper

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// A peer that takes over a cell after the departure of a keeper has no authority for it before a
// comparison with the remaining keepers.
func TestNewKeeperHasNoAuthority(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 30)
		r := keepertest.NewProvider(t).Sign(t, keepertest.Offer("one", keepertest.Nowhere), 1, time.Now())
		require.NoError(t, w.nodes[0].Store(t.Context(), []*records.Record{r})[0].Err)
		c := records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: geo.Global}
		order := keep.Nearest(keep.KeyOf(c), w.dht.peers, len(w.nodes))
		heir := w.node(order[keep.Replicas])
		q := cellQuery{plan: keepertest.Compile(t, query.Query{}), cells: []records.CellKey{c}}
		require.False(t, heir.answerHere(q).full, "a cell of other keepers")
		require.True(t, w.node(order[0]).answerHere(q).full)

		for _, id := range order[:2] {
			w.node(id).leave(t)
		}
		w.dht.edit(func() {
			w.dht.peers = slices.DeleteFunc(w.dht.peers, func(id peer.ID) bool { return slices.Contains(order[:2], id) })
			w.dht.fire()
		})
		require.True(t, heir.authority.Accepts(c))
		require.False(t, heir.answerHere(q).full, "a new keeper")
		for _, n := range w.nodes {
			if !n.gone {
				found, err := n.Query(t.Context(), q.plan)
				require.NoError(t, err)
				require.True(t, found.Complete, found.Reason)
				require.Len(t, found.Records, 1)
			}
		}
		time.Sleep(2 * syncGap)
		require.True(t, heir.answerHere(q).full)
		require.Equal(t, 1, heir.answerHere(q).total)
	})
}

// A peer stops to hold a cell alone with the first change of its routing table. Its epoch may stay: no member returned.
func TestFormerKeeperHoldsNothing(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 24)
		w.dht.split(slices.Clone(w.dht.peers[:5]))
		plan := keepertest.Compile(t, query.Query{})
		time.Sleep(5 * time.Minute)
		for _, n := range w.nodes[:5] {
			require.True(t, n.Holds(plan), "a settled peer of a small network")
		}
		w.dht.split() // the others join
		for _, n := range w.nodes[:5] {
			require.False(t, n.Holds(plan))
		}
	})
}
