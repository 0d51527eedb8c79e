package discovery_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// scatter gives the index n offers of two types at random places, and returns them.
func (f *fixture) scatter(n int) (all []*records.Record) {
	rng := rand.New(rand.NewPCG(1, 2))
	now := time.Now()
	for i := range n {
		o := offer(fmt.Sprint("s", i), float64(rng.IntN(20)))
		if rng.IntN(2) == 0 {
			o.Metadata.Type, o.Capabilities = "kind-1", nil
		}
		o.Location = nil
		if rng.IntN(20) > 0 {
			lat, lon := rng.Float64()*180-90, rng.Float64()*360-180
			o.Location = &records.Location{Latitude: &lat, Longitude: &lon}
		}
		r, err := records.Sign("test", f.other, o, records.Stamp{Sequence: 1, Created: now, Issued: now, Expires: now.Add(time.Hour)})
		require.NoError(f.t, err)
		f.arrive(r)
		all = append(all, r)
	}
	return all
}

// TestCountCells compares the counts and least prices with the records, of this peer's index and of other keepers.
func TestCountCells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		all := f.scatter(60)
		for _, source := range []query.Source{query.SourceLocal, query.SourceNetwork} {
			f.net.local.Store(source == query.SourceLocal)
			if source == query.SourceNetwork { // this peer knows only some
				for _, r := range all {
					f.keep(r)
				}
				for _, r := range all[:30] {
					f.index.Remove(r.Name())
				}
			}
			for length := 1; length <= queries.MaxCellLength; length++ {
				a := f.ask(query.Query{Types: []string{"storage", "kind-1"}, Cells: length, Sort: query.SortPrice, Price: query.Price{PriceUnit: "per-gb-month"}})
				require.True(t, a.Complete, a.Reason)
				require.False(t, a.AtLeast)
				require.Equal(t, source, a.Source)
				require.Equal(t, len(all), a.Total)
				if source == query.SourceLocal {
					require.Equal(t, length, a.Cells.Length)
				}
				want, least, unplaced := map[geo.Cell]int{}, map[geo.Cell]float64{}, 0
				for _, r := range all {
					if at, ok := r.Facts().Place(); ok {
						c := geo.CellOf(at, a.Cells.Length)
						if price := r.Facts().Price; want[c] == 0 || price < least[c] {
							least[c] = price
						}
						want[c]++
					} else {
						unplaced++
					}
				}
				require.Equal(t, unplaced, a.Cells.Unplaced)
				require.Len(t, a.Cells.Counts, len(want))
				for _, n := range a.Cells.Counts {
					require.Equal(t, want[n.Cell], n.Count)
					require.Equal(t, least[n.Cell], *n.Least)
				}
			}
		}
		one := f.ask(query.Query{Type: "kind-1", Cells: 2})
		require.Less(t, one.Total, len(all))
		for _, n := range one.Cells.Counts {
			require.Nil(t, n.Least, "nobody asked for it")
		}
	})
}

// TestCountAround: a small disc has finer cells, and only those that touch it are asked about. What others do not count is a lower bound.
func TestCountAround(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		for _, r := range f.scatter(200) {
			f.keep(r)
		}
		radius := 2000.0
		q := query.Query{Type: "storage", Cells: 2, Near: &query.Near{Latitude: 50, Longitude: 10, RadiusKM: &radius}}
		a := f.ask(q)
		require.True(t, a.Complete)
		require.Equal(t, 2, a.Cells.Length)
		require.Positive(t, a.Total)
		disc, _ := plan(t, query.Query{Type: q.Type, Near: q.Near}).Disc()
		cover, ok := geo.CoverAt(disc, 2, 1000)
		require.True(t, ok)
		require.Equal(t, len(cover), f.net.counted)

		f.net.partial.Store(true)
		a = f.ask(q)
		require.False(t, a.Complete)
		require.True(t, a.AtLeast)
		require.Equal(t, "storage: one keeper of two answered", a.Reason)
		f.net.down.Store(true)
		a = f.ask(q)
		require.False(t, a.Complete)
		require.Contains(t, a.Reason, "the counts are of those that this peer knows")
		require.Equal(t, query.SourceLocal, a.Source)

		f.net.down.Store(false)
		f.net.partial.Store(false)
		provider, err := peer.IDFromPrivateKey(f.other)
		require.NoError(t, err)
		q.Near, q.ProviderID = nil, provider.String()
		a = f.ask(q)
		require.True(t, a.Complete)
		require.Equal(t, 2, a.Cells.Length)
		require.Greater(t, a.Total, 60)
	})
}

// TestCountManyCells: an answer has a bounded number of cells, and says how large they are.
func TestCountManyCells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		now, n := time.Now(), 0
		for _, c := range geo.Global.Children() {
			for _, d := range c.Children() {
				for _, e := range d.Children()[:5] { // 5120 cells of length 3
					at := e.Center()
					o := offer(fmt.Sprint("s", n), 1)
					o.Location = &records.Location{Latitude: &at.Lat, Longitude: &at.Lon}
					r, err := records.Sign("test", f.other, o, records.Stamp{Sequence: 1, Created: now, Issued: now, Expires: now.Add(time.Hour)})
					require.NoError(t, err)
					f.arrive(r)
					n++
				}
			}
		}
		f.net.local.Store(true)
		a := f.ask(query.Query{Type: "storage", Cells: 4})
		require.Equal(t, n, a.Total)
		require.Equal(t, 2, a.Cells.Length)
		require.Len(t, a.Cells.Counts, 32*32)
		for _, c := range a.Cells.Counts {
			require.Equal(t, 5, c.Count)
		}
	})
}
