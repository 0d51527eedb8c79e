package index_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

func TestProviderHasItsShare(t *testing.T) {
	x, key := index.New(index.Config{MaxPerProvider: 2}), keyOf(t, 1)
	for _, id := range []string{"a", "b"} {
		_, err := x.Put(sign(t, key, cdn(id), stamp(1, 0, time.Minute)), epoch())
		require.NoError(t, err)
	}
	_, err := x.Put(sign(t, key, cdn("c"), stamp(1, 0, time.Minute)), epoch())
	require.ErrorIs(t, err, fault.LimitReached)

	_, err = x.Put(sign(t, key, cdn("a"), stamp(2, 0, time.Minute)), epoch())
	require.NoError(t, err, "an update needs no room")
	last, _ := x.Get(records.Name{Provider: idOf(t, key), ID: "b"})
	_, err = x.Put(tombstone(t, key, last, stamp(2, 0, time.Minute)), epoch())
	require.NoError(t, err)
	_, err = x.Put(sign(t, key, cdn("c"), stamp(1, 0, time.Minute)), epoch())
	require.NoError(t, err, "a withdrawal makes room")
	_, err = x.Put(sign(t, key, cdn("b"), stamp(3, 0, time.Minute)), epoch())
	require.ErrorIs(t, err, fault.LimitReached, "a withdrawn service needs room to come back")
	latest, _ := x.Latest(last.Name())
	require.True(t, latest.Withdrawn(), "a refusal changes nothing")
}

// TestFullIndexEvictsFairly: a new record evicts the earliest-expiring record of a larger
// provider, never of an equal one.
func TestFullIndexEvictsFairly(t *testing.T) {
	x := index.New(index.Config{MaxRecords: 4})
	put := func(provider int, id string, ttl time.Duration) error {
		_, err := x.Put(sign(t, keyOf(t, provider), cdn(id), stamp(1, 0, ttl)), epoch())
		return err
	}
	for i, ttl := range []time.Duration{4, 2, 1, 3} {
		require.NoError(t, put(1, fmt.Sprint("s", i), ttl*time.Minute))
	}
	require.ErrorIs(t, put(1, "more", time.Minute), fault.LimitReached, "the richest makes no room for itself")
	require.NoError(t, put(2, "a", time.Minute))
	require.NoError(t, put(2, "b", time.Minute))
	require.Equal(t, 4, x.Len())
	require.Equal(t, []string{"s0", "s3"}, idsOf(x.OfProvider(idOf(t, keyOf(t, 1)))))
	require.ErrorIs(t, put(2, "c", time.Minute), fault.LimitReached)
	require.NoError(t, put(3, "a", time.Minute))
	require.ErrorIs(t, put(3, "b", time.Minute), fault.LimitReached)
	require.Equal(t, uint64(3), x.Stats().Evictions)
}

func idsOf(all []*records.Record) []string {
	var ids []string
	for _, r := range all {
		ids = append(ids, r.Name().ID)
	}
	return ids
}

// TestBoundsHold: no sequence of calls exceeds a limit, and the withdrawal of a live record
// always succeeds.
func TestBoundsHold(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := index.Config{MaxRecords: rapid.IntRange(1, 12).Draw(rt, "records"), MaxPerProvider: rapid.IntRange(1, 3).Draw(rt, "share"), MaxTombstones: rapid.IntRange(1, 6).Draw(rt, "tombstones")}
		m := newMachine(t)
		m.x = index.New(c)
		s := seeded(rapid.Uint64().Draw(rt, "seed"))
		for range 60 {
			m.at += time.Duration(s(30)) * time.Second
			r := m.sign(t, s)
			_, wasLive := m.x.Get(r.Name())
			before, _ := m.x.Latest(r.Name())
			_, err := m.x.Put(r, m.now())
			if r.Withdrawn() && wasLive && records.Compare(r, before) > 0 {
				require.NoError(rt, err)
				require.Empty(rt, live(m.x, r.Name()))
			}
			if s(4) == 0 {
				m.x.Expire(m.now())
			}
			stats := m.x.Stats()
			require.LessOrEqual(rt, stats.Live, c.MaxRecords)
			require.LessOrEqual(rt, stats.Remembered, c.MaxTombstones)
			for _, id := range m.ids {
				require.LessOrEqual(rt, len(m.x.OfProvider(id)), c.MaxPerProvider)
			}
		}
		m.x.Expire(m.now().Add(records.MaxTTL))
		require.Zero(rt, m.x.Stats().Live+m.x.Stats().Remembered+m.x.Stats().Providers+m.x.Stats().Types)
		_, due := m.x.NextExpiry()
		require.False(rt, due)
	})
}

func live(x *index.Index, n records.Name) []*records.Record {
	r, ok := x.Get(n)
	if !ok {
		return nil
	}
	return []*records.Record{r}
}
