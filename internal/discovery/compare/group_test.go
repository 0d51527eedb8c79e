package compare

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/digest"
	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/route"
	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// sampling has the samples of split cells, and cells below geo.MaxLen.
type sampling struct {
	samples map[records.CellKey]map[digest.ID]struct{}
	deep    bool
}

func (s *sampling) SampleOf(c records.CellKey) map[digest.ID]struct{} { return s.samples[c] }
func (s *sampling) AnyDeep() bool                                     { return s.deep }

func (s *sampling) CellsOf(r *records.Record) []records.CellKey {
	if s.deep {
		return append(r.Cells(), wire.CellsBelow(r)...)
	}
	return r.Cells()
}

// groupedAnew is a grouping by its definition.
func groupedAnew(all []version, n *route.Table, d splitInfo) map[records.CellKey]*digest.Set {
	entries := make(map[records.CellKey][]digest.Entry)
	for _, x := range all {
		for _, c := range d.CellsOf(x.record) {
			if _, kept := n.RadiusOf(route.KeyOf(c)); !kept {
				continue
			}
			sample := d.SampleOf(c)
			if entries[c] == nil {
				entries[c] = []digest.Entry{} // also without a sampled record
			}
			if _, in := sample[x.entry.ID]; in || sample == nil {
				entries[c] = append(entries[c], x.entry)
			}
		}
	}
	sets := make(map[records.CellKey]*digest.Set)
	for c, e := range entries {
		sets[c] = digest.New(e)
	}
	return sets
}

// sharedAnew lists the cells that two peers compare, by their definition.
func sharedAnew(sets map[records.CellKey]*digest.Set, n *route.Table, d splitInfo, id peer.ID) (keys []string) {
	kept := maps.Clone(sets)
	maps.DeleteFunc(kept, func(c records.CellKey, _ *digest.Set) bool {
		r, _ := n.RadiusOf(route.KeyOf(c))
		return !r.Covers(route.HashOf(string(id)))
	})
	for c := range kept {
		inside := func(outer records.CellKey) bool {
			return outer != c && !outer.OfProvider() && !c.OfProvider() && d.SampleOf(outer) == nil && outer.Type == c.Type &&
				(outer.Subtype == c.Subtype || outer.Subtype == records.AnySubtype) && within(c.Cell, outer.Cell)
		}
		if !slices.ContainsFunc(slices.Collect(maps.Keys(kept)), inside) {
			keys = append(keys, c.String())
		}
	}
	return keys
}

// within reports whether a cell is another one or lies inside it.
func within(inner, outer geo.Cell) bool {
	for ok := true; ok; inner, ok = inner.Parent() {
		if inner == outer {
			return true
		}
	}
	return false
}

// A grouping that reuses the one before equals a new one, whatever changed: records, samples of split cells, cells below the maximum
// length.
func TestGroupingsFollowChanges(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 12))
	people := keepertest.PeersOf(40)
	n := route.NewTable("self", people, false)
	pool := keepertest.Spread(t, 80, random)
	d := &sampling{samples: make(map[records.CellKey]map[digest.ID]struct{})}
	live := make(map[*records.Record]bool)
	var before *grouping
	reused := 0
	for step := range 60 {
		for range random.IntN(4) {
			r := pool[random.IntN(len(pool))]
			live[r] = !live[r]
		}
		var all []version
		for _, r := range pool {
			if live[r] {
				all = append(all, version{digest.EntryOf(r, r.Name().Provider.String()), r})
			}
		}
		d.change(random, all)
		g := newGrouping(all, n, d, before)
		want := groupedAnew(all, n, d)
		require.ElementsMatch(t, slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(g.cells)), "step %d", step)
		for c, h := range g.cells {
			require.Equal(t, want[c].Entries(), h.set().Entries(), "step %d: %s", step, h.key)
			if before != nil && before.cells[c] == h {
				reused++
			}
		}
		for _, id := range []peer.ID{people[0], people[20], "newcomer"} {
			o := g.sharedWith(id)
			var keys []string
			for i, h := range o.cells {
				keys = append(keys, h.key)
				require.Same(t, h, o.find(o.set.Entries()[i].ID))
			}
			require.ElementsMatch(t, sharedAnew(want, n, d, id), keys, "step %d", step)
		}
		before = g
	}
	require.Greater(t, reused, 1000)
}

// change splits and merges cells at random; seldom it takes cells below the maximum length into use.
func (s *sampling) change(random *rand.Rand, all []version) {
	s.deep = random.IntN(10) == 0
	if random.IntN(3) > 0 || len(all) == 0 {
		return
	}
	x := all[random.IntN(len(all))]
	cells := x.record.Cells()
	c := cells[random.IntN(len(cells)-1)] // the last is the provider's, which is never split
	if _, split := s.samples[c]; split {
		delete(s.samples, c)
	} else {
		s.samples[c] = map[digest.ID]struct{}{x.entry.ID: {}}
	}
}

// The next view has the changes since, and takes over what did not change.
func TestNextViewTakesOver(t *testing.T) {
	x := index.New(index.Config{MaxPerProvider: 1000})
	recs := keepertest.Spread(t, 51, rand.New(rand.NewPCG(13, 13)))
	put := func(recs ...*records.Record) {
		for _, r := range recs {
			_, err := x.Put(r, time.Now())
			require.NoError(t, err)
		}
	}
	put(recs[:50]...)
	n := route.NewTable("self", keepertest.PeersOf(5), false)
	first := newView(x, n, time.Now(), unsplit{}, nil)
	cells := first.cells().cells
	put(recs[50]) // of another provider
	second := newView(x, n, time.Now(), unsplit{}, first)
	whole := records.CellKey{Type: recs[0].Type(), Subtype: records.AnySubtype, Cell: geo.Global}
	require.Equal(t, 51, second.held(whole, false).set().Len())
	require.Equal(t, 50, cells[whole].set().Len())
	own := records.ProviderCell(recs[0].Name().Provider)
	require.Same(t, cells[own], second.held(own, false))

	third := newView(x, n, time.Now(), unsplit{}, second)
	require.Same(t, second.held(whole, false), third.held(whole, false))
	moved := newView(x, route.NewTable("self", keepertest.PeersOf(6), false), time.Now(), unsplit{}, third)
	require.NotSame(t, third.held(whole, false), moved.held(whole, false), "another table, other keepers")
}
