package discovery_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

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

// TestCountCells compares the counts with the records, and the answer says whether this peer knows all of them.
func TestCountCells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		all := f.scatter(60)
		for _, local := range []bool{false, true} {
			f.net.local.Store(local)
			for length := 1; length <= query.MaxCellLength; length++ {
				a := f.ask(query.Query{Types: []string{"storage", "kind-1"}, Cells: length})
				require.Equal(t, local, a.Complete)
				require.Equal(t, !local, a.AtLeast)
				if local {
					require.Empty(t, a.Reason)
				} else {
					require.Contains(t, a.Reason, "the cell has split; the counts are of those that it knows")
				}
				require.Equal(t, query.SourceLocal, a.Source)
				require.Equal(t, length, a.Cells.Length)
				require.Equal(t, len(all), a.Total)
				want, unplaced := map[geo.Cell]int{}, 0
				for _, r := range all {
					if at, ok := r.Facts().Place(); ok {
						want[geo.CellOf(at, length)]++
					} else {
						unplaced++
					}
				}
				require.Equal(t, unplaced, a.Cells.Unplaced)
				require.Len(t, a.Cells.Counts, len(want))
				for _, n := range a.Cells.Counts {
					require.Equal(t, want[n.Cell], n.Count)
				}
			}
		}
		one := f.ask(query.Query{Type: "kind-1", Cells: 2})
		require.Less(t, one.Total, len(all))
		require.Zero(t, f.net.queries.Load(), "it asks nobody")
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
		a := f.ask(query.Query{Type: "storage", Cells: 4})
		require.Equal(t, n, a.Total)
		require.Equal(t, 2, a.Cells.Length)
		require.Len(t, a.Cells.Counts, 32*32)
		for _, c := range a.Cells.Counts {
			require.Equal(t, 5, c.Count)
		}
	})
}
