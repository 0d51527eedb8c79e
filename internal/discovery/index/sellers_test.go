package index_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// TestSellersFollowTheRecords plays offers that come, move, change their subtype, pause, go and expire, against a search of all records:
// each cell has exactly the sellers that it should, and the hash of no other cell has any.
func TestSellersFollowTheRecords(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		x, now := index.New(index.Config{}), epoch()
		live, last := map[records.Name]*records.Record{}, map[records.Name]uint64{}
		cells := map[records.CellKey]bool{}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			key := keyOf(t, rapid.IntRange(0, 4).Draw(rt, "provider"))
			o := cdn(fmt.Sprint("s", rapid.IntRange(0, 2).Draw(rt, "offer")))
			o.Metadata.Subtype = rapid.SampledFrom([]string{"", "a", "b"}).Draw(rt, "subtype")
			if rapid.Bool().Draw(rt, "placed") {
				o.Location = &records.Location{
					Latitude: ptr(rapid.SampledFrom([]float64{50, 50.001, -50}).Draw(rt, "lat")), Longitude: ptr(10.0),
				}
			}
			st := stamp(0, now.Sub(epoch()), time.Duration(rapid.IntRange(1, 5).Draw(rt, "ttl"))*time.Hour)
			name := records.Name{Provider: idOf(t, key), ID: o.ID}
			last[name]++
			st.Sequence = last[name]
			r := sign(t, key, o, st)
			for _, c := range r.Cells() {
				cells[c] = true
			}
			old := live[name]
			switch what := rapid.IntRange(0, 5).Draw(rt, "what"); {
			case what == 0 && old != nil:
				_, err := x.Put(tombstone(t, key, old, st), now)
				require.NoError(rt, err)
				delete(live, name)
				continue
			case what == 1:
				now = now.Add(time.Hour)
				if rapid.Bool().Draw(rt, "expire") {
					x.Expire(now)
				}
			}
			if r.Expired(now) {
				continue
			}
			_, err := x.Put(r, now)
			require.NoError(rt, err)
			live[name] = r
		}
		for c := range cells {
			want := map[peer.ID]bool{}
			for _, r := range live {
				if !c.OfProvider() && r.In(c) && !r.Expired(now) {
					want[r.Name().Provider] = true
				}
			}
			got := x.Sellers(c.Multihash(), 64, now, rand.IntN)
			require.Len(rt, got, len(want), "%s", c)
			for _, id := range got {
				require.True(rt, want[id], "%s", c)
			}
		}
		for name := range live { // the map ends with the records
			x.Remove(name)
		}
		require.Zero(rt, index.Hashes(x))
	})
}

// TestSellers: what is no offer to buy has no seller, an answer has a bound, and all sellers get their turn.
func TestSellers(t *testing.T) {
	x, now := index.New(index.Config{}), epoch()
	put := func(n int, id string, edit func(*records.Offer)) *records.Record {
		o := cdn(id)
		edit(&o)
		r := sign(t, keyOf(t, n), o, stamp(1, 0, time.Hour))
		_, err := x.Put(r, now)
		require.NoError(t, err)
		return r
	}
	here := func(o *records.Offer) { o.Location = &records.Location{Latitude: ptr(50.0), Longitude: ptr(10.0)} }
	const sellers = 300
	for n := range sellers {
		put(n, "here", here)
		put(n, "there", func(o *records.Offer) { o.Location = &records.Location{Latitude: ptr(51.0), Longitude: ptr(10.0)} })
	}
	cell := records.CellKey{Type: "cdn", Subtype: records.AnySubtype, Cell: geo.CellOf(geo.Point{Lat: 50, Lon: 10}, 3)}
	turns := map[peer.ID]bool{}
	for range 200 {
		got := x.Sellers(cell.Multihash(), 20, now, rand.IntN)
		require.Len(t, got, 20)
		slices.Sort(got)
		require.Len(t, slices.Compact(got), 20)
		for _, id := range got {
			turns[id] = true
		}
	}
	require.Len(t, turns, sellers)
	require.Empty(t, x.Sellers(cell.Multihash(), 20, now.Add(time.Hour), rand.IntN), "expired")
	require.Empty(t, x.Sellers(cell.Multihash()[:33], 20, now, rand.IntN))
	require.Empty(t, x.Sellers(nil, 20, now, rand.IntN))

	put(sellers, "sick", func(o *records.Offer) {
		o.Metadata.Subtype, o.Health = "rare", &records.Health{Status: "UNHEALTHY"}
	})
	rare := records.CellKey{Type: "cdn", Subtype: "rare", Cell: geo.Global}
	require.Empty(t, x.Sellers(rare.Multihash(), 20, now, rand.IntN))
	put(sellers+1, "rare", func(o *records.Offer) { o.Metadata.Subtype = "rare" })
	require.Equal(t, []peer.ID{idOf(t, keyOf(t, sellers+1))}, x.Sellers(rare.Multihash(), 20, now, rand.IntN))
}
