package p2p

import (
	"context"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

// A peer that has met other peers, but no bootstrap peer, may be separated from its network.
func TestPeerWithoutBootstrapPeerReportsIt(t *testing.T) {
	door, c := testConfig(t), testConfig(t)
	c.Bootstrap = []peer.AddrInfo{absent(t, &door)}
	lost, other := start(t, c), start(t, testConfig(t))
	require.NoError(t, other.host.Connect(t.Context(), info(lost)))
	waitTable(t, lost, func(size int) bool { return size == 1 })
	found, err := lookUp(t, lost, "k", 1)
	require.ErrorIs(t, err, fault.Unavailable)
	require.Equal(t, []peer.ID{other.host.ID()}, found)

	start(t, door)
	waitTable(t, lost, func(size int) bool { return size == 2 })
	waitIntroduced(t, lost)
	found, err = lookUp(t, lost, "k", 2)
	require.NoError(t, err)
	require.Len(t, found, 2)
}

// lookUp repeats a lookup until it finds enough peers: on a busy machine a late peer is left out until its
// measurement.
func lookUp(t testing.TB, n *Node, key string, least int) (found []peer.ID, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.Eventually(t, func() bool {
		found, err = n.Routing().Closest(ctx, key)
		return len(found) >= least
	}, patience, 10*time.Millisecond)
	return found, err
}

// A dead peer is left out of an answer, measured, and removed from the table.
func TestLookupRemovesDeadPeers(t *testing.T) {
	nodes := meet(t, 4)
	gone := nodes[3].host.ID()
	require.NoError(t, nodes[3].Close())
	found, err := lookUp(t, nodes[1], "k", 2)
	require.NoError(t, err)
	require.NotContains(t, found, gone)
	require.Len(t, found, 2)
	waitTable(t, nodes[1], func(size int) bool { return size == 2 })
}

// TestStrangersDoNotLearnPrivateAddresses: the DHT answers with the addresses of its peer store. A neighbour's
// private address is there, because multicast DNS found it.
func TestStrangersDoNotLearnPrivateAddresses(t *testing.T) {
	c := testConfig(t)
	c.Profile = Public
	n := start(t, c)
	neighbour := somePeers(t, 1, 1)[0].ID
	n.host.Peerstore().AddAddrs(neighbour, addrs(t, "/ip4/192.168.1.10/tcp/4801", "/ip4/80.20.1.1/tcp/4801"), peerstore.PermanentAddrTTL)
	require.Equal(t, addrs(t, "/ip4/80.20.1.1/tcp/4801"), n.dht.Host().Peerstore().PeerInfo(neighbour).Addrs)
	require.Len(t, n.host.Peerstore().Addrs(neighbour), 2, "this peer itself uses both")
}
