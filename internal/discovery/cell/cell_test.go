package cell

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

func TestChildren(t *testing.T) {
	r := sign(t, 1, offer("berlin"), 1)
	for c, want := range map[geo.Cell]geo.Cell{geo.Global: "u", "u": "u3", "u33dc0": "u33dc0c", "u33dc0cp": ""} {
		place, ok := ChildOf(c, r)
		require.Equal(t, want, place)
		require.Equal(t, want != "", ok)
	}
	o := offer("nowhere")
	o.Location = nil
	_, ok := ChildOf(geo.Global, sign(t, 1, o, 1))
	require.False(t, ok)
}

// One provider or one prefix alone cannot split a cell.
func TestOnePartyCannotSplit(t *testing.T) {
	honest := members(t, 10_000, Full-PrefixShare, "")
	require.False(t, Splits(city, join(honest, services(t, 1, 3*ProviderShare))))
	crowd := members(t, 20_000, 1200, "198.51.100.0/24")
	require.False(t, Splits(city, join(honest, crowd)))
	require.False(t, Splits(city, honest))
	two := members(t, 30_000, 1200, "203.0.113.0/24")
	require.True(t, Splits(city, join(honest, crowd, two)), "two parties suffice")
	require.True(t, Splits(geo.Global, join(honest, members(t, 40_000, 501, ""))))
	require.False(t, Splits("u33dc0xy", join(honest, crowd, two)), "a leaf has no children")
}

func TestFairAgainstAnyAttacker(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var honest, all ProviderCounter
		for i := range rapid.IntRange(0, 50).Draw(t, "honest") {
			id := peerOf(i)
			honest.Add(id, netip.Prefix{})
			all.Add(id, netip.Prefix{})
		}
		manyProviders := rapid.Bool().Draw(t, "one prefix with many providers")
		for i := range rapid.IntRange(0, 3000).Draw(t, "attacks") {
			from := netip.MustParsePrefix("198.51.100.0/24")
			id := peerOf(1000)
			if manyProviders {
				id = peerOf(1000 + i)
			} else {
				from = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
			}
			all.Add(id, from)
		}
		share := ProviderShare
		if manyProviders {
			share = PrefixShare
		}
		require.LessOrEqual(t, all.Fair(), honest.Fair()+share)
		require.GreaterOrEqual(t, all.Fair(), honest.Fair())
	})
}

// Surplus takes from the largest parties in any order of members, and leaves the maximum.
func TestSurplus(t *testing.T) {
	honest := members(t, 10_000, 300, "")
	flood := join(members(t, 20_000, 900, "198.51.100.0/24"), members(t, 30_000, 700, "203.0.113.0/24"))
	all := join(honest, flood)
	gone := Surplus(all, 1000)
	require.Len(t, gone, len(all)-1000)
	for _, m := range honest {
		require.NotContains(t, gone, m.Record.Name())
	}
	shuffled := slices.Clone(all)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	require.Equal(t, gone, Surplus(shuffled, 1000))
	require.Empty(t, Surplus(all, len(all)))
	require.Len(t, Surplus(services(t, 1, 30), 10), 20)
}

// Keepers of a cell agree on the sample for any order of arrival.
func TestSampleIgnoresOrder(t *testing.T) {
	all := join(members(t, 10_000, 900, ""), members(t, 20_000, 600, "198.51.100.0/24"), services(t, 1, 400))
	sampleOf := func(order []Member) *Sample {
		var s Sample
		in := map[records.Name]bool{}
		for _, m := range order {
			kept, displaced := s.Offer(m)
			in[m.Record.Name()] = kept
			for _, n := range displaced {
				require.True(t, in[n])
				in[n] = false
			}
		}
		for _, m := range order {
			require.Equal(t, in[m.Record.Name()], s.Has(m.Record.Name()))
		}
		return &s
	}
	want := sampleOf(all)
	require.Len(t, want.Names(), SampleSize)
	require.Equal(t, Rank(want.Names()[SampleSize-1])+1, want.Below())
	random := rand.New(rand.NewPCG(3, 4))
	for range 5 {
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		require.Equal(t, want.Names(), sampleOf(all).Names())
	}
	counts := map[quotaBucket]int{}
	for _, m := range all {
		if want.Has(m.Record.Name()) {
			counts[bucketOf(m)]++
		}
	}
	for _, n := range counts {
		require.LessOrEqual(t, n, sampleShare)
	}
	want.Remove(want.Names()[0])
	require.Equal(t, uint64(math.MaxUint64), want.Below(), "the sample has room")
}

