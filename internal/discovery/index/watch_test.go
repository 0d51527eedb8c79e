package index_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/pkg/records"
)

func TestChangesTellAll(t *testing.T) {
	key := keyOf(t, 1)
	a1 := sign(t, key, cdn("a"), stamp(1, 0, time.Hour))
	x := index.New(index.Config{MaxBytes: roomFor(2, a1)})
	sub := x.Subscribe(16)
	defer sub.Close()
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
	for _, w := range want {
		require.Equal(t, w, <-sub.Changes())
	}
	require.Empty(t, sub.Changes())
	require.Equal(t, uint64(8), x.Seq())
	require.Zero(t, sub.Lost())
}

func TestSlowSubscriberIsTold(t *testing.T) {
	x, key := index.New(index.Config{}), keyOf(t, 1)
	slow, fast := x.Subscribe(2), x.Subscribe(8)
	defer fast.Close()
	put := func(sequence uint64) {
		_, err := x.Put(sign(t, key, cdn("a"), stamp(sequence, 0, time.Hour)), epoch())
		require.NoError(t, err)
	}
	for sequence := range uint64(5) {
		put(sequence + 1)
	}
	require.Len(t, fast.Changes(), 5)
	require.Equal(t, uint64(1), (<-slow.Changes()).Seq)
	require.Equal(t, uint64(3), slow.Lost())
	require.Zero(t, slow.Lost())
	put(6)
	require.Equal(t, uint64(2), (<-slow.Changes()).Seq)
	require.Equal(t, uint64(6), (<-slow.Changes()).Seq, "the gap shows")
	require.Equal(t, uint64(3), x.Stats().LostChanges)

	slow.Close()
	slow.Close()
	put(7)
	_, open := <-slow.Changes()
	require.False(t, open)
}

func TestSubscribeBoundsBuffer(t *testing.T) {
	x := index.New(index.Config{})
	for _, c := range []struct{ asked, given int }{{-1, 1}, {0, 1}, {7, 7}, {1 << 30, index.MaxBuffer}} {
		s := x.Subscribe(c.asked)
		require.Equal(t, c.given, cap(s.Changes()))
		s.Close()
	}
}
