package keeper

import (
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// tableOf returns a routing table of a small network.
func tableOf(ids ...peer.ID) *peerTable { return newPeerTable("self", ids, true) }

func everywhere() (radius, bool) { return radius{}, true }

// A peer has no knowledge before its first comparison with an informed keeper, and lacks some while it
// has not compared with a newcomer, or with a peer that returned.
func TestKnowledge(t *testing.T) {
	now := time.Now()
	conditions := condition.NewSet(slog.New(slog.DiscardHandler), func() time.Time { return now })
	w := newKnowledge(conditions, now)
	doubt := func() string { return w.doubt(everywhere, now) }
	w.observe(tableOf("a", "b", "c"), now)
	require.Contains(t, doubt(), "since it joined")
	ids, _ := w.due(10, now)
	require.Equal(t, []peer.ID{"a", "b", "c"}, ids)
	w.met("a", false)
	require.Contains(t, doubt(), "since it joined", "a joiner has not informed anybody")
	w.met("b", true)
	require.Contains(t, doubt(), "with 1 keepers")
	w.met("c", false)
	require.Empty(t, doubt())

	w.observe(tableOf("a", "b", "c", "d"), now)
	require.Contains(t, doubt(), "joined or returned")
	w.missed("d", true, now)
	require.NotEmpty(t, doubt(), "it refused")
	_, next := w.due(0, now)
	require.Equal(t, now.Add(meetFirst), next)
	now = now.Add(meetFor)
	_, _ = w.due(0, now)
	require.Empty(t, doubt(), "who refuses for a minute delays nobody")

	w.missed("a", false, now)
	require.Empty(t, doubt(), "it is silent: perhaps dead")
	w.heard("a", now)
	require.Contains(t, doubt(), "joined or returned")
	ago, recent := w.returned(now)
	require.True(t, recent)
	require.Zero(t, ago)
	w.met("a", true)
	require.Empty(t, doubt())
	_, recent = w.returned(now.Add(regainDoubt))
	require.False(t, recent)
}

// A peer that loses most of its network says so until most have returned, or until the smaller network
// has lasted.
func TestIsolation(t *testing.T) {
	now := time.Now()
	conditions := condition.NewSet(slog.New(slog.DiscardHandler), func() time.Time { return now })
	fresh := func() *knowledge {
		w := newKnowledge(conditions, now)
		w.observe(tableOf("a", "b", "c", "d", "e", "f", "g"), now)
		for _, id := range []peer.ID{"a", "b", "c", "d", "e", "f", "g"} {
			w.met(id, true)
		}
		return w
	}
	w := fresh()
	epoch := w.epoch.Load()
	w.observe(tableOf("a", "b", "c", "d"), now)
	require.Empty(t, w.doubt(everywhere, now))
	require.Equal(t, epoch, w.epoch.Load())
	w.observe(tableOf("a", "b"), now.Add(10*time.Second))
	require.Contains(t, w.doubt(everywhere, now.Add(10*time.Second)), "lost contact with 5 of 7 peers")
	require.Greater(t, w.epoch.Load(), epoch)
	require.Equal(t, []string{"isolated"}, conditions.ActiveNames())

	w.observe(tableOf("a", "b", "c", "d"), now.Add(20*time.Second))
	require.Empty(t, conditions.ActiveNames())
	require.Contains(t, w.doubt(everywhere, now), "joined or returned", "before the comparison")
	w.met("c", true)
	w.met("d", true)
	require.Empty(t, w.doubt(everywhere, now))

	w = fresh()
	w.observe(tableOf("a"), now)
	require.NotEmpty(t, w.doubt(everywhere, now))
	w.observe(tableOf("a", "h"), now.Add(lostFor+time.Second))
	w.met("h", false)
	require.Empty(t, w.doubt(everywhere, now.Add(lostFor+time.Second)), "the smaller network has lasted")

	w = fresh()
	for i, left := range [][]peer.ID{{"a", "b", "c", "d", "e"}, {"a", "b", "c"}, {"a", "b"}} {
		now = now.Add(2 * isolatedIn)
		w.observe(tableOf(left...), now)
		require.Empty(t, w.doubt(everywhere, now), i)
	}
	w.observe(tableOf(), now)
	require.NotEmpty(t, w.doubt(everywhere, now), "all are lost")
}

// A client of the DHT that knows a single keeper is not alone: its own records are no answer.
func TestClientOfOneKeeperIsNotAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 2)
		keeper, client := w.nodes[0], w.nodes[1]
		w.dht.edit(func() {
			w.dht.clients = []peer.ID{client.Self}
			w.dht.fire()
		})
		_, err := client.closest.lookup("")
		require.NoError(t, err)
		require.False(t, client.closest.alone())
		out := keeper.Store(t.Context(), []*records.Record{newProvider(t).sign(t, offer("one"), 1, time.Now())})
		require.NoError(t, out[0].Err)
		plan := compile(t, around(100))
		_, local := client.Local(plan)
		require.False(t, local)
		found, err := client.Query(t.Context(), plan)
		require.NoError(t, err)
		require.Equal(t, []string{"one"}, namesOf(found.Records))
	})
}

