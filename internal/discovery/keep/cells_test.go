package keep

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// bench are cells for 20 records, and their index.
type bench struct {
	*Cells
	t       *testing.T
	index   *index.Index
	changes int
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, index: index.New(index.Config{})}
	b.Cells = NewCells(b.index, time.Now, 20, func() bool { return false }, func() { b.changes++ })
	return b
}

// put offers records of one prefix to a cell, keeps those that have room, and returns how many had none, by reason.
func (b *bench) put(c records.CellKey, prefix string, recs ...*records.Record) (refused [4]int) {
	from := netip.MustParsePrefix(prefix)
	for _, r := range recs {
		room := b.take(c, r, from, func(*records.Record) bool { return false })
		refused[room]++
		if room == roomy {
			b.senders.Add(r.Name(), from)
			_, err := b.index.Put(r, time.Now())
			require.NoError(b.t, err)
		}
	}
	return refused
}

// A cell takes so many records as its capacity, and counts anew after a while.
func TestCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		c := keepertest.CellOfBerlin(4)
		recs := keepertest.Many(t, 30, 1)
		require.Equal(t, [4]int{roomy: 20, none: 10}, b.put(c, "198.18.0.0/24", recs...))
		require.Equal(t, [4]int{none: 1}, b.put(c, "198.18.1.0/24", recs[25]))
		require.True(t, b.index.Remove(recs[0].Name()))
		require.Equal(t, [4]int{none: 1}, b.put(c, "198.18.1.0/24", recs[25]))
		time.Sleep(countTTL)
		require.Equal(t, [4]int{roomy: 1, none: 1}, b.put(c, "198.18.1.0/24", recs[25], recs[26]))
		require.Equal(t, roomy, b.take(records.ProviderCell(recs[0].Name().Provider), recs[0], netip.Prefix{}, nil))
		small := NewCells(b.index, time.Now, 20, func() bool { return true }, func() {})
		require.Equal(t, roomy, small.take(c, recs[27], netip.Prefix{}, nil))
	})
}

// The records without a place have a capacity of their own.
func TestUnplacedHaveTheirOwnCapacity(t *testing.T) {
	b := newBench(t)
	c := records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: geo.Global}
	p := keepertest.NewProvider(t)
	for i := range 20 {
		r := p.Sign(t, keepertest.Offer(fmt.Sprint(i), keepertest.Nowhere), 1, time.Now())
		require.Equal(t, [4]int{roomy: 1}, b.put(c, fmt.Sprintf("198.18.%d.0/24", i), r))
	}
	require.Equal(t, [4]int{roomy: 20, none: 1}, b.put(c, "198.19.0.0/24", keepertest.Many(t, 21, 1)...))
	r := p.Sign(t, keepertest.Offer("more", keepertest.Nowhere), 1, time.Now())
	require.Equal(t, [4]int{overfull: 1}, b.put(c, "198.20.0.0/24", r))
}

// A full cell without children is a condition of this peer, a full cell with children is none: its parts answer for it.
func TestOverfullIsACondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		set := condition.NewSet(slog.New(slog.DiscardHandler), time.Now)
		y := &Syncer{SyncerConfig: SyncerConfig{Conditions: set}, cells: b.Cells}
		b.refuse(keepertest.CellOfBerlin(4))
		y.reportFull()
		require.Empty(t, set.ActiveNames())
		b.refuse(Unplaced(records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: geo.Global}))
		y.reportFull()
		require.Equal(t, []string{string(condition.CellFull)}, set.ActiveNames())
		time.Sleep(fullFor)
		y.reportFull()
		require.Empty(t, set.ActiveNames())
	})
}

