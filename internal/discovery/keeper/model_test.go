package keeper

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/internal/discovery/route"
	"github.com/blackhole/blackhole/pkg/records"
)

// model computes who keeps what from the rules of cells and the distances of ids alone, so it knows networks that no machine plays.
type model struct {
	first   []uint64 // of the hashes of ids, sorted: no two ids of 10^6 share these 64 bits
	kept    []int32  // number of records of each peer
	keepers int      // that a publisher of one record speaks to, on average
	cells   int      // that are divided
}

func modelOf(ids []peer.ID, recs []*records.Record) *model {
	m := &model{first: make([]uint64, len(ids)), kept: make([]int32, len(ids))}
	for i, id := range ids {
		m.first[i] = route.HashOf(string(id))[0]
	}
	slices.Sort(m.first)
	members := map[records.CellKey][]*records.Record{}
	for _, r := range recs {
		for _, c := range r.Cells() {
			members[c] = append(members[c], r)
		}
	}
	samples := map[records.CellKey]*cell.Sample{} // of divided cells
	for c, list := range members {
		if len(list) > cell.Full && cell.Divisible(c.Cell) && !c.OfProvider() {
			samples[c] = new(cell.Sample)
			for _, r := range list {
				samples[c].Offer(cell.Member{Record: r})
			}
		}
	}
	m.cells = len(samples)
	closest := map[records.CellKey][]int{}
	spoken := 0
	var of []int
	for _, r := range recs {
		of = of[:0]
		for _, c := range r.Cells() {
			if s, divided := samples[c]; divided && !s.Has(r.Name()) {
				continue
			}
			if closest[c] == nil {
				closest[c] = m.closest(route.HashOf(route.KeyOf(c))[0])
			}
			of = append(of, closest[c]...)
		}
		slices.Sort(of)
		of = slices.Compact(of)
		spoken += len(of)
		for _, i := range of {
			m.kept[i]++
		}
	}
	m.keepers = spoken / len(recs)
	return m
}

// closest returns the peers closest to a hash: those that share the longest prefix with it that enough of them share.
func (m *model) closest(hash uint64) []int {
	from, to := 0, len(m.first)
	for bits := 63; bits > 0; bits-- { // the prefix is 64-bits long
		low := hash >> bits << bits
		a := sort.Search(to, func(i int) bool { return m.first[i] >= low })
		b := sort.Search(to, func(i int) bool { return m.first[i] > low|(1<<bits-1) })
		if b-a < route.Replicas {
			break
		}
		from, to = a, b
	}
	list := make([]int, to-from)
	for i := range list {
		list[i] = from + i
	}
	slices.SortFunc(list, func(a, b int) int { return cmp.Compare(m.first[a]^hash, m.first[b]^hash) })
	return slices.Clone(list[:min(route.Replicas, len(list))])
}

// share returns the average number of records of a peer, and the number that a part of the peers does not exceed.
func (m *model) share() (mean float64, at func(part float64) int32) {
	sorted, sum := slices.Sorted(slices.Values(m.kept)), 0.0
	for _, n := range sorted {
		sum += float64(n)
	}
	return sum / float64(len(sorted)), func(part float64) int32 { return sorted[int(part*float64(len(sorted)-1))] }
}

// What the model says of a network that can be played is so. BLACKHOLE_KEEPER_PEERS and BLACKHOLE_KEEPER_RECORDS choose another one; the
// model alone knows one of more than 400 peers.
func TestModelOfLoad(t *testing.T) {
	atSize(t)
	peers, n := number(t, "BLACKHOLE_KEEPER_PEERS", 60), scaled(t, 2400)
	if peers > 400 {
		random := rand.New(rand.NewPCG(1, 2))
		ids := make([]peer.ID, peers)
		for i := range ids {
			ids[i] = peer.ID(fmt.Sprint(random.Uint64()))
		}
		modelOf(ids, world(t, n, atCities())).log(t, n)
		return
	}
	synctest.Test(t, func(t *testing.T) {
		w := newLightCluster(t, peers)
		defer w.close()
		recs := world(t, n, atCities())
		for batch := range slices.Chunk(recs, 1000) {
			for _, o := range w.nodes[0].Store(t.Context(), batch) {
				require.NoError(t, o.Err)
			}
		}
		time.Sleep(2 * cell.Grace) // divided cells have given up what is not in their samples
		ids, held, most := make([]peer.ID, peers), 0, 0
		for i, node := range w.nodes {
			ids[i], held, most = node.Self, held+node.Index.Len(), max(most, node.Index.Len())
		}
		m := modelOf(ids, recs)
		m.log(t, n)
		mean, at := m.share()
		t.Logf("played: %.1f records a peer, %d at the fullest", float64(held)/float64(peers), most)
		require.InEpsilon(t, mean, float64(held)/float64(peers), 0.1)
		require.InEpsilon(t, float64(at(1)), float64(most), 0.1)
	})
}

func (m *model) log(t *testing.T, recs int) {
	mean, at := m.share()
	t.Logf("%d records of a type at cities, %d peers: %.1f records a peer, %d at the median, %d at 99 %%, %d at the fullest; %d peers take a record; %d cells are divided",
		recs, len(m.kept), mean, at(0.5), at(0.99), at(1), m.keepers, m.cells)
}
