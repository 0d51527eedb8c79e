package keeper

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

func TestResolve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 2)
		a, b, p := w.nodes[0], w.nodes[1], keepertest.NewProvider(t)
		r := p.Sign(t, keepertest.Offer("one"), 1, time.Now())
		resolve := func(key records.Key) (*records.Record, error) { return b.Resolve(t.Context(), key) }
		_, err := resolve(r.Key())
		require.ErrorIs(t, err, fault.NotFound)

		a.put(t, r) // b lacks it
		got, err := resolve(r.Key())
		require.NoError(t, err)
		require.Equal(t, r.Digest(), got.Digest())
		require.Equal(t, r, mustGet(t, b, r), "b knows the record from now on")

		newer := p.Sign(t, keepertest.Offer("one", keepertest.Priced(2)), 2, time.Now())
		b.put(t, newer)
		got, err = resolve(r.Key())
		require.NoError(t, err)
		require.Equal(t, newer.Digest(), got.Digest(), "the own index has the newest version")

		moved := p.Sign(t, keepertest.Offer("one", keepertest.Nowhere), 3, time.Now())
		a.put(t, moved)
		_, err = resolve(r.Key())
		require.ErrorIs(t, err, fault.NotFound)
		require.ErrorContains(t, err, moved.Key().String())
		got, err = resolve(moved.Key())
		require.NoError(t, err)
		require.Equal(t, moved.Digest(), got.Digest())

		a.put(t, p.Withdraw(t, moved, time.Now()))
		_, err = resolve(moved.Key())
		require.ErrorIs(t, err, fault.NotFound)
		require.ErrorContains(t, err, "withdrawn")
	})
}

// A peer that lost the other keepers says so. It does not claim that a record is unknown or live.
func TestResolveWithoutKeepers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 3)
		a, p := w.nodes[0], keepertest.NewProvider(t)
		r := p.Sign(t, keepertest.Offer("one"), 1, time.Now())
		a.put(t, r)
		w.nodes[1].leave(t)
		w.nodes[2].leave(t)
		_, err := a.Resolve(t.Context(), r.Key())
		require.ErrorIs(t, err, fault.Unavailable)
		require.ErrorContains(t, err, "1 of 3 keepers")
	})
}

// After an incomplete lookup an unknown record may be at keepers that the lookup missed.
func TestResolveAfterFailedLookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 1)
		w.dht.edit(func() { w.dht.failure = errLookup })
		r := keepertest.NewProvider(t).Sign(t, keepertest.Offer("one"), 1, time.Now())
		_, err := w.nodes[0].Resolve(t.Context(), r.Key())
		require.ErrorIs(t, err, fault.Unavailable)
		require.ErrorContains(t, err, errLookup.Error())
	})
}

// An own record needs no keeper.
func TestResolveOwnRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := keepertest.NewProvider(t)
		w := newCluster(t, 2, func(i int, c *protocol.Config) {
			if i == 0 {
				c.Self = p.Id
			}
		})
		w.nodes[1].leave(t)
		r := p.Sign(t, keepertest.Offer("one"), 1, time.Now())
		w.nodes[0].put(t, r)
		got, err := w.nodes[0].Resolve(t.Context(), r.Key())
		require.NoError(t, err)
		require.Equal(t, r.Digest(), got.Digest())
	})
}

// In a large network the cell of a provider has all its records: they resolve by their keys, and a
// query for the provider asks the keepers of that cell only, even if all other cells are split.
func TestProviderCell(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		w := newLightCluster(t, 30)
		defer w.close()
		recs := world(t, 3000, atCities(t))
		for some := range slices.Chunk(recs, 1000) {
			for _, o := range w.nodes[0].Store(t.Context(), some) {
				require.NoError(t, o.Err)
			}
		}
		id := recs[0].Name().Provider
		for _, n := range w.keepersOf(records.ProviderCell(id)) {
			require.Len(t, n.Index.OfProvider(id), 20)
		}
		before := w.asks()
		found, err := w.nodes[7].Query(t.Context(), keepertest.Compile(t, query.Query{ProviderID: id.String()}))
		require.NoError(t, err)
		require.True(t, found.Complete, found.Reason)
		require.Len(t, found.Records, 20)
		require.LessOrEqual(t, w.asks()-before, 3)
		for _, r := range recs[:100] {
			got, err := w.nodes[11].Resolve(t.Context(), r.Key())
			require.NoError(t, err)
			require.Equal(t, r.Digest(), got.Digest())
		}
	})
}

// asks counts the requests of queries and resolutions to other peers.
func (w *lightCluster) asks() int {
	n := 0
	for _, x := range w.nodes {
		n += x.counts.Operations("ask")
	}
	return n
}

