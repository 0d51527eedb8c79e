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

// Whoever takes a cell over when one of its keepers leaves does not speak for it before it
// has compared it with those that stay.
func TestNewKeeperIsSilentUntilItHasCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 30)
		r := newProvider(t).sign(t, offer("one", nowhere), 1, time.Now())
		require.NoError(t, w.nodes[0].Store(t.Context(), []*records.Record{r})[0].Err)
		c := records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: geo.Global}
		order := nearest(routingKey(c), w.dht.peers, len(w.nodes))
		heir := w.node(order[Replicas])
		q := cellQuery{plan: compile(t, query.Query{}), cells: []records.CellKey{c}}
		require.False(t, heir.answerHere(q).full, "not its cell")
		require.True(t, w.node(order[0]).answerHere(q).full)

		for _, id := range order[:2] {
			w.node(id).leave(t)
		}
		w.dht.edit(func() {
			w.dht.peers = slices.DeleteFunc(w.dht.peers, func(id peer.ID) bool { return slices.Contains(order[:2], id) })
			w.dht.fire()
		})
		heir.closest.own.Purge() // as if nobody had asked before
		require.True(t, heir.closest.accepts(c))
		require.False(t, heir.answerHere(q).full, "it has only just become a keeper")
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

// What a round compared counts for as long as this peer has kept the cell ever since.
func TestComparedIsRemembered(t *testing.T) {
	w := newLightWorld(t, 30)
	defer w.close()
	c := records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: geo.Global}
	key := routingKey(c)
	order := nearest(key, w.dht.peers, len(w.nodes))
	n := w.node(order[Replicas]) // the first that does not keep it
	others := slices.DeleteFunc(slices.Clone(order), func(id peer.ID) bool { return id == n.Self })
	tell := func(known, done []peer.ID) {
		met := make(map[peer.ID]bool)
		for _, id := range done {
			met[id] = false
		}
		n.sync.keep(&syncRound{table: &tableState{peerTable: newPeerTable(n.Self, known, false)}, done: met})
	}
	n.Limits.Sync = syncEvery
	require.False(t, n.sync.compared(c), "before the first round")
	tell(others, others)
	require.False(t, n.sync.compared(c), "it was no keeper then")
	tell(others[1:], nil)
	require.False(t, n.sync.compared(c), "a round in which nobody answered")
	tell(others[1:], others[15:])
	require.False(t, n.sync.compared(c), "with peers that are no keepers")
	tell(others[1:], others[1:2])
	require.True(t, n.sync.compared(c))
	tell(others[1:], nil)
	require.True(t, n.sync.compared(c), "once is enough")
	tell(others, others)
	require.False(t, n.sync.compared(c), "another one was back for a while")
	tell(others[1:], nil)
	require.False(t, n.sync.compared(c))
	for range 3 * roundsKept {
		tell(others[1:], others[1:])
	}
	require.Len(t, n.sync.last.Load().before, roundsKept)
	require.True(t, n.sync.compared(c))
}

// In a small network whoever has met nobody to compare with speaks: everybody is brought
// everything. Once it has met some it waits for a comparison.
func TestNewcomersToASmallNetworkSpeak(t *testing.T) {
	w := newLightWorld(t, 3)
	defer w.close()
	n, c := w.nodes[0], records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: geo.Global}
	n.Limits.Sync = syncEvery
	require.True(t, n.sync.compared(c), "before the first round")
	n.sync.keep(&syncRound{table: &tableState{peerTable: newPeerTable(n.Self, nil, true)}})
	require.True(t, n.sync.compared(c), "a round with nobody in sight")
	both := newPeerTable(n.Self, []peer.ID{w.nodes[1].Self, w.nodes[2].Self}, true)
	n.sync.keep(&syncRound{table: &tableState{peerTable: both}})
	require.False(t, n.sync.compared(c), "nobody answered")
	n.sync.keep(&syncRound{table: &tableState{peerTable: both}, done: map[peer.ID]bool{w.nodes[1].Self: true}})
	require.True(t, n.sync.compared(c))
}