// In a cell without children one address prefix has its share, and gives way above it. So many honest prefixes as there are parts
// fill it, and no one alone.
func TestPrefixesShareALeaf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		c := keepertest.CellOfBerlin(geo.DeepLen)
		flood := keepertest.Many(t, 300, 100)
		require.Equal(t, 20, b.put(c, "203.0.113.0/24", flood...)[roomy], "there is room")
		require.Equal(t, [4]int{unfair: 1}, b.put(c, "203.0.113.0/24", keepertest.Many(t, 1, 1)...))
		honest := keepertest.Many(t, 15, 1)
		for i, r := range honest {
			require.Equal(t, [4]int{roomy: 1}, b.put(c, fmt.Sprintf("198.18.%d.0/24", i), r))
			_, held := b.index.Get(r.Name())
			require.True(t, held)
		}
		require.Equal(t, 20, b.index.CountIn(c, time.Now(), 100))
		time.Sleep(countTTL)
		require.Equal(t, [4]int{overfull: 1}, b.put(c, "198.19.0.0/24", keepertest.Many(t, 1, 1)...), "nobody has more than a share")
	})
}

// What another cell needs stays in the index when a leaf displaces it.
func TestDisplacedRecordsOfOtherCellsStay(t *testing.T) {
	b := newBench(t)
	c := keepertest.CellOfBerlin(geo.DeepLen)
	flood := keepertest.Many(t, 20, 20)
	b.put(c, "203.0.113.0/24", flood...)
	r := keepertest.Many(t, 1, 1)[0]
	require.Equal(t, roomy, b.take(c, r, netip.MustParsePrefix("198.18.0.0/24"), func(*records.Record) bool { return true }))
	require.Equal(t, 20, b.index.Len())
}

// A mark lasts from the last refusal for the life of a record and the memory of publishers. After it the peer lacks records until a round
// that began later.
func TestMarksEndWithAComparison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		c := keepertest.CellOfBerlin(6)
		b.refuse(c)
		time.Sleep(time.Hour)
		b.refuse(c)
		require.Equal(t, 1, b.changes)
		require.Equal(t, fullFor, b.Left(c))
		require.True(t, b.Young(c))
		require.Equal(t, []records.CellKey{c}, b.AllFull())
		time.Sleep(records.MaxTTL)
		require.False(t, b.Young(c))
		require.True(t, b.Full(c))
		began := time.Now()
		time.Sleep(skipFor)
		require.False(t, b.Full(c))
		require.Contains(t, b.Lacks(c), "has not compared it since")
		two := func(records.CellKey) ([]peer.ID, bool) { return []peer.ID{"a", "b"}, true }
		nobody := func(records.CellKey) ([]peer.ID, bool) { return nil, true }
		b.Decide(began, two, false)
		require.NotEmpty(t, b.Lacks(c), "the round began before")
		b.Decide(time.Now(), nobody, false)
		require.NotEmpty(t, b.Lacks(c), "no partner keeps the cell")
		b.Decide(time.Now(), two, false)
		require.Empty(t, b.Lacks(c))
		b.refuse(c)
		time.Sleep(fullFor)
		b.Decide(time.Now(), nobody, true)
		require.Empty(t, b.Lacks(c), "alone in the network")
		b.refuse(c)
		time.Sleep(fullFor)
		b.Decide(time.Now(), func(records.CellKey) ([]peer.ID, bool) { return nil, false }, false)
		require.Empty(t, b.marks, "no cell of this peer any more")
	})
}

// What other keepers say counts by the most. A cell that was whole here before is not doubted for one of them.
func TestPartnersSayWhatIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := keepertest.CellOfBerlin(3)
		full := map[records.CellKey]time.Duration{c: time.Hour}
		never, always := func(records.CellKey) bool { return false }, func(records.CellKey) bool { return true }
		partners := func(records.CellKey) ([]peer.ID, bool) { return []peer.ID{"a", "b", "c"}, true }

		joiner := newBench(t)
		joiner.Hear("a", full, never)
		require.Contains(t, joiner.Lacks(c), "another keeper says")
		joiner.Decide(time.Now(), partners, false)
		require.Empty(t, joiner.Lacks(c), "two hold it whole")
		joiner.Hear("b", map[records.CellKey]time.Duration{c: 100 * time.Hour}, never)
		joiner.Decide(time.Now(), partners, false)
		require.Equal(t, fullFor, joiner.Left(c), "the middle end, and no longer than a mark lasts")
		require.Empty(t, joiner.Lacks(c), "that it is full is true")

		old := newBench(t)
		old.Hear("a", full, always)
		require.Empty(t, old.Lacks(c))
		old.Hear("a", nil, always)
		require.Empty(t, old.contested)
		old.Hear("a", full, never)
		old.Hear("b", full, never)
		old.Hear("c", full, never)
		old.Decide(time.Now(), partners, false)
		require.Equal(t, time.Hour, old.Left(c))
	})
}