// One stranger stores thousands of records: each keeper of the provider's cell takes the quota of the address prefix, and a
// peer far from all the cells takes none. A keeper that also keeps a cell full of this provider drops the surplus.
func TestFloodOfOneProvider(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		w := newLightCluster(t, 120) // each peer accepts the cells of about 40
		defer w.close()
		var p keepertest.Provider
		var near *lightNode // a keeper of the provider's cell alone; some providers have none
		var keys []records.CellKey
		for try := 0; near == nil; try++ {
			require.Less(t, try, 100)
			p = keepertest.NewProvider(t)
			keys = p.Sign(t, keepertest.Offer("s0", keepertest.Nowhere), 1, time.Now()).Cells()
			home := records.ProviderCell(p.Id)
			alone := func(n *lightNode) bool {
				return !slices.ContainsFunc(keys, func(c records.CellKey) bool { return c != home && n.authority.Accepts(c) })
			}
			if keepers := w.keepersOf(home); slices.ContainsFunc(keepers, alone) {
				near = keepers[slices.IndexFunc(keepers, alone)]
			}
		}
		far := w.farFrom(keys)
		recs := make([]*records.Record, 6000)
		for i := range recs {
			recs[i] = p.Sign(t, keepertest.Offer(fmt.Sprintf("s%d", i), keepertest.Nowhere), 1, time.Now())
		}
		for target, most := range map[*lightNode]int{near: 5000, far: 0} {
			from := protocol.Source{Peer: "stranger", Prefix: netip.MustParsePrefix("198.51.100.0/24")}
			for some := range slices.Chunk(recs, protocol.MaxItems) {
				items := make([]*pb.StoreItem, len(some))
				for i, r := range some {
					items[i] = &pb.StoreItem{Envelope: r.Envelope()}
					for _, c := range r.Cells() {
						items[i].Cells = append(items[i].Cells, c.String())
					}
				}
				_, err := target.store.ServeStore(t.Context(), from, &pb.StoreRequest{Items: items})
				require.NoError(t, err)
			}
			require.Equal(t, most, target.Index.Len())
			require.Len(t, target.Index.OfProvider(p.Id), most)
			require.NotZero(t, target.counts.Refusals("rate"))
		}
	})
}

// farFrom returns a peer that accepts none of the cells.
func (w *lightCluster) farFrom(cells []records.CellKey) *lightNode {
	for _, n := range w.nodes {
		if !slices.ContainsFunc(cells, n.authority.Accepts) {
			return n
		}
	}
	w.t.Fatal("every peer accepts one of the cells")
	return nil
}

// listing is a stored record with its provider.
type listing struct {
	keepertest.Provider
	record *records.Record
}

// listings returns n records across Europe, 20 of each provider.
func listings(t testing.TB, n int, random *rand.Rand) []listing {
	all := make([]listing, n)
	var p keepertest.Provider
	for i := range all {
		if i%20 == 0 {
			p = keepertest.NewProvider(t)
		}
		lat, lon := 36+20*random.Float64(), -10+40*random.Float64()
		all[i] = listing{p, p.Sign(t, keepertest.Offer(fmt.Sprintf("s%04d", i), func(o *records.Offer) {
			o.Location.Latitude, o.Location.Longitude = &lat, &lon
		}), 1, time.Now())}
	}
	return all
}

func recordsOfListings(all []listing) []*records.Record {
	recs := make([]*records.Record, len(all))
	for i, l := range all {
		recs[i] = l.record
	}
	return recs
}

// 80 withdrawals in a network of 40 peers, while peers restart with empty memories and miss
// tombstones. Half of the providers leave right after their withdrawal, so nobody repeats it. Five
// seconds later no peer resolves a withdrawn record, and every live record resolves.
func TestWithdrawnAtEveryResolver(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		const peers, waves, each = 40, 4, 20
		random := rand.New(rand.NewPCG(1, 21))
		w := newLightCluster(t, 0)
		defer w.close()
		for i := range peers {
			w.join(peer.ID(fmt.Sprintf("light %d", i)), protocol.Limits{})
		}
		time.Sleep(2 * protocol.SyncEvery)
		all := listings(t, waves*each+200, random)
		for _, o := range w.nodes[0].Store(t.Context(), recordsOfListings(all)) {
			require.NoError(t, o.Err)
		}
		unanswered := 0
		for wave := range waves {
			gone := all[wave*each : (wave+1)*each]
			w.withdrawAmidRestarts(random, gone, wave%2 == 0)
			for _, n := range w.nodes {
				for _, l := range gone {
					_, err := n.Resolve(t.Context(), l.record.Key())
					require.Error(t, err, "%s resolves a record that was withdrawn in wave %d", n.Self, wave)
					if fault.KindOf(err) != fault.NotFound {
						unanswered++
					}
				}
			}
		}
		require.Zero(t, unanswered)
		for i, n := range w.nodes {
			for _, l := range all[waves*each+4*i:][:40] {
				_, err := n.Resolve(t.Context(), l.record.Key())
				require.NoError(t, err)
			}
		}
	})
}

// withdrawAmidRestarts withdraws records while a tenth of the peers is down, and returns five seconds
// later. Repeated means that the provider tries again, as a registry does.
func (w *lightCluster) withdrawAmidRestarts(random *rand.Rand, gone []listing, repeated bool) {
	down := random.Perm(len(w.nodes))[:len(w.nodes)/10]
	for _, i := range down {
		w.stop(i)
	}
	tombs := make([]*records.Record, len(gone))
	for i, l := range gone {
		tombs[i] = l.Withdraw(w.t, l.record, time.Now())
	}
	began := time.Now()
	up := slices.IndexFunc(w.nodes, func(n *lightNode) bool { return !slices.Contains(down, slices.Index(w.nodes, n)) })
	w.nodes[up].Store(w.t.Context(), tombs)
	time.Sleep(300 * time.Millisecond)
	for _, i := range down {
		w.restart(i)
	}
	if repeated {
		time.Sleep(time.Until(began.Add(time.Second)))
		w.nodes[up].Store(w.t.Context(), tombs)
	}
	time.Sleep(time.Until(began.Add(5 * time.Second)))
}

// stop ends a node. Its peers still have it in their tables.
func (w *lightCluster) stop(i int) {
	require.NoError(w.t, w.nodes[i].Close())
	w.hosts.Delete(w.nodes[i].Self)
}

// restart replaces a stopped node by one with an empty memory.
func (w *lightCluster) restart(i int) {
	id := w.nodes[i].Self
	h := &lightHost{id: id, hosts: w.hosts, addr: w.nodes[i].host.addr}
	w.hosts.Store(id, h)
	w.nodes[i] = w.start(h, protocol.Limits{}, nil)
}
