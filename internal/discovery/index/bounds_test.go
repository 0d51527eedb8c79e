package index_test

import (
	"fmt"
	"strings"
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

// roomFor is the MaxBytes of an index that has room for n records of about r's size.
func roomFor(n int, r *records.Record) int64 {
	const slack, overhead = 16, 260 // record sizes differ by a few bytes; package index counts the overhead
	return int64(n*(r.Memory()+overhead+slack)) * 4 / 3
}

// TestFullIndexEvictsFairly: a new record evicts the earliest-expiring record of a larger
// provider, never of an equal one.
func TestFullIndexEvictsFairly(t *testing.T) {
	x := index.New(index.Config{MaxBytes: roomFor(4, sign(t, keyOf(t, 1), cdn("s0"), stamp(1, 0, time.Minute)))})
	put := func(provider int, id string, ttl time.Duration) error {
		_, err := x.Put(sign(t, keyOf(t, provider), cdn(id), stamp(1, 0, ttl)), epoch())
		return err
	}
	for i, ttl := range []time.Duration{4, 2, 1, 3} {
		require.NoError(t, put(1, fmt.Sprint("s", i), ttl*time.Minute))
	}
	require.False(t, x.Crowded(epoch()))
	require.ErrorIs(t, put(1, "s4", time.Minute), fault.LimitReached, "the largest makes no room for itself")
	require.True(t, x.Crowded(epoch().Add(time.Minute)))
	require.False(t, x.Crowded(epoch().Add(time.Hour)))
	require.NoError(t, put(2, "s0", time.Minute))
	require.NoError(t, put(2, "s1", time.Minute))
	require.Equal(t, 4, x.Len())
	require.Equal(t, []string{"s0", "s3"}, idsOf(x.OfProvider(idOf(t, keyOf(t, 1)))))
	require.ErrorIs(t, put(2, "s2", time.Minute), fault.LimitReached)
	require.NoError(t, put(3, "s0", time.Minute))
	require.ErrorIs(t, put(3, "s1", time.Minute), fault.LimitReached)
	evicted := 0
	changes, _, _ := x.After(0, 100)
	for _, ch := range changes {
		if ch.Kind == index.Evicted {
			evicted++
		}
	}
	require.Equal(t, 3, evicted)
}

// bulky returns a service of about 3 KiB.
func bulky(id string) records.Offer {
	o := cdn(id)
	o.Metadata.Attributes = map[string]string{}
	for i := range 10 {
		o.Metadata.Attributes[fmt.Sprint("k", i)] = strings.Repeat("v", 256)
	}
	return o
}

// TestLargeRecordsAreNoWayAround: neither few large records nor records that grow later take the
// places of others.
func TestLargeRecordsAreNoWayAround(t *testing.T) {
	small := sign(t, keyOf(t, 1), cdn("s0"), stamp(1, 0, time.Minute))
	x := index.New(index.Config{MaxBytes: roomFor(20, small)})
	for i := range 20 {
		_, err := x.Put(sign(t, keyOf(t, i), cdn("s0"), stamp(1, 0, time.Hour)), epoch())
		require.NoError(t, err)
	}
	_, err := x.Put(sign(t, keyOf(t, 30), bulky("s0"), stamp(1, 0, time.Hour)), epoch())
	require.ErrorIs(t, err, fault.LimitReached, "a large newcomer")
	require.Equal(t, 20, x.Len())

	grown, err := x.Put(sign(t, keyOf(t, 3), bulky("s0"), stamp(2, 0, time.Hour)), epoch())
	require.NoError(t, err)
	require.Equal(t, index.Updated, grown)
	require.Equal(t, 19, x.Len())
	require.Empty(t, x.OfProvider(idOf(t, keyOf(t, 3))), "who grows beyond all others gives way")
	require.True(t, x.Crowded(epoch()))
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
		c := index.Config{MaxBytes: rapid.Int64Range(1, 20<<10).Draw(rt, "bytes"), MaxPerProvider: rapid.IntRange(1, 3).Draw(rt, "share")}
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
			require.LessOrEqual(rt, stats.Bytes, stats.MaxBytes)
			require.Less(rt, stats.Remembered*600, int(c.MaxBytes/4)+6000, "the bound and one record")
			require.Equal(rt, stats.Bytes == 0, stats.Live == 0)
			for _, id := range m.ids {
				require.LessOrEqual(rt, len(m.x.OfProvider(id)), c.MaxPerProvider)
			}
		}
		m.x.Expire(m.now().Add(records.MaxTTL))
		left := m.x.Stats()
		require.Zero(rt, left.Live+left.Remembered+left.Providers+left.Types)
		require.Zero(rt, left.Bytes)
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
