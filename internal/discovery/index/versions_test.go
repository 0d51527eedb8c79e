package index_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/pkg/records"
)

// Versions yields live records and withdrawals, but no expired records.
func TestVersions(t *testing.T) {
	x, key := index.New(index.Config{}), keyOf(t, 1)
	put := func(r *records.Record) *records.Record {
		_, err := x.Put(r, epoch())
		require.NoError(t, err)
		return r
	}
	lives := put(sign(t, key, cdn("lives"), stamp(1, 0, time.Hour)))
	ended := put(sign(t, key, cdn("ended"), stamp(1, 0, time.Hour)))
	tomb := put(tombstone(t, key, ended, stamp(2, 0, time.Hour)))
	put(sign(t, key, cdn("lapses"), stamp(1, 0, time.Hour)))
	put(sign(t, key, cdn("lapses"), stamp(2, 0, time.Minute))) // the older version stays valid for longer
	require.Equal(t, 1, x.Expire(epoch().Add(2*time.Minute)))
	require.Equal(t, 2, x.Stats().Remembered)

	var got []*records.Record
	for r := range x.Versions() {
		got = append(got, r)
	}
	require.ElementsMatch(t, []*records.Record{lives, tomb}, got)
	for range x.Versions() {
		break // an iteration may end early
	}
}
