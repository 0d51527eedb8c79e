package keeper

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// mute makes a node accept all streams and answer nobody, while it asks all others to compare until ctx ends.
func (w *lightCluster) mute(ctx context.Context, n *lightNode, asking *sync.WaitGroup) {
	n.host.SetStreamHandler("", func(s network.Stream) { _, _ = io.Copy(io.Discard, s) })
	asking.Go(func() {
		protocol.Every(ctx, 3*time.Second, func() {
			for _, id := range slices.Clone(w.dht.peers) {
				if id == n.Self {
					continue
				}
				ctx, cancel := context.WithTimeout(ctx, time.Second)
				req := &pb.SyncRequest{Whole: true, Sums: make([]byte, 32)}
				_, _, _ = n.client.Call(ctx, id, &pb.Request{Op: &pb.Request_Sync{Sync: req}})
				cancel()
			}
		})
	})
}

// askAll asks the nodes a question each second, and counts the answers that are complete and then right, and those within a second.
func askAll(t *testing.T, nodes []*lightNode, plan *queries.Plan, want []string, seconds int) (asked, complete, soon int) {
	var mu sync.Mutex // guards the counts
	for range seconds {
		protocol.Bounded(len(nodes), len(nodes), func(i int) {
			start := time.Now()
			found, err := nodes[i].Query(t.Context(), plan)
			mu.Lock()
			defer mu.Unlock()
			asked++
			if time.Since(start) <= time.Second {
				soon++
			}
			if err == nil && found.Complete {
				complete++
				assert.Equal(t, want, keepertest.NamesOf(found.Records)[:10])
			}
		})
		time.Sleep(time.Second)
	}
	return asked, complete, soon
}

// A third of the keepers accept all requests, answer none, and ask all others to compare. Once they had their time to compare,
// honest peers answer completely and at once.
func TestMuteKeepers(t *testing.T) {
	for _, size := range []int{20, 40} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newLimitedCluster(t, 2*size/3, protocol.Limits{})
				defer w.close()
				recs := world(t, 100, uniform)
				honest := slices.Clone(w.nodes)
				time.Sleep(2 * protocol.SyncEvery)
				for _, o := range honest[0].Store(t.Context(), recs) {
					require.NoError(t, o.Err)
				}
				var asking sync.WaitGroup
				defer asking.Wait()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				for i := range size / 3 {
					w.mute(ctx, w.join(peer.ID(fmt.Sprintf("mute %d", i)), protocol.Limits{Sync: -1}), &asking)
				}
				plan := keepertest.Compile(t, query.Query{Sort: query.SortPrice, Limit: 10, ExactTotal: true})
				want := best(plan, recs)
				ask := func(seconds int) (asked, complete, soon int) { return askAll(t, honest, plan, want, seconds) }
				asked, complete, soon := ask(5) // nobody knows yet who is mute
				t.Logf("the first seconds: %d questions, %d answers complete, %d within a second", asked, complete, soon)
				asked, complete, soon = ask(60)
				t.Logf("the first minute: %d questions, %d answers complete, %d within a second", asked, complete, soon)
				require.Equal(t, asked, soon)
				time.Sleep(time.Minute) // only so many are compared at once
				asked, complete, soon = ask(60)
				require.Equal(t, []int{asked, asked}, []int{complete, soon})
			})
		})
	}
}

// A peer that runs late says so where a question has no answer, and takes no keeper for silent: it distrusts its own records until it has
// compared them with a newcomer.
func TestLatePeer(t *testing.T) {
	for _, late := range []bool{true, false} {
		t.Run(fmt.Sprint(late), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newLimitedCluster(t, 4, protocol.Limits{})
				defer w.close()
				time.Sleep(time.Minute)
				asker := w.nodes[0]
				w.dht.edit(func() { w.dht.late = late })
				w.hosts.lose(func(_, to peer.ID) bool { return to == asker.Self })
				w.join("newcomer", protocol.Limits{})
				time.Sleep(time.Minute / 2)
				c := records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: geo.Global}
				require.Equal(t, late, asker.authority.Doubt(c) != "")
				w.dht.edit(func() {
					w.dht.clients = []peer.ID{asker.Self} // so it asks
					w.dht.fire()
				})
				_, err := asker.Query(t.Context(), keepertest.Compile(t, keepertest.Around(10)))
				require.Error(t, err)
				require.Equal(t, late, strings.Contains(err.Error(), "this peer runs late"), err)
				w.dht.edit(func() {
					w.dht.clients = nil
					w.dht.fire()
				})
				time.Sleep(time.Minute)
				for _, n := range w.nodes[1:] {
					require.Equal(t, !late, asker.client.Avoided(n.Self))
					require.Equal(t, !late, asker.sync.Know.Silent(n.Self))
				}
			})
		})
	}
}

// A third of the peers fall silent at once, and leave the tables some seconds later. The others, keepers and clients of the DHT, answer as
// before: completely, and within a second.
func TestAThirdFallsSilent(t *testing.T) {
	for _, size := range []int{12, 42} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newLimitedCluster(t, size, protocol.Limits{})
				defer w.close()
				recs := world(t, 100, uniform)
				left, silent := w.nodes[:2*size/3], make(map[peer.ID]bool)
				for _, n := range w.nodes[len(left):] {
					silent[n.Self] = true
				}
				w.dht.edit(func() {
					w.dht.clients = []peer.ID{left[0].Self, left[1].Self}
					w.dht.fire()
				})
				time.Sleep(2 * protocol.SyncEvery)
				for _, o := range left[0].Store(t.Context(), recs) {
					require.NoError(t, o.Err)
				}
				time.Sleep(2 * protocol.SyncEvery)
				plan := keepertest.Compile(t, query.Query{Sort: query.SortPrice, Limit: 10, ExactTotal: true})
				want := best(plan, recs)
				w.hosts.lose(func(from, to peer.ID) bool { return silent[from] || silent[to] })
				for _, seconds := range []int{5, 60} {
					asked, complete, soon := askAll(t, left, plan, want, seconds)
					require.Equal(t, []int{asked, asked}, []int{complete, soon})
					w.dht.edit(func() {
						w.dht.peers = slices.DeleteFunc(slices.Clone(w.dht.peers), func(id peer.ID) bool { return silent[id] })
						w.dht.fire()
					})
				}
			})
		})
	}
}
