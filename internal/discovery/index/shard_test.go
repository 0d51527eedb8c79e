package index

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/records"
)

// TestRowsAreBounded: updates remove dead rows and unused dictionary values, and keep the number
// of blocks small. Incremental merges may delay both a little.
func TestRowsAreBounded(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	key, _, err := crypto.GenerateEd25519Key(rand.NewChaCha8([32]byte{}))
	require.NoError(t, err)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	versions := make([]*records.Record, 4000)
	for i := range versions {
		o := records.Offer{
			ID:       fmt.Sprint("s", rng.IntN(100)),
			Metadata: records.Metadata{Type: "oracle", Subtype: fmt.Sprint("v", i)},
			Location: &records.Location{Region: fmt.Sprint("r", i)},
		}
		versions[i], err = records.Sign("test", key, o, records.Stamp{Sequence: uint64(i) + 1, Issued: now, Expires: now.Add(time.Hour)})
		require.NoError(t, err)
	}
	for _, c := range []struct{ swift, blocks, late int }{{maxInlineRows, 5, 0}, {40, 8, 80}} {
		x := NewInline(Config{}, c.swift)
		for _, r := range versions {
			_, err = x.Put(r, now)
			require.NoError(t, err)
			s := x.shards.of("oracle")
			rows := s.filled
			for _, b := range s.blocks {
				rows += len(b.records)
			}
			require.Equal(t, rows, s.live+s.dead)
			require.LessOrEqual(t, s.dead, maxDead+(s.live+1)/2+1+c.late)
			require.LessOrEqual(t, s.codec.size(), 2*s.live+maxDead+2*len(s.delta.records))
			require.LessOrEqual(t, len(s.blocks), c.blocks)
			if j := s.job; j != nil {
				require.LessOrEqual(t, j.pace, leastPace+j.rows/(c.swift/4))
			}
		}
	}
}

// TestRemovedRowsGo: removals alone also remove dead rows.
func TestRemovedRowsGo(t *testing.T) {
	s := newShard(maxInlineRows)
	all := make([]*records.Record, 3000)
	for i := range all {
		all[i] = new(records.Record)
		s.put(all[i], nil)
	}
	for _, r := range all[:2900] {
		s.remove(r)
		require.LessOrEqual(t, s.dead, maxDead+(s.live+1)/2+1)
	}
	require.Equal(t, 100, s.live)
}

// TestSnapshotsStay: later changes do not affect a snapshot.
func TestSnapshotsStay(t *testing.T) {
	s := newShard(maxInlineRows)
	first, second := new(records.Record), new(records.Record)
	s.put(first, nil)
	before := s.snapshot.Load()
	s.put(second, first)
	after := s.snapshot.Load()
	require.Equal(t, 1, before.filled)
	require.True(t, before.delta.aliveAt(0, before.version))
	require.Equal(t, 2, after.filled)
	require.False(t, after.delta.aliveAt(0, after.version))
	require.True(t, after.delta.aliveAt(1, after.version))
}

// TestVersionsStartAnew: after its last version a shard continues with a new block.
func TestVersionsStartAnew(t *testing.T) {
	s := newShard(maxInlineRows)
	first, second := new(records.Record), new(records.Record)
	s.put(first, nil)
	s.version = math.MaxUint32
	old := s.snapshot.Load()
	s.put(second, first)
	require.Equal(t, uint32(1), s.version)
	require.True(t, old.delta.aliveAt(0, old.version))
	require.False(t, s.blocks[0].aliveAt(0, s.version))
	require.True(t, s.delta.aliveAt(0, s.version))
}

func TestTranspose(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var a, b [64]uint64
	for i := range a {
		a[i] = rng.Uint64()
	}
	b = a
	transpose(&b)
	for i := range 64 {
		for j := range 64 {
			require.Equal(t, a[i]>>j&1, b[j]>>i&1)
		}
	}
}
