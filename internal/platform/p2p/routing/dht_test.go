package routing

import (
	"crypto/rand"
	"testing"
	"testing/synctest"
	"time"

	kb "github.com/libp2p/go-libp2p-kbucket"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/host/peerstore"
	"github.com/stretchr/testify/require"
)

// TestJoinedPeersKeepTheirTable fills a bucket as kad-dht does for a joining peer. Soon no newcomer replaces its
// entries: keepers would take the live peers that leave for lost ones.
func TestJoinedPeersKeepTheirTable(t *testing.T) {
	self := randomPeer(t)
	table, err := kb.NewRoutingTable(Replicas, kb.ConvertPeerID(self), time.Minute, peerstore.NewMetrics(), time.Hour, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, table.Close()) }()
	join := func() (bool, error) { return table.TryAddPeer(farFrom(t, self), true, true) }
	synctest.Test(t, func(t *testing.T) {
		go freeze(t.Context(), table)
		synctest.Wait()
		for range Replicas + 1 {
			added, err := join()
			require.NoError(t, err)
			require.True(t, added, "the last newcomer replaces an entry")
		}
		time.Sleep(freezeEvery)
		synctest.Wait()
		_, err := join()
		require.ErrorIs(t, err, kb.ErrPeerRejectedNoCapacity)
	})
}

// farFrom returns the id of a peer that belongs to the first bucket of another one.
func farFrom(t *testing.T, id peer.ID) peer.ID {
	t.Helper()
	for {
		if other := randomPeer(t); kb.CommonPrefixLen(kb.ConvertPeerID(id), kb.ConvertPeerID(other)) == 0 {
			return other
		}
	}
}

func randomPeer(t *testing.T) peer.ID {
	t.Helper()
	_, public, err := crypto.GenerateEd25519Key(rand.Reader)
	require.NoError(t, err)
	id, err := peer.IDFromPublicKey(public)
	require.NoError(t, err)
	return id
}
