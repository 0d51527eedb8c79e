package keeper

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

func TestAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 1)
		a, p := w.nodes[0], keepertest.NewProvider(t)
		recs := keepertest.Batch(t, p, 3, time.Now())
		for _, o := range a.Store(t.Context(), recs) {
			require.NoError(t, o.Err)
			require.Equal(t, records.Stored{On: 1, Of: 1, ThisPeerOnly: true}, o.Stored)
		}
		found, err := a.Query(t.Context(), keepertest.Compile(t, keepertest.Around(10)))
		require.NoError(t, err)
		require.Equal(t, []string{"s000", "s001", "s002"}, keepertest.NamesOf(found.Records))
		require.True(t, found.Local)
		require.True(t, found.Complete, found.Reason)
		require.Equal(t, 3, found.Total)
	})
}

// In a small network every peer keeps every cell, and one lookup serves all cells.
func TestSmallNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 4)
		p := keepertest.NewProvider(t)
		recs := keepertest.Batch(t, p, 100, time.Now())
		for i, o := range w.nodes[0].Store(t.Context(), recs) {
			require.NoError(t, o.Err, i)
			require.Equal(t, records.Stored{On: 4, Of: 4}, o.Stored)
		}
		require.Equal(t, 1, w.dht.asked())
		for _, n := range w.nodes {
			require.Equal(t, 100, n.Index.Len())
			q := keepertest.Around(10)
			q.Limit = 5
			found, err := n.Query(t.Context(), keepertest.Compile(t, q))
			require.NoError(t, err)
			require.True(t, found.Complete, found.Reason)
			require.False(t, found.Local)
			require.Equal(t, []string{"s000", "s001", "s002", "s003", "s004"}, keepertest.NamesOf(found.Records))
			require.Equal(t, 100, found.Total)
			require.NotEmpty(t, found.Notes)
		}
	})
}

// A new peer holds no records; it must not return an empty answer.
func TestJoinedPeerAsksOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 3)
		recs := keepertest.Batch(t, keepertest.NewProvider(t), 5, time.Now())
		joined := w.nodes[2]
		for _, r := range recs {
			for _, n := range w.nodes[:2] {
				_, err := n.Index.Put(r, time.Now())
				require.NoError(t, err)
			}
		}
		found, err := joined.Query(t.Context(), keepertest.Compile(t, keepertest.Around(10)))
		require.NoError(t, err)
		require.Len(t, found.Records, 5)
		require.True(t, found.Complete, found.Reason)
		require.Equal(t, 5, joined.Index.Len(), "the index has the results of a query")
	})
}

// In a large network a record is on the ten peers closest to each of its cells and on no other
// peer.
func TestLargeNetwork(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 30)
		r := keepertest.NewProvider(t).Sign(t, keepertest.Offer("one", keepertest.Nowhere), 1, time.Now())
		o := w.nodes[0].Store(t.Context(), []*records.Record{r})[0]
		require.NoError(t, o.Err)
		keepers := map[*node]bool{}
		for _, c := range r.Cells() {
			for _, n := range w.keepersOf(c) {
				keepers[n] = true
			}
		}
		require.Equal(t, records.Stored{On: len(keepers), Of: len(keepers)}, o.Stored)
		require.Less(t, len(keepers), 30)
		for _, n := range w.nodes {
			require.Equal(t, keepers[n], n.Index.Len() == 1)
		}
		for _, n := range w.nodes {
			found, err := n.Query(t.Context(), keepertest.Compile(t, query.Query{}))
			require.NoError(t, err)
			require.True(t, found.Complete, found.Reason)
			require.Equal(t, []string{"one"}, keepertest.NamesOf(found.Records))
		}
	})
}

// After the loss of a third of the peers every query still finds all records.
func TestChurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 24)
		recs := keepertest.Batch(t, keepertest.NewProvider(t), 20, time.Now())
		for _, o := range w.nodes[0].Store(t.Context(), recs) {
			require.NoError(t, o.Err)
			require.Equal(t, o.Stored.Of, o.Stored.On)
		}
		for _, n := range w.nodes[16:] { // lost, but still in all routing tables
			n.leave(t)
		}
		for _, n := range w.nodes[:16] {
			found, err := n.Query(t.Context(), keepertest.Compile(t, keepertest.Around(100)))
			require.NoError(t, err)
			require.Len(t, found.Records, 20, found.Reason)
		}
	})
}

func TestTombstoneWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 3)
		p := keepertest.NewProvider(t)
		r := p.Sign(t, keepertest.Offer("one"), 1, time.Now())
		w.nodes[0].Store(t.Context(), []*records.Record{r})
		tomb := p.Withdraw(t, r, time.Now())
		_, err := w.nodes[1].Index.Put(tomb, time.Now()) // only the asker has the tombstone
		require.NoError(t, err)
		found, err := w.nodes[1].Query(t.Context(), keepertest.Compile(t, keepertest.Around(10)))
		require.NoError(t, err)
		require.Empty(t, found.Records)

		o := w.nodes[0].Store(t.Context(), []*records.Record{tomb})[0]
		require.Equal(t, records.Stored{On: 3, Of: 3}, o.Stored)
		o = w.nodes[2].Store(t.Context(), []*records.Record{r})[0]
		require.Equal(t, records.Stored{On: 0, Of: 3}, o.Stored)
		require.ErrorIs(t, o.Err, fault.Exists)
		require.Equal(t, tomb.Sequence(), fault.ValueOf(o.Err))
	})
}

// The provider's quota applies at every keeper, and the outcome reports it.
func TestProviderQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 3, func(_ int, c *protocol.Config) { c.Index = index.New(index.Config{MaxPerProvider: 10}) })
		outcomes := w.nodes[0].Store(t.Context(), keepertest.Batch(t, keepertest.NewProvider(t), 12, time.Now()))
		for _, o := range outcomes[:10] {
			require.NoError(t, o.Err)
			require.Equal(t, records.Stored{On: 3, Of: 3}, o.Stored)
		}
		for _, o := range outcomes[10:] {
			require.ErrorIs(t, o.Err, fault.LimitReached)
			require.Equal(t, records.Stored{On: 0, Of: 3}, o.Stored)
		}
		require.Equal(t, 2, w.nodes[1].counts.Refusals("limit_reached"))
	})
}

// After a failed lookup only this peer stores the record, and the outcome asks for more keepers.
func TestLookupFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 1)
		w.dht.edit(func() { w.dht.failure = errLookup })
		a := w.nodes[0]
		r := keepertest.NewProvider(t).Sign(t, keepertest.Offer("one"), 1, time.Now())
		o := a.Store(t.Context(), []*records.Record{r})[0]
		require.NoError(t, o.Err)
		require.Equal(t, records.Stored{On: 1, Of: 2, ThisPeerOnly: true}, o.Stored)
		found, err := a.Query(t.Context(), keepertest.Compile(t, keepertest.Around(10)))
		require.NoError(t, err)
		require.Len(t, found.Records, 1)
		require.False(t, found.Complete)
		require.False(t, found.Local)
		require.Contains(t, found.Reason, errLookup.Error())

		w.dht.edit(func() { w.dht.failure = nil })
		time.Sleep(uncertainTTL)
		found, err = a.Query(t.Context(), keepertest.Compile(t, keepertest.Around(10)))
		require.NoError(t, err)
		require.True(t, found.Complete, found.Reason)
	})
}

// A lookup does not exceed its deadline: the known peers count.
func TestSlowLookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 3)
		w.dht.edit(func() { w.dht.delay = time.Hour })
		start := time.Now()
		found, err := w.nodes[0].Query(t.Context(), keepertest.Compile(t, keepertest.Around(10)))
		require.NoError(t, err)
		require.Empty(t, found.Records)
		require.False(t, found.Complete)
		require.Less(t, time.Since(start), 2*time.Second)
	})
}

func TestOperationsEndWithCloseAndCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 2)
		w.dht.edit(func() { w.dht.delay = time.Hour })
		a := w.nodes[0]
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := a.Query(ctx, keepertest.Compile(t, keepertest.Around(10)))
		require.ErrorIs(t, err, fault.Timeout)

		done := make(chan error)
		go func() {
			_, err := a.Query(t.Context(), keepertest.Compile(t, keepertest.Around(10)))
			done <- err
		}()
		synctest.Wait()
		require.NoError(t, a.Close())
		require.Error(t, <-done)

		_, err = a.Query(t.Context(), keepertest.Compile(t, keepertest.Around(10)))
		require.ErrorIs(t, err, fault.Unavailable)
		r := keepertest.NewProvider(t).Sign(t, keepertest.Offer("one"), 1, time.Now())
		require.ErrorIs(t, a.Store(t.Context(), []*records.Record{r})[0].Err, fault.Unavailable)
		_, err = a.Resolve(t.Context(), r.Key())
		require.ErrorIs(t, err, fault.Unavailable)
	})
}

// Many queries share few streams.
func TestStreamsAreReused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 2, func(_ int, c *protocol.Config) { c.Limits.Sync = -1 })
		plan := keepertest.Compile(t, query.Query{})
		for range 50 {
			_, err := w.nodes[0].Query(t.Context(), plan)
			require.NoError(t, err)
		}
		synctest.Wait()
		require.Len(t, w.nodes[1].inbound(), 1)
		time.Sleep(idleFor + time.Second)
		require.Empty(t, w.nodes[1].inbound())

		_, err := w.nodes[0].Query(t.Context(), plan)
		require.NoError(t, err)
		w.nodes[1].cut() // the next request finds its idle stream dead
		time.Sleep(100 * time.Millisecond)
		found, err := w.nodes[0].Query(t.Context(), plan)
		require.NoError(t, err)
		require.True(t, found.Complete, found.Reason)
	})
}

// Keeper sets are cached for a while, renewed in the background, and looked up again after a join.
func TestKeeperSetsAreCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 3)
		a, plan := w.nodes[0], keepertest.Compile(t, keepertest.Around(100))
		ask := func(within time.Duration) {
			start := time.Now()
			_, err := a.Query(t.Context(), plan)
			require.NoError(t, err)
			require.Less(t, time.Since(start), within)
		}
		w.dht.edit(func() { w.dht.delay = time.Second })
		ask(1100 * time.Millisecond)
		require.Equal(t, 1, w.dht.asked())
		time.Sleep(wholeTTL - 3*time.Second)
		ask(100 * time.Millisecond)
		require.Equal(t, 1, w.dht.asked())
		time.Sleep(3 * time.Second)
		ask(100 * time.Millisecond)
		time.Sleep(2 * time.Second)
		require.Equal(t, 2, w.dht.asked(), "one lookup for all the cells")
		ask(100 * time.Millisecond)
		require.Equal(t, 2, w.dht.asked())

		w.dht.edit(func() { w.dht.peers = append(w.dht.peers, keepertest.NewProvider(t).Id) })
		set, err := a.closest.Keepers(t.Context(), plan.Cells(1)[0])
		require.NoError(t, err)
		require.Len(t, set.Peers, 4)
		require.Equal(t, 3, w.dht.asked())

		w.dht.edit(func() { w.dht.peers = append(w.dht.peers, keepertest.PeersOf(30)...) })
		set, err = a.closest.Keepers(t.Context(), plan.Cells(1)[0])
		require.NoError(t, err)
		require.Len(t, set.Peers, keep.Replicas, "the network is not small any more")
		a.closest.Suspect(set.Peers[slices.IndexFunc(set.Peers, func(id peer.ID) bool { return id != a.Self })])
		time.Sleep(failedTTL)
		before := w.dht.asked()
		_, err = a.closest.Keepers(t.Context(), plan.Cells(1)[0])
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		require.Equal(t, before+1, w.dht.asked(), "the set has a failed peer")
		time.Sleep(3 * keeperSetTTL)
		_, err = a.closest.Keepers(t.Context(), plan.Cells(1)[0])
		require.NoError(t, err)
		require.Equal(t, before+2, w.dht.asked())
	})
}