// A split cell holds a bounded part, wants members of the sample and improvements, and becomes
// whole again only at a quarter of its size, after its publishers know.
func TestCellSplitsAndMerges(t *testing.T) {
	now := t0()
	c := New(city, Splitting, now)
	all := members(t, 10_000, Full+1, "")
	for _, m := range all {
		kept, _ := c.Offer(m)
		require.True(t, kept, "no record is dropped before the hand-over")
	}
	require.Equal(t, Full+1, c.Total().Count)
	require.False(t, c.UpdatePhase(now))
	c.FinishSplit(now)
	kept := 0
	for _, m := range all {
		if c.Keeps(m.Record) {
			kept++
		}
	}
	require.Equal(t, SampleSize, kept)
	require.Equal(t, []geo.Cell{"u33"}, c.Populated())
	said := map[geo.Cell]Summary{"u33": c.Summary("u33")}
	wanted := 0
	for _, m := range all {
		if Wants(city, c.Below(), said, m.Record) {
			wanted++
		}
	}
	require.Equal(t, SampleSize, wanted)
	better := offer("better")
	better.Health = &records.Health{Status: "HEALTHY", UptimePercent: ptr(99.0)}
	r := sign(t, 1, better, 1)
	require.True(t, Wants(city, 0, said, r))
	c.Offer(Member{Record: r})
	require.False(t, Wants(city, 0, map[geo.Cell]Summary{"u33": c.Summary("u33")}, r))
	tomb, err := records.Tombstone(key(t, 1), r, records.Stamp{Sequence: 2, Issued: now, Expires: now.Add(time.Hour)})
	require.NoError(t, err)
	require.True(t, Wants(city, 0, said, tomb))

	exchange := func(count int) {
		now = now.Add(time.Minute)
		require.Equal(t, []geo.Cell{"u33"}, c.Stale(10, now.Add(restMost), now))
		require.Empty(t, c.Stale(10, now, now), "asked already")
		c.Refresh("u33", Summary{Count: count})
	}
	exchange(Full + 2)
	exchange(Merge)
	require.False(t, c.UpdatePhase(now))
	require.Equal(t, Split, c.phase, "a new keeper reports few records")
	for range 2 {
		now = now.Add(Grace)
		exchange(Merge + 1)
	}
	require.False(t, c.UpdatePhase(now))
	require.Equal(t, Split, c.phase)
	for range 3 {
		now = now.Add(Grace)
		exchange(Merge)
	}
	c.SetUnplaced(1)
	require.False(t, c.UpdatePhase(now))
	require.Equal(t, Split, c.phase, "records without a place count")
	c.SetUnplaced(0)
	require.False(t, c.UpdatePhase(now))
	require.Equal(t, Merging, c.phase)
	require.True(t, c.phase.Open() && !c.phase.Complete())
	require.True(t, c.UpdatePhase(now.Add(Grace)))
	exchange(Full + 1)
	require.False(t, c.UpdatePhase(now.Add(Grace)), "the cell has grown again")
	require.Equal(t, Split, c.phase)
	exchange(0)
	require.Equal(t, 1, c.Total().Count, "a publisher may remember the child and send nothing")
	now = now.Add(Grace)
	exchange(0)
	require.Len(t, c.Populated(), 1)
	now = now.Add(Grace)
	exchange(0)
	require.Empty(t, c.Populated())
	require.Empty(t, c.children)
}

// Records anywhere on Earth are in the 32 children of Global.
func TestChildrenAreBounded(t *testing.T) {
	c := New(geo.Global, Split, t0())
	for i := range 40 {
		for j := range 40 {
			o := offer(fmt.Sprintf("s%d-%d", i, j))
			o.Location = &records.Location{Latitude: ptr(-89 + 4.4*float64(i)), Longitude: ptr(-179 + 8.9*float64(j))}
			c.Offer(Member{Record: sign(t, 1, o, 1)})
		}
	}
	require.Len(t, c.children, MaxChildren)
	require.Equal(t, 1600, c.Total().Count)
	c.Adopt("u33", Summary{Count: 5})
	require.Zero(t, c.Summary("u33").Count, "not a child")
}