// A keeper may call full what it was asked for, and the child of a full cell of six characters or more gets the record too.
func TestSkips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSkips()
		p := keepertest.NewProvider(t)
		r := p.Sign(t, keepertest.Offer("one"), 1, time.Now())
		wide, narrow := keepertest.CellOfBerlin(3), keepertest.CellOfBerlin(6)
		all := func(string) bool { return true }
		require.NoError(t, s.add("k", []string{wide.String(), narrow.String()}, all, time.Now()))
		require.False(t, s.wants("k", wide, r, time.Now()))
		require.True(t, s.wants("other", wide, r, time.Now()))
		require.True(t, s.wants("k", narrow, r, time.Now()))
		require.True(t, s.wants("k", wide, p.Withdraw(t, r, time.Now()), time.Now()))
		child, some := s.childOf(narrow, r, time.Now())
		require.True(t, some)
		require.Equal(t, keepertest.CellOfBerlin(7), child)
		_, some = s.childOf(wide, r, time.Now())
		require.False(t, some)
		s.forget("k")
		require.True(t, s.wants("k", wide, r, time.Now()))
		require.NoError(t, s.add("k", []string{wide.String()}, all, time.Now()))
		time.Sleep(skipFor)
		require.True(t, s.wants("k", wide, r, time.Now()))
		_, some = s.childOf(narrow, r, time.Now())
		require.False(t, some)
		for _, bad := range []string{"x", keepertest.CellOfBerlin(geo.DeepLen).String(), records.ProviderCell(p.Id).String()} {
			require.Error(t, s.add("k", []string{bad}, all, time.Now()))
		}
		require.Error(t, s.add("k", []string{wide.String()}, func(string) bool { return false }, time.Now()))
	})
}

// CellsOf has the cells below geo.MaxLen that are in use.
func TestDeepCellsInUse(t *testing.T) {
	b := newBench(t)
	r := keepertest.Many(t, 1, 1)[0]
	require.Equal(t, r.Cells(), b.CellsOf(r))
	require.False(t, b.AnyDeep())
	b.deep.Add(keepertest.CellOfBerlin(7), struct{}{})
	require.True(t, slices.Contains(b.CellsOf(r), keepertest.CellOfBerlin(7)))
	require.Len(t, b.CellsOf(r), len(r.Cells())+1)
	leaf, is := leafOf(keepertest.CellOfBerlin(geo.DeepLen), r)
	require.True(t, is)
	require.False(t, Divisible(leaf))
	_, some := ChildOf(leaf, r)
	require.False(t, some)
}

// Partners that call more cells full than this peer can remember raise doubts about cells that it has not compared yet, and about no other.
func TestContestedCellsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never, always := func(records.CellKey) bool { return false }, func(records.CellKey) bool { return true }
		claims := func(partner int) map[records.CellKey]time.Duration {
			full := make(map[records.CellKey]time.Duration)
			for i := range MaxHeard {
				full[records.CellKey{Type: fmt.Sprint("t", partner), Subtype: fmt.Sprint("s", i), Cell: "u"}] = time.Hour
			}
			return full
		}
		for _, trusted := range []func(records.CellKey) bool{never, always} {
			b := newBench(t)
			for partner := range maxContested/MaxHeard + 1 {
				b.Hear(peer.ID(fmt.Sprint(partner)), claims(partner), trusted)
			}
			require.Len(t, b.contested, maxContested)
			doubted := b.Lacks(keepertest.CellOfBerlin(3)) != ""
			require.Equal(t, !trusted(records.CellKey{}), doubted)
			time.Sleep(time.Minute)
			require.Empty(t, b.Lacks(keepertest.CellOfBerlin(3)))
		}
	})
}
