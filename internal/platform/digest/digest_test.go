package digest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/fault"
)

// drawn is a set as a map, with ids in few buckets.
func drawn(t *rapid.T, name string) map[ID]Version {
	return rapid.MapOf(
		rapid.Custom(func(t *rapid.T) ID {
			return ID{byte(rapid.IntRange(0, 3).Draw(t, "bucket") * 85), byte(rapid.IntRange(0, 20).Draw(t, "id"))}
		}),
		rapid.Custom(func(t *rapid.T) Version {
			return VersionOf(uint64(rapid.IntRange(1, 3).Draw(t, "sequence")), [sha256.Size]byte{byte(rapid.IntRange(0, 1).Draw(t, "hash"))})
		}),
	).Draw(t, name)
}

func setOf(m map[ID]Version) *Set {
	entries := make([]Entry, 0, len(m))
	for id, v := range m {
		entries = append(entries, Entry{id, v})
	}
	return New(entries)
}

// The listed entries of different buckets include all entries that the other side lacks or has in
// another version, for any page size.
func TestListFindsDifferences(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawn(t, "a"), drawn(t, "b")
		mine, theirs := setOf(a), setOf(b)
		require.Equal(t, maps.Equal(a, b), mine.Root() == theirs.Root())

		room := rapid.IntRange(21, 60).Draw(t, "room") * EntrySize // the maximum of a bucket is 21
		listed := map[ID]Version{}
		for from := 0; from < Buckets; {
			wire, next := theirs.List(mine.Sums(), from, room, room)
			require.Greater(t, next, from)
			require.LessOrEqual(t, len(wire), room)
			from = next
			entries, err := Parse(wire)
			require.NoError(t, err)
			for _, e := range entries {
				require.Equal(t, b[e.ID], e.Version)
				listed[e.ID] = e.Version
			}
		}
		for id, v := range b {
			if w, ok := a[id]; !ok || w != v {
				require.Equal(t, v, listed[id])
			}
		}
		all, _ := theirs.List(nil, 0, 1<<20, 1<<20)
		require.Equal(t, theirs.Len()*EntrySize, len(all))
	})
}

func TestSetHoldsItsEntries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawn(t, "set")
		s := setOf(m)
		var together []Entry
		for i := range Buckets {
			for _, e := range s.In(i) {
				require.Equal(t, i, e.ID.Bucket())
			}
			require.Equal(t, len(s.In(i)) == 0, s.Sums()[i] == Sum{})
			together = append(together, s.In(i)...)
		}
		require.True(t, slices.Equal(s.Entries(), together))
		require.Len(t, together, len(m))
		require.True(t, slices.IsSortedFunc(together, Entry.compare))
		sums := s.Sums()
		require.Equal(t, s.Root(), sums.Root())
		twice := New(slices.Concat(together, together))
		require.Equal(t, s.Root(), twice.Root())
	})
}

func TestSumsOnTheWire(t *testing.T) {
	s := New([]Entry{{IDOf("a"), Version{1}}, {IDOf("b"), Version{2}}})
	back, err := ParseSums(s.Sums().Bytes())
	require.NoError(t, err)
	require.Equal(t, s.Sums(), back)
	require.Equal(t, s.Root(), back.Root())
	require.Equal(t, Sum{}, New(nil).Root())
	_, err = ParseSums(make([]byte, SumsSize-1))
	require.ErrorIs(t, err, fault.Invalid)
	_, err = Parse(make([]byte, EntrySize+1))
	require.ErrorIs(t, err, fault.Invalid)
	_, err = ParseIDs(make([]byte, 3*IDSize), 2)
	require.ErrorIs(t, err, fault.Invalid)
	_, err = ParseIDs(make([]byte, IDSize+1), 2)
	require.ErrorIs(t, err, fault.Invalid)
	ids, err := ParseIDs(bytes.Repeat([]byte{7}, 2*IDSize), 2)
	require.NoError(t, err)
	require.Len(t, ids, 2)
}

// A bucket above the maximum is cut, so that every page makes progress.
func TestListCutsLargeBuckets(t *testing.T) {
	entries := make([]Entry, 100)
	for i := range entries {
		entries[i].ID[5] = byte(i)
	}
	s := New(entries)
	wire, next := s.List(nil, 0, 10*EntrySize, 10*EntrySize)
	require.Len(t, wire, 10*EntrySize)
	require.Equal(t, Buckets, next)
	wire, next = s.List(nil, 0, 5*EntrySize, 10*EntrySize)
	require.Empty(t, wire)
	require.Zero(t, next)
}

func TestOrderOfVersions(t *testing.T) {
	low, high := [sha256.Size]byte{1}, [sha256.Size]byte{2}
	require.True(t, VersionOf(2, low).Newer(VersionOf(1, high)))
	require.True(t, VersionOf(1, high).Newer(VersionOf(1, low)))
	require.False(t, VersionOf(1, low).Newer(VersionOf(1, low)))
}

func FuzzParse(f *testing.F) {
	f.Add(Append(nil, Entry{IDOf("a"), Version{1}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		entries, err := Parse(b)
		if err == nil && !bytes.Equal(Append(nil, entries...), b) {
			t.Fatal("another wire form")
		}
	})
}

func BenchmarkNew(b *testing.B) {
	entries := make([]Entry, 100_000)
	for i := range entries {
		entries[i].ID = IDOf(fmt.Sprint(i))
	}
	b.ReportAllocs()
	for b.Loop() {
		New(slices.Clone(entries))
	}
}
