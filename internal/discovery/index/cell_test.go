package index_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// In equals a scan of all records through updates, removals and expiry.
func TestInAgainstScan(t *testing.T) {
	s := seeded(11)
	x := index.New(index.Config{MaxPerProvider: 1 << 20})
	key := keyOf(t, 1)
	cells := []geo.Cell{geo.Global}
	for i := range 3000 {
		o := cdn(string(rune('a'+s(26))) + string(rune('a'+s(26))))
		if s(5) > 0 {
			lat, lon := spot(s)
			o.Location = &records.Location{Latitude: &lat, Longitude: &lon}
			p, err := geo.NewPoint(lat, lon)
			require.NoError(t, err)
			if i%10 == 0 {
				cells = append(cells, geo.CellOf(p, 1+s(geo.DeepLen)))
			}
		}
		if s(2) == 0 {
			o.Metadata.Subtype = "video"
		}
		r := sign(t, key, o, stamp(uint64(i+1), 0, time.Duration(1+s(5))*time.Hour))
		_, err := x.Put(r, epoch())
		require.NoError(t, err)
		if s(4) == 0 {
			had := false
			if _, live := x.Get(r.Name()); live {
				had = true
			}
			require.Equal(t, had, x.Remove(r.Name()))
			_, live := x.Get(r.Name())
			require.False(t, live)
			require.False(t, x.Remove(r.Name()))
		}
	}
	for _, now := range []time.Time{epoch(), epoch().Add(2 * time.Hour)} {
		for _, place := range cells {
			for _, subtype := range []string{records.AnySubtype, "video"} {
				c := records.CellKey{Type: "cdn", Subtype: subtype, Cell: place}
				want := map[records.Name]bool{}
				for r := range x.All() {
					if r.In(c) && !r.Expired(now) {
						want[r.Name()] = true
					}
				}
				got := map[records.Name]bool{}
				for r := range x.In(c, now) {
					got[r.Name()] = true
				}
				require.Equal(t, want, got, "%v", c)
				require.Equal(t, min(len(want), 7), x.CountIn(c, now, 7))
			}
		}
	}
	require.Zero(t, x.CountIn(records.CellKey{Type: "compute", Subtype: "_", Cell: geo.Global}, epoch(), 7))
	own := records.ProviderCell(idOf(t, key))
	require.Equal(t, x.CountIn(records.CellKey{Type: "cdn", Subtype: "_", Cell: geo.Global}, epoch(), 10_000), x.CountIn(own, epoch(), 10_000))
	require.Equal(t, 7, x.CountIn(own, epoch(), 7))
	require.Zero(t, x.CountIn(own, epoch().Add(6*time.Hour), 7), "expired")
	require.Zero(t, x.CountIn(records.ProviderCell(idOf(t, keyOf(t, 2))), epoch(), 7))
}

func TestRemoveTellsAndForgets(t *testing.T) {
	x := index.New(index.Config{})
	key := keyOf(t, 1)
	older, newer := sign(t, key, cdn("a"), stamp(1, 0, time.Hour)), sign(t, key, cdn("a"), stamp(2, 0, time.Hour))
	_, err := x.Put(newer, epoch())
	require.NoError(t, err)
	require.True(t, x.Remove(newer.Name()))
	some, _, lost := x.After(1, 4)
	require.False(t, lost)
	require.Len(t, some, 1)
	ch := some[0]
	require.Equal(t, index.Evicted, ch.Kind)
	require.Same(t, newer, ch.Old)
	require.Nil(t, ch.New)
	require.Zero(t, x.Stats().Providers)
	_, err = x.Put(older, epoch())
	require.NoError(t, err)
}
