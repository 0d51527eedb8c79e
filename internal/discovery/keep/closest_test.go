package keep

import (
	"context"
	"crypto/sha256"
	"errors"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"

	kb "github.com/libp2p/go-libp2p-kbucket"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/records"
)

// nearest agrees with kad-dht's metric and with arithmetic.
func TestNearestAgainstReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := keepertest.PeersOf(rapid.IntRange(0, 40).Draw(t, "peers"))
		key := rapid.String().Draw(t, "key")
		n := rapid.IntRange(0, 45).Draw(t, "n")
		twice := append(slices.Clone(ids), ids...)
		want := kb.SortClosestPeers(ids, kb.ConvertKey(key))
		require.Equal(t, want[:min(n, len(want))], Nearest(key, twice, n))
		away := func(id peer.ID) *big.Int {
			a, b := sha256.Sum256([]byte(key)), sha256.Sum256([]byte(id))
			return new(big.Int).Xor(new(big.Int).SetBytes(a[:]), new(big.Int).SetBytes(b[:]))
		}
		require.True(t, slices.IsSortedFunc(want, func(a, b peer.ID) int { return away(a).Cmp(away(b)) }))
	})
}

// A peer is responsible exactly if it is among the n closest of itself and all known peers.
func TestResponsibleAgainstReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		others := keepertest.PeersOf(rapid.IntRange(0, 40).Draw(t, "peers"))
		n := rapid.IntRange(1, 25).Draw(t, "n")
		key, self := rapid.String().Draw(t, "key"), peer.ID("self")
		want := slices.Contains(Nearest(key, append(slices.Clone(others), self), n), self)
		require.Equal(t, want, NewTable(self, others, false).closer(key, n) < n)
	})
}

func TestSettle(t *testing.T) {
	for _, tc := range []struct {
		name      string
		others    int
		table     int
		err       error
		keepers   int
		whole     bool
		uncertain bool
	}{
		{name: "alone", keepers: 1, whole: true},
		{name: "a few", others: 4, table: 4, keepers: 5, whole: true},
		{name: "the largest small network", others: 19, table: 19, keepers: 20, whole: true},
		{name: "one more", others: 20, table: 20, keepers: Replicas},
		{name: "a small table in a large network", others: 20, table: 3, keepers: Replicas},
		{name: "a poor lookup in a large network", others: 12, table: 50, keepers: Replicas},
		{name: "a timeout with enough peers", others: 15, table: 15, err: context.DeadlineExceeded, keepers: Replicas},
		{name: "a failure with enough peers", others: 15, table: 15, err: errors.New("failed"), keepers: Replicas, uncertain: true},
		{name: "a failure with few peers", others: 3, table: 3, err: errors.New("failed"), keepers: 4, whole: true, uncertain: true},
		{name: "a failure with few peers of a large network", others: 3, table: 30, err: errors.New("failed"), keepers: 4, uncertain: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			others := keepertest.PeersOf(tc.others)
			set, whole := settle("key", "self", others, tc.table, tc.err)
			require.Equal(t, tc.whole, whole)
			require.Len(t, set.Peers, tc.keepers)
			require.Equal(t, tc.uncertain, set.Uncertain != nil)
			require.True(t, slices.IsSorted(set.Peers))
			if tc.whole {
				require.True(t, set.Has("self"), "every peer of a small network is a keeper")
			}
			inserted := Nearest("key", append(others, "self"), tc.keepers)
			for _, id := range inserted {
				require.True(t, set.Has(id))
			}
		})
	}
}

// A refusal by a peer that does not keep a cell ends the cached lookup: the next announcement finds the keepers.
func TestMistakenLookupIsForgotten(t *testing.T) {
	p := NewClosest(new(protocol.Life), ClosestConfig{})
	wrong, right := records.CellKey{Type: "compute"}, records.CellKey{Type: "storage"}
	now := time.Unix(1, 0)
	for _, c := range []records.CellKey{wrong, right} {
		p.cells.Add(KeyOf(c), newCachedSet(NewSet([]peer.ID{"b"}, nil), true, now, time.Hour))
	}
	p.whole = newCachedSet(NewSet([]peer.ID{"b"}, nil), true, now, time.Hour)
	p.regions.known = []region{{peers: []Peer{{Id: "b"}}}, {peers: []Peer{{Id: "c"}}}}
	p.Forget("b", []records.CellKey{wrong})
	require.False(t, p.cells.Contains(KeyOf(wrong)))
	require.True(t, p.cells.Contains(KeyOf(right)))
	require.Zero(t, p.whole)
	require.Len(t, p.regions.known, 1)
}
