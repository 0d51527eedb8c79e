package keeper

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"

	dht "github.com/libp2p/go-libp2p-kad-dht"

	kb "github.com/libp2p/go-libp2p-kbucket"

	record "github.com/libp2p/go-libp2p-record"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/pkg/records"
)

// kademlia is a Router on a real DHT.
type kademlia struct{ *dht.IpfsDHT }

func (k kademlia) Closest(ctx context.Context, key string) ([]peer.ID, error) {
	peers, err := k.GetClosestPeers(ctx, key)
	if errors.Is(err, kb.ErrLookupFailure) {
		return nil, nil
	}
	return peers, err
}

func (k kademlia) Nearby(key string, n int) []peer.ID {
	return k.RoutingTable().NearestPeers(kb.ConvertKey(key), n)
}

func (k kademlia) Size() int { return k.RoutingTable().Size() }

func (k kademlia) Serving() bool { return true }

func all(nodes []*node, is func(*node) bool) bool {
	return !slices.ContainsFunc(nodes, func(n *node) bool { return !is(n) })
}

// On a real Kademlia DHT over simulated QUIC: peers with partial routing tables agree on the
// keepers of cells. Every peer finds records spread over Europe, in every disc, after a quarter of
// the peers vanished.
func TestOnKademlia(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		const peers, gone = 23, 5
		w := newCluster(t, peers, func(_ int, c *protocol.Config) {
			d, err := dht.New(c.Host,
				dht.ProtocolPrefix("/blackhole/test"), dht.Mode(dht.ModeServer), dht.DisableAutoRefresh(), dht.DisableProviders(),
				dht.Validator(record.NamespacedValidator{}))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, d.Close()) })
			c.Router = kademlia{d}
			c.Index = index.New(index.Config{MaxPerProvider: 1000})
		})
		random := rand.New(rand.NewPCG(1, 2))
		for i, n := range w.nodes {
			for range 4 {
				other := w.nodes[(i+1+random.IntN(peers-1))%peers]
				require.NoError(t, n.host.Connect(t.Context(), peer.AddrInfo{ID: other.Self, Addrs: other.host.Addrs()}))
			}
		}
		large := func(n *node) bool { return n.Router.Size() >= keep.Network }
		for round := 0; !all(w.nodes, large); round++ {
			require.Less(t, round, 10, "the tables do not fill, so every peer would keep every cell")
			for _, n := range w.nodes {
				n.Router.(kademlia).ForceRefresh()
			}
			time.Sleep(5 * time.Second)
		}

		p := keepertest.NewProvider(t)
		recs := make([]*records.Record, 60)
		for i := range recs {
			place := func(o *records.Offer) {
				lat, lon := 45+10*random.Float64(), 5+15*random.Float64()
				o.Location.Latitude, o.Location.Longitude = &lat, &lon
			}
			recs[i] = p.Sign(t, keepertest.Offer(fmt.Sprintf("s%02d", i), keepertest.Priced(random.Float64()), place), 1, time.Now())
		}
		for _, o := range w.nodes[0].Store(t.Context(), recs) {
			require.NoError(t, o.Err)
			require.GreaterOrEqual(t, o.Stored.On, keep.Replicas)
		}

		for _, n := range w.nodes[peers-gone:] {
			n.leave(t)
		}
		// Right after the loss some queries reach keepers that have just taken over a cell. Those report
		// it, so a complete answer still lacks no record.
		complete := 0
		for i, n := range w.nodes[:peers-gone] {
			missing, whole := lacking(t, n, recs, 50*float64(1+i))
			if whole {
				complete++
				require.Zero(t, missing)
			}
		}
		time.Sleep(2 * protocol.SyncEvery)
		for i, n := range w.nodes[:peers-gone] {
			missing, _ := lacking(t, n, recs, 50*float64(1+i))
			require.Zero(t, missing, "after a comparison")
		}
		require.Greater(t, complete, (peers-gone)/2)
		got, err := w.nodes[1].Resolve(t.Context(), recs[0].Key())
		require.NoError(t, err)
		require.Equal(t, recs[0].Digest(), got.Digest())
	})
}

// lacking queries a node for records around and returns the number of missing records, and whether
// the answer claims to be complete.
func lacking(t *testing.T, n *node, recs []*records.Record, radius float64) (missing int, complete bool) {
	t.Helper()
	plan := keepertest.Compile(t, keepertest.Around(radius))
	for _, r := range recs {
		if plan.Match(r) {
			missing++
		}
	}
	start := time.Now()
	found, err := n.Query(t.Context(), plan)
	require.NoError(t, err)
	require.LessOrEqual(t, time.Since(start), n.config.Limits.Lookup+n.config.Limits.Ask+hedgeMax)
	require.LessOrEqual(t, len(found.Records), missing, "%s %v", found.Reason, found.Notes)
	return missing - len(found.Records), found.Complete
}
