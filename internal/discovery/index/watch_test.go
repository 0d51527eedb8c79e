package index_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/pkg/records"
)

func TestChangesTellAll(t *testing.T) {
	key := keyOf(t, 1)
	a1 := sign(t, key, cdn("a"), stamp(1, 0, time.Hour))
	x := index.New(index.Config{MaxBytes: roomFor(2, a1)})
	a2 := sign(t, key, cdn("a"), stamp(2, 0, time.Hour))
	gone := tombstone(t, key, a2, stamp(3, 0, time.Hour))
	b := sign(t, key, cdn("b"), stamp(1, 0, time.Minute))
	c := sign(t, key, cdn("c"), stamp(1, 0, 2*time.Minute))
	other := sign(t, keyOf(t, 2), cdn("d"), stamp(1, 0, time.Hour))
	for _, r := range []*records.Record{a1, a1, a2, a1, gone, b, c, other} {
		_, _ = x.Put(r, epoch())
	}
	require.Equal(t, 1, x.Expire(epoch().Add(2*time.Minute)))
	want := []index.Change{
		{Seq: 1, Kind: index.Added, New: a1},
		{Seq: 2, Kind: index.Updated, Old: a1, New: a2},
		{Seq: 3, Kind: index.Withdrawn, Old: a2, New: gone},
		{Seq: 4, Kind: index.Added, New: b},
		{Seq: 5, Kind: index.Added, New: c},
		{Seq: 6, Kind: index.Evicted, Old: b},
		{Seq: 7, Kind: index.Added, New: other},
		{Seq: 8, Kind: index.Expired, Old: c},
	}
	some, _, lost := x.After(0, 16)
	require.False(t, lost)
	require.Equal(t, want, some)
	require.Equal(t, uint64(8), x.Seq())
}

// Compared with an unbounded list: a position that is not lost misses no change.
func TestReaderMissesNothing(t *testing.T) {
	x := index.New(index.Config{})
	rapid.Check(t, func(t *rapid.T) {
		last, seen := x.Seq(), x.Seq()
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			n := rapid.IntRange(0, index.FeedSize).Draw(t, "changes")
			for range n {
				index.Publish(x)
			}
			last += uint64(n)
			some, wait, lost := x.After(seen, rapid.IntRange(1, 2*index.FeedSize).Draw(t, "most"))
			if lost != (last-seen > index.FeedSize) {
				t.Fatalf("lost is %v with %d changes unread", lost, last-seen)
			}
			if lost {
				seen = last
				continue
			}
			for _, ch := range some {
				if seen++; ch.Seq != seen {
					t.Fatalf("change %d where %d was due", ch.Seq, seen)
				}
			}
			if seen == last && wait == nil {
				t.Fatal("nothing to wait for")
			}
		}
		if _, _, lost := x.After(last+1, 1); !lost {
			t.Fatal("a position of the future was not told")
		}
	})
}

func TestReaderWaitsForTheNextChange(t *testing.T) {
	x := index.New(index.Config{})
	_, wait, lost := x.After(0, 1)
	require.False(t, lost)
	select {
	case <-wait:
		t.Fatal("there is no change yet")
	default:
	}
	_, err := x.Put(sign(t, keyOf(t, 1), cdn("a"), stamp(1, 0, time.Hour)), epoch())
	require.NoError(t, err)
	<-wait
	some, _, _ := x.After(0, 1)
	require.Len(t, some, 1)
}
