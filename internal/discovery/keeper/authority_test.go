package keeper

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// A peer that takes over a cell after the departure of a keeper has no authority for it before a
// comparison with the remaining keepers.
func TestNewKeeperHasNoAuthority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 30)
		r := newProvider(t).sign(t, offer("one", nowhere), 1, time.Now())
		require.NoError(t, w.nodes[0].Store(t.Context(), []*records.Record{r})[0].Err)
		c := records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: geo.Global}
		order := nearest(routingKey(c), w.dht.peers, len(w.nodes))
		heir := w.node(order[Replicas])
		q := cellQuery{plan: compile(t, query.Query{}), cells: []records.CellKey{c}}
		require.False(t, heir.asker.answerHere(q).full, "a cell of other keepers")
		require.True(t, w.node(order[0]).asker.answerHere(q).full)

		for _, id := range order[:2] {
			w.node(id).leave(t)
		}
		w.dht.edit(func() {
			w.dht.peers = slices.DeleteFunc(w.dht.peers, func(id peer.ID) bool { return slices.Contains(order[:2], id) })
			w.dht.fire()
		})
		heir.authority.own.Purge() // as without an earlier question
		require.True(t, heir.authority.accepts(c))
		require.False(t, heir.asker.answerHere(q).full, "a new keeper")
		for _, n := range w.nodes {
			if !n.gone {
				found, err := n.Query(t.Context(), q.plan)
				require.NoError(t, err)
				require.True(t, found.Complete, found.Reason)
				require.Len(t, found.Records, 1)
			}
		}
		time.Sleep(2 * syncGap)
		require.True(t, heir.asker.answerHere(q).full)
		require.Equal(t, 1, heir.asker.answerHere(q).total)
	})
}

// A comparison counts as long as this peer remains a keeper of the cell.
func TestComparisonCountsWhileKeeper(t *testing.T) {
	w := newLightCluster(t, 30)
	defer w.close()
	c := records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: geo.Global}
	key := routingKey(c)
	order := nearest(key, w.dht.peers, len(w.nodes))
	n := w.node(order[Replicas]) // the first peer that is not a keeper
	others := slices.DeleteFunc(slices.Clone(order), func(id peer.ID) bool { return id == n.Self })
	tell := func(known, done []peer.ID) {
		met := make(map[peer.ID]partner)
		for _, id := range done {
			met[id] = partner{informed: true}
			n.sync.know.met(id, true)
		}
		n.sync.keep(&syncRound{table: &tableState{peerTable: newPeerTable(n.Self, known, false)}, done: met})
	}
	n.Limits.Sync = syncEvery
	require.False(t, n.sync.compared(c), "before the first round")
	tell(others, others)
	require.False(t, n.sync.compared(c), "not a keeper at that time")
	tell(others[1:], nil)
	require.False(t, n.sync.compared(c), "a round without answers")
	tell(others[1:], others[15:])
	require.False(t, n.sync.compared(c), "with peers that do not keep the cell")
	tell(others[1:], others[1:2])
	require.True(t, n.sync.compared(c))
	tell(others[1:], nil)
	require.True(t, n.sync.compared(c), "one comparison suffices")
	tell(others, others)
	require.False(t, n.sync.compared(c), "not a keeper in between")
	tell(others[1:], nil)
	require.False(t, n.sync.compared(c))
	for range 3 * roundsKept {
		tell(others[1:], others[1:])
	}
	require.Len(t, n.sync.last.Load().before, roundsKept)
	require.True(t, n.sync.compared(c))
}

// In a small network a peer has authority while it is alone, and otherwise after a comparison with an
// informed keeper, or with all peers of a new network.
func TestAuthorityInASmallNetwork(t *testing.T) {
	w := newLightCluster(t, 3)
	defer w.close()
	n, c := w.nodes[0], records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: geo.Global}
	n.Limits.Sync = syncEvery
	require.False(t, n.sync.compared(c), "before the first round")
	n.sync.know.met(w.nodes[1].Self, false)
	require.False(t, n.sync.compared(c), "with another joiner")
	n.sync.know.met(w.nodes[2].Self, true)
	require.True(t, n.sync.compared(c))

	late := w.join("late", Limits{Sync: -1})
	require.False(t, n.sync.compared(c), "a newcomer may have records")
	n.sync.know.met(late.Self, false)
	require.True(t, n.sync.compared(c))
}

// A peer stops to hold a cell alone with the first change of its routing table. Its epoch may stay: no member returned.
func TestFormerKeeperHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 24)
		w.dht.split(slices.Clone(w.dht.peers[:5]))
		plan := compile(t, query.Query{})
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
