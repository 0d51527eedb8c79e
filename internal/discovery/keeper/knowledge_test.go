package keeper

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// A client of the DHT that knows a single keeper is not alone: its own records are no answer.
func TestClientOfOneKeeperIsNotAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 2)
		keeper, client := w.nodes[0], w.nodes[1]
		w.dht.edit(func() {
			w.dht.clients = []peer.ID{client.Self}
			w.dht.fire()
		})
		_, err := client.closest.Keepers(t.Context(), records.ProviderCell(client.Self))
		require.NoError(t, err)
		require.False(t, client.authority.Alone())
		out := keeper.Store(t.Context(), []*records.Record{keepertest.NewProvider(t).Sign(t, keepertest.Offer("one"), 1, time.Now())})
		require.NoError(t, out[0].Err)
		plan := keepertest.Compile(t, keepertest.Around(100))
		_, local := client.Local(plan)
		require.False(t, local)
		found, err := client.Query(t.Context(), plan)
		require.NoError(t, err)
		require.Equal(t, []string{"one"}, keepertest.NamesOf(found.Records))
	})
}

// A client of the DHT keeps nothing: it stores nothing, counts itself nowhere and asks the keepers. It
// answers like them at once, without a comparison.
func TestClientAsksKeepers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := condition.NewSet(slog.New(slog.DiscardHandler), time.Now)
		w := newCluster(t, 4, func(i int, c *protocol.Config) {
			if i == 3 {
				c.Signals.Conditions = told
			}
		})
		client := w.nodes[3]
		client.sync.Know.SetInformed(false, time.Now())
		client.sync.Know.TellJoining(true, time.Now().Add(keep.JoiningGrace))
		require.Equal(t, []string{string(condition.Joining)}, told.ActiveNames())
		w.dht.edit(func() {
			w.dht.clients = []peer.ID{client.Self}
			w.dht.fire()
		})
		plan := keepertest.Compile(t, keepertest.Around(100))
		p := keepertest.NewProvider(t)
		r := p.Sign(t, keepertest.Offer("one"), 1, time.Now())
		out := w.nodes[0].Store(t.Context(), []*records.Record{r})
		require.Equal(t, records.Stored{On: 3, Of: 3}, out[0].Stored)
		require.Zero(t, client.Index.Len())
		_, alone := client.Local(plan)
		require.False(t, alone)
		found, err := client.Query(t.Context(), plan)
		require.NoError(t, err)
		require.True(t, found.Complete, found.Reason)
		require.Len(t, found.Records, 1)

		own := p.Sign(t, keepertest.Offer("two"), 1, time.Now())
		out = client.Store(t.Context(), []*records.Record{own})
		require.Equal(t, records.Stored{On: 3, Of: 3}, out[0].Stored)
		tomb := p.Withdraw(t, r, time.Now())
		require.NoError(t, w.nodes[1].Store(t.Context(), []*records.Record{tomb})[0].Err)
		found, err = client.Query(t.Context(), plan)
		require.NoError(t, err)
		require.True(t, found.Complete, found.Reason)
		require.Equal(t, []string{"two"}, keepertest.NamesOf(found.Records))

		q := cellQuery{plan: plan, cells: plan.Cells(coverCells)}
		require.False(t, client.answerHere(q).full)
		_, err = w.nodes[0].sync.Compare(t.Context(), client.Self, w.nodes[0].sync.Table())
		require.ErrorContains(t, err, "no keeper")
		require.False(t, client.sync.Round(t.Context()))
		time.Sleep(2 * time.Second)
		require.Empty(t, told.ActiveNames(), "it has nobody to compare with, and lacks nothing")

		w.dht.edit(func() {
			w.dht.clients = nil
			w.dht.fire()
		})
		require.False(t, client.answerHere(q).full, "a server begins as a joiner")
		time.Sleep(2 * time.Second)
		require.True(t, client.answerHere(q).full)
		require.Equal(t, 1, client.answerHere(q).total)
	})
}

// A client of the DHT never compares, and does not look for partners as often as a server that has to.
func TestClientsRestBetweenRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLimitedCluster(t, 3, protocol.Limits{})
		defer w.close()
		w.dht.edit(func() {
			w.dht.clients = []peer.ID{w.nodes[0].Self}
			w.dht.fire()
		})
		time.Sleep(time.Minute)
		require.False(t, w.nodes[0].sync.Know.Knows.Load())
		before := w.dht.asked()
		time.Sleep(5 * time.Minute)
		require.LessOrEqual(t, w.dht.asked()-before, 20)
	})
}

// A client without contact to any keeper stores nothing and says why.
func TestClientWithoutKeepers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 2)
		client := w.nodes[1]
		w.dht.edit(func() {
			w.dht.clients = []peer.ID{client.Self}
			w.dht.fire()
		})
		time.Sleep(time.Second)
		w.dht.edit(func() {
			w.dht.failure = errLookup
			w.dht.peers = []peer.ID{client.Self}
			w.dht.fire()
		})
		time.Sleep(2 * wholeTTL)
		r := keepertest.NewProvider(t).Sign(t, keepertest.Offer("one"), 1, time.Now())
		client.put(t, r)
		out := client.Store(t.Context(), []*records.Record{r})[0]
		require.ErrorContains(t, out.Err, "keeps no records")
		require.Zero(t, out.Stored.On)
		found, err := client.Query(t.Context(), keepertest.Compile(t, keepertest.Around(100)))
		require.NoError(t, err)
		require.Len(t, found.Records, 1)
		require.False(t, found.Complete)
	})
}

