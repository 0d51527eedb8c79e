package keeper

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// Peers with ground ids own the worldwide cell of a type and agree on what they hide: everything, or all but a few records. Nobody takes their
// word: answers have all records, which others of the region keep too, and say that they may be incomplete. Other types are complete.
func TestGroundKeepersHideNothing(t *testing.T) {
	for _, tc := range []struct{ liars, shown int }{{keep.Replicas, 0}, {200, 10}} {
		t.Run(fmt.Sprint(tc.liars), func(t *testing.T) { testGroundKeepers(t, tc.liars, tc.shown) })
	}
}

func testGroundKeepers(t *testing.T, liars, shown int) {
	synctest.Test(t, func(t *testing.T) {
		w := newLightCluster(t, 60)
		defer w.close()
		key := keep.KeyOf(records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: geo.Global})
		hostile := make(map[peer.ID]bool)
		for i := range liars {
			var tries []peer.ID
			for j := range 1000 {
				tries = append(tries, peer.ID(fmt.Sprintf("ground %d %d", i, j)))
			}
			n := w.join(keep.Nearest(key, tries, 1)[0], protocol.Limits{Sync: -1})
			hostile[n.Self] = true
			n.lie(func(resp *pb.Response) {
				if q := resp.GetQuery(); q != nil {
					q.Envelopes = q.Envelopes[:min(len(q.Envelopes), shown)]
					q.Total = uint64(len(q.Envelopes))
				}
			})
		}
		for _, id := range w.dht.nearest(key, w.dht.peers, keep.Replicas) {
			require.True(t, hostile[id])
		}
		var mu sync.Mutex // guards r
		r := rand.New(rand.NewPCG(1, uint64(liars)))
		for _, n := range w.nodes {
			n.Draw = func(of int) int {
				mu.Lock()
				defer mu.Unlock()
				return r.IntN(of)
			}
		}
		recs := world(t, 50, uniform)
		other := keepertest.NewProvider(t)
		for i := range 5 {
			recs = append(recs, other.Sign(t, keepertest.Offer(fmt.Sprint("other", i), func(o *records.Offer) { o.Metadata.Type, o.Capabilities = "other", nil }), 1, w.nodes[0].Now()))
		}
		for _, o := range w.nodes[0].Store(t.Context(), recs) {
			require.NoError(t, o.Err)
			require.Equal(t, o.Stored.Of, o.Stored.On)
		}
		for i := range 20 {
			asker := w.nodes[i]
			plan := keepertest.Compile(t, query.Query{Sort: query.SortPrice, Limit: 100})
			asker.counts.Forget()
			found, err := asker.Query(t.Context(), plan)
			require.NoError(t, err)
			require.Equal(t, best(plan, recs), keepertest.NamesOf(found.Records))
			require.False(t, found.Complete)
			require.Contains(t, found.Reason, "closer than chance explains")
			require.LessOrEqual(t, asker.counts.Operations("ask"), 16, "seven keepers, and what the liar says of single records")

			plan = keepertest.Compile(t, query.Query{Type: "other", Price: query.Price{PriceUnit: "per-hour"}, Sort: query.SortPrice})
			found, err = asker.Query(t.Context(), plan)
			require.NoError(t, err)
			require.Equal(t, best(plan, recs), keepertest.NamesOf(found.Records))
			require.True(t, found.Complete, found.Reason)
		}
	})
}