// A client of the DHT keeps nothing: it stores nothing, counts itself nowhere and asks the keepers. It
// answers like them at once, without a comparison.
func TestClientAsksKeepers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 4)
		client := w.nodes[3]
		w.dht.edit(func() {
			w.dht.clients = []peer.ID{client.Self}
			w.dht.fire()
		})
		plan := compile(t, around(100))
		p := newProvider(t)
		r := p.sign(t, offer("one"), 1, time.Now())
		out := w.nodes[0].Store(t.Context(), []*records.Record{r})
		require.Equal(t, records.Stored{On: 3, Of: 3}, out[0].Stored)
		require.Zero(t, client.Index.Len())
		_, alone := client.Local(plan)
		require.False(t, alone)
		found, err := client.Query(t.Context(), plan)
		require.NoError(t, err)
		require.True(t, found.Complete, found.Reason)
		require.Len(t, found.Records, 1)

		own := p.sign(t, offer("two"), 1, time.Now())
		out = client.Store(t.Context(), []*records.Record{own})
		require.Equal(t, records.Stored{On: 3, Of: 3}, out[0].Stored)
		tomb := p.withdraw(t, r, time.Now())
		require.NoError(t, w.nodes[1].Store(t.Context(), []*records.Record{tomb})[0].Err)
		found, err = client.Query(t.Context(), plan)
		require.NoError(t, err)
		require.True(t, found.Complete, found.Reason)
		require.Equal(t, []string{"two"}, namesOf(found.Records))

		q := cellQuery{plan: plan, cells: plan.Cells(coverCells)}
		require.False(t, client.asker.answerHere(q).full)
		_, err = w.nodes[0].sync.compare(t.Context(), client.Self, w.nodes[0].sync.table())
		require.ErrorContains(t, err, "no keeper")
		require.False(t, client.sync.round(t.Context()))

		w.dht.edit(func() {
			w.dht.clients = nil
			w.dht.fire()
		})
		require.False(t, client.asker.answerHere(q).full, "a server begins as a joiner")
		time.Sleep(2 * time.Second)
		require.True(t, client.asker.answerHere(q).full)
		require.Equal(t, 1, client.asker.answerHere(q).total)
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
		r := newProvider(t).sign(t, offer("one"), 1, time.Now())
		client.put(t, r)
		out := client.Store(t.Context(), []*records.Record{r})[0]
		require.ErrorContains(t, out.Err, "keeps no records")
		require.Zero(t, out.Stored.On)
		found, err := client.Query(t.Context(), compile(t, around(100)))
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
			synctest.Test(t, func(t *testing.T) {
				w := newCluster(t, sizes[0]+sizes[1])
				everybody := w.dht.peers
				w.dht.split(everybody[:sizes[0]], everybody[sizes[0]:])
				time.Sleep(time.Minute)
				plan := compile(t, query.Query{Limit: 100})
				live := 0
				for i, n := range []*node{w.nodes[0], w.nodes[len(w.nodes)-1]} {
					r := newProvider(t).sign(t, offer(fmt.Sprint("r", i)), 1, time.Now())
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
				time.Sleep(2 * syncEvery)
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
			n.sync.know.setInformed(false, time.Now())
		}
		c := records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: geo.Global}
		for range 5 {
			require.False(t, w.nodes[1].sync.compared(c))
			time.Sleep(time.Second)
		}
		time.Sleep(syncEvery)
		for _, n := range w.nodes {
			require.True(t, n.sync.compared(c))
		}
	})
}

// The first peer of a network is complete at once.
func TestFounder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 1)
		found, err := w.nodes[0].Query(t.Context(), compile(t, around(100)))
		require.NoError(t, err)
		require.True(t, found.Complete, found.Reason)
	})
}

// A process that was suspended has missed changes, although its connections look alive.
func TestSuspensionEndsKnowledge(t *testing.T) {
	now := time.Now()
	w := newKnowledge(nil, now)
	w.observe(tableOf("a", "b"), now)
	w.met("a", true)
	w.met("b", true)
	w.alive(now)
	for range 5 { // a busy machine
		now = now.Add(suspendedFor)
		w.alive(now)
	}
	require.Empty(t, w.doubt(everywhere, now))
	epoch := w.epoch.Load()

	now = now.Add(suspendedFor + time.Second)
	w.alive(now)
	require.Contains(t, w.doubt(everywhere, now), "with 2 keepers")
	require.Greater(t, w.epoch.Load(), epoch)
	ids, _ := w.due(10, now)
	require.Equal(t, []peer.ID{"a", "b"}, ids)
	w.met("a", true)
	w.met("b", true)
	require.Empty(t, w.doubt(everywhere, now))
	w.alive(now.Add(-time.Hour)) // the clock was set back
	require.Empty(t, w.doubt(everywhere, now))
}
