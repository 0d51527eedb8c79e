package keep

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/digest"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// someFull has full cells, and cells below geo.MaxLen.
type someFull struct {
	full    map[records.CellKey]bool
	deep    bool
	version uint64
}

func (s *someFull) Full(c records.CellKey) bool { return s.full[c] }
func (s *someFull) AllFull() []records.CellKey {
	return slices.SortedFunc(maps.Keys(s.full), protocol.CompareCells)
}
func (s *someFull) AnyDeep() bool   { return s.deep }
func (s *someFull) Version() uint64 { return s.version }

func (s *someFull) CellsOf(r *records.Record) []records.CellKey {
	if s.deep {
		return append(r.Cells(), protocol.CellsBelow(r)...)
	}
	return r.Cells()
}

// groupedAnew is a grouping by its definition.
func groupedAnew(all []version, n *Table, d cellInfo) map[records.CellKey]*digest.Set {
	entries := make(map[records.CellKey][]digest.Entry)
	for _, c := range d.AllFull() {
		if _, kept := n.RadiusOf(KeyOf(c)); kept {
			entries[c] = nil
		}
	}
	for _, x := range all {
		for _, c := range d.CellsOf(x.record) {
			if _, kept := n.RadiusOf(KeyOf(c)); !kept {
				continue
			}
			if _, placed := x.record.Facts().Place(); placed && d.Full(c) && c.Cell.Len() < geo.MaxLen {
				entries[c] = append(entries[c], nil...)
			} else {
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
func sharedAnew(sets map[records.CellKey]*digest.Set, n *Table, id peer.ID, flat bool) (keys []string) {
	kept := maps.Clone(sets)
	maps.DeleteFunc(kept, func(c records.CellKey, _ *digest.Set) bool {
		r, _ := n.RadiusOf(KeyOf(c))
		return !r.Covers(HashOf(string(id)))
	})
	for c := range kept {
		inside := func(outer records.CellKey) bool {
			return !flat && outer != c && !outer.OfProvider() && !c.OfProvider() && outer.Type == c.Type &&
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

// A grouping that reuses the one before equals a new one, whatever changed: records, full cells, cells below the maximum
// length.
func TestGroupingsFollowChanges(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 12))
	people := keepertest.PeersOf(40)
	n := NewTable("self", people, false)
	pool := keepertest.Spread(t, 80, random)
	d := &someFull{full: make(map[records.CellKey]bool)}
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
				all = append(all, version{protocol.EntryOf(r, r.Name().Provider.String()), r})
			}
		}
		d.change(random, all)
		g := newGrouping(all, n, d, before)
		want := groupedAnew(all, n, d)
		require.ElementsMatch(t, slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(g.cells)), "step %d", step)
		for c, h := range g.cells {
			require.ElementsMatch(t, want[c].Entries(), h.set().Entries(), "step %d: %s", step, h.key)
			if before != nil && before.cells[c] == h {
				reused++
			}
		}
		for i, id := range []peer.ID{people[0], people[20], "newcomer"} {
			flat := (step+i)%2 == 0 || g.anyFull(id) // both say so
			o := g.sharedWith(id, flat)
			var keys []string
			for i, h := range o.cells {
				keys = append(keys, h.key)
				require.Same(t, h, o.find(o.set.Entries()[i].ID))
			}
			require.ElementsMatch(t, sharedAnew(want, n, id, flat), keys, "step %d", step)
		}
		before = g
	}
	require.Greater(t, reused, 1000)
}

// change fills and empties cells at random; seldom it takes cells below the maximum length into use.
func (s *someFull) change(random *rand.Rand, all []version) {
	s.deep = random.IntN(10) == 0
	if random.IntN(3) > 0 || len(all) == 0 {
		return
	}
	cells := all[random.IntN(len(all))].record.Cells()
	c := cells[random.IntN(len(cells)-1)] // the last is the provider's, which is never full
	if s.full[c] {
		delete(s.full, c)
	} else {
		s.full[c] = true
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
	n := NewTable("self", keepertest.PeersOf(5), false)
	first := newView(x, n, time.Now(), allEmpty{}, nil)
	cells := first.cells().cells
	put(recs[50]) // of another provider
	second := newView(x, n, time.Now(), allEmpty{}, first)
	whole := records.CellKey{Type: recs[0].Type(), Subtype: records.AnySubtype, Cell: geo.Global}
	require.Equal(t, 51, second.held(whole, false).set().Len())
	require.Equal(t, 50, cells[whole].set().Len())
	own := records.ProviderCell(recs[0].Name().Provider)
	require.Same(t, cells[own], second.held(own, false))

	third := newView(x, n, time.Now(), allEmpty{}, second)
	require.Same(t, second.held(whole, false), third.held(whole, false))
	moved := newView(x, NewTable("self", keepertest.PeersOf(6), false), time.Now(), allEmpty{}, third)
	require.NotSame(t, third.held(whole, false), moved.held(whole, false), "another table, other keepers")
}