// Two halves of a network live on with their own registrations. After they see each other again, no
// complete answer of any peer lacks a record, at any moment.
func TestNoCompleteAnswerBeforeTheComparison(t *testing.T) {
	for _, sizes := range [][2]int{{3, 3}, {5, 2}, {1, 6}, {14, 12}} {
		t.Run(fmt.Sprint(sizes), func(t *testing.T) {
			if sizes[0] > 10 {
				atSize(t)
			}
			synctest.Test(t, func(t *testing.T) {
				w := newCluster(t, sizes[0]+sizes[1])
				everybody := w.dht.peers
				w.dht.split(everybody[:sizes[0]], everybody[sizes[0]:])
				time.Sleep(time.Minute)
				plan := keepertest.Compile(t, query.Query{Limit: 100})
				live := 0
				for i, n := range []*node{w.nodes[0], w.nodes[len(w.nodes)-1]} {
					r := keepertest.NewProvider(t).Sign(t, keepertest.Offer(fmt.Sprint("r", i)), 1, time.Now())
					require.NoError(t, n.Store(t.Context(), []*records.Record{r})[0].Err)
					live++
				}
				w.dht.split(everybody)
				asked, complete := 0, 0
				for range 40 {
					for i, n := range w.nodes {
						found, err := n.Query(t.Context(), plan)
						require.NoError(t, err)
						asked++
						if found.Complete {
							complete++
							require.Len(t, found.Records, live, "node %d", i)
						} else {
							require.NotEmpty(t, found.Reason)
						}
					}
					time.Sleep(50 * time.Millisecond)
				}
				t.Logf("%d of %d answers were complete", complete, asked)
				time.Sleep(2 * protocol.SyncEvery)
				for _, n := range w.nodes {
					found, err := n.Query(t.Context(), plan)
					require.NoError(t, err)
					require.True(t, found.Complete, found.Reason)
					require.Len(t, found.Records, live)
				}
			})
		})
	}
}

// Peers that start together know each other before any of them has compared. They are complete after
// a comparison of all with all, once their tables are stable.
func TestNewNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 3)
		for _, n := range w.nodes {
			n.sync.Know.SetInformed(false, time.Now())
		}
		c := records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: geo.Global}
		for range 5 {
			require.NotEmpty(t, w.nodes[1].authority.Doubt(c))
			time.Sleep(time.Second)
		}
		time.Sleep(protocol.SyncEvery)
		for _, n := range w.nodes {
			require.Empty(t, n.authority.Doubt(c))
		}
	})
}

// One peer that compares with nobody keeps a new network, or one that was restarted as a whole, from no complete answer for long.
func TestNewNetworkBesideASilentPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 4)
		w.nodes[3].silent()
		for _, c := range w.nodes[3].host.Network().Conns() {
			require.NoError(t, c.Close(), "no stream of before is left")
		}
		for _, n := range w.nodes {
			n.sync.Know.SetInformed(false, time.Now())
		}
		c := records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: geo.Global}
		time.Sleep(protocol.SyncEvery)
		require.Contains(t, w.nodes[0].authority.Doubt(c), "since it joined", "the silent one may come late")
		time.Sleep(time.Minute + 2*protocol.SyncEvery)
		for _, n := range w.nodes[:3] {
			require.NotContains(t, n.authority.Doubt(c), "since it joined")
		}
	})
}

// Peers that were most of a network end at once. The others answer completely again once checks have found that their machines
// refuse connections. Peers that are silent instead may be behind a cut.
func TestMostPeersEnd(t *testing.T) {
	for _, refuse := range []bool{true, false} {
		t.Run(fmt.Sprint(refuse), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newLimitedCluster(t, 18, protocol.Limits{})
				time.Sleep(time.Minute)
				left, gone := w.nodes[:7], w.nodes[7:]
				for _, n := range gone {
					require.NoError(t, n.Close())
					w.hosts.Delete(n.Self)
				}
				w.nodes = left
				defer w.close()
				w.dht.edit(func() {
					for _, n := range gone {
						w.dht.peers = slices.DeleteFunc(w.dht.peers, func(id peer.ID) bool { return id == n.Self })
						if refuse {
							w.dht.ended = append(w.dht.ended, n.Self)
						}
					}
					w.dht.fire()
				})
				plan := keepertest.Compile(t, keepertest.Around(100))
				complete := func() (n int) {
					for _, x := range left {
						if found, err := x.Query(t.Context(), plan); err == nil && found.Complete {
							n++
						}
					}
					return n
				}
				time.Sleep(10 * time.Second)
				if refuse {
					require.Equal(t, len(left), complete())
					return
				}
				require.Zero(t, complete())
				time.Sleep(10 * time.Minute)
				require.Equal(t, len(left), complete(), "the smaller network has lasted, and its table has not changed since")
			})
		})
	}
}

// The first peer of a network is complete at once.
func TestFounder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 1)
		found, err := w.nodes[0].Query(t.Context(), keepertest.Compile(t, keepertest.Around(100)))
		require.NoError(t, err)
		require.True(t, found.Complete, found.Reason)
	})
}