func TestWait(t *testing.T) {
	for _, tt := range []struct {
		name  string
		crowd Load
		want  time.Duration
	}{
		{"room", Load{Count: 1600, Capacity: 2000, OfPrefix: 1600, OfProvider: 100}, 0},
		{"crowded, unlike", Load{Count: 1601, Capacity: 2000}, 0},
		{"crowded, alike", Load{Count: 1601, Capacity: 2000, OfPrefix: 1, OfProvider: 1}, 143 * time.Second},
		{"nearly full, unlike", Load{Count: 1980, Capacity: 2000}, 90 * time.Second},
		{"full", Load{Count: 2000, Capacity: 2000}, MaxWait},
		{"over full", Load{Count: 3000, Capacity: 2000}, MaxWait},
		{"one prefix", Load{Count: 1601, Capacity: 2000, OfPrefix: 500}, MaxWait},
		{"gives way", Load{Count: 1999, Capacity: 2000, OfPrefix: 500, OfProvider: 100, Splits: true}, 0},
		{"gives way, but not to one", Load{Count: 1700, Capacity: 2000, OfPrefix: 501, OfProvider: 1, Splits: true}, 156 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.InDelta(t, tt.want.Seconds(), Wait(tt.crowd).Seconds(), 2)
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		c := Load{
			Count: rapid.IntRange(0, 3000).Draw(t, "count"), Capacity: rapid.IntRange(1, 3000).Draw(t, "capacity"),
			OfProvider: rapid.IntRange(0, 500).Draw(t, "provider"), OfPrefix: rapid.IntRange(0, 500).Draw(t, "prefix"),
			Splits: rapid.Bool().Draw(t, "splits"),
		}
		w := Wait(c)
		require.True(t, w >= 0 && w <= MaxWait)
		more := c
		more.OfPrefix += rapid.IntRange(0, 100).Draw(t, "more")
		require.GreaterOrEqual(t, Wait(more), w, "a larger share waits at least as long")
	})
}

func TestAdmissionQueue(t *testing.T) {
	l, now := NewAdmissionQueue(), t0()
	name := func(i int) records.Name { return records.Name{Provider: "p", ID: fmt.Sprint(i)} }
	require.Zero(t, l.Admit(name(1), 0, now))
	require.Equal(t, time.Minute, l.Admit(name(1), time.Minute, now))
	require.Equal(t, 20*time.Second, l.Admit(name(1), time.Minute, now.Add(40*time.Second)))
	require.Zero(t, l.Admit(name(1), time.Minute, now.Add(time.Minute)))
	require.Equal(t, time.Minute, l.Admit(name(1), time.Minute, now.Add(time.Minute)), "admission ends the wait")
	require.Equal(t, time.Minute, l.Admit(name(1), time.Minute, now.Add(2*time.Minute+MaxWait+1)), "the record returned too late")
	for i := range 2 * maxQueue {
		l.Admit(name(i), time.Minute, now)
	}
	require.Equal(t, maxQueue, l.since.Len())
}

// The keepers of a child are asked less and less often while their reports do not change, and often
// again after news from a publisher or from them.
func TestQuietChildrenRest(t *testing.T) {
	const every = 2 * time.Minute
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	c := New("u3", Split, now)
	c.Adopt("u33", Summary{Count: 7})
	asked := func(count int) (after time.Duration) {
		start := now
		for len(c.Stale(10, now.Add(-every), now)) == 0 {
			now = now.Add(30 * time.Second)
		}
		c.Refresh("u33", Summary{Count: count})
		return now.Sub(start)
	}
	asked(7)
	var waits []time.Duration
	for range 4 {
		waits = append(waits, asked(7).Round(time.Minute))
	}
	require.Equal(t, []time.Duration{5 * time.Minute, 7 * time.Minute, 9 * time.Minute, 9 * time.Minute}, waits)
	require.Equal(t, waits[3], asked(8).Round(time.Minute), "the change comes with the answer")
	require.Less(t, asked(8), 3*time.Minute)
	require.Greater(t, asked(8), 3*time.Minute)
	c.Offer(Member{Record: sign(t, 1, offer("news"), 1)})
	require.Less(t, asked(8), 3*time.Minute)
}
