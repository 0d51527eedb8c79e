package p2p

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	kb "github.com/libp2p/go-libp2p-kbucket"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"
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
		found, err = n.Routing().Closest(ctx, key, nil)
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

// A lack of room for a connection, on either side, is not death.
func TestNoRoomIsNotDeath(t *testing.T) {
	for err, want := range map[error]state{
		network.ErrResourceLimitExceeded:                                          noRoom,
		&network.ConnError{ErrorCode: network.ConnResourceLimitExceeded}:          noRoom,
		&network.ConnError{Remote: true, ErrorCode: network.ConnGarbageCollected}: noRoom,
		&network.ConnError{ErrorCode: network.ConnGated}:                          silent,
		errors.New("no route"):                                                    silent,
	} {
		require.Equal(t, want, stateOf(fmt.Errorf("dial: %w", err)), "%v", err)
	}
}

func TestPeersWithoutRoomStayInTheAnswer(t *testing.T) {
	for _, c := range []struct {
		answers, full, found int
		settled              bool
	}{
		{answers: 10, found: 20, settled: true},
		{answers: 6, full: 4, found: 20, settled: true},
		{answers: 5, full: 5, found: 20, settled: true},
		{answers: 4, full: 6, found: 20},
		{answers: 4, full: 1, found: 5},
		{answers: 5, found: 5, settled: true},
		{full: 3, found: 3},
	} {
		err := checkAnswers(c.found, c.answers, c.full)
		require.Equal(t, c.settled, err == nil, "%+v", c)
	}
}

// One address group cannot fill an answer.
func TestDiverseAnswers(t *testing.T) {
	var infos []*peer.AddrInfo
	for i, a := range []string{"1.2.0.1", "1.2.0.2", "1.2.0.3", "1.2.0.4", "3.4.0.1"} {
		infos = append(infos, &peer.AddrInfo{
			ID: peer.ID(fmt.Sprint(i)), Addrs: []multiaddr.Multiaddr{addr(t, "/ip4/"+a+"/tcp/1")},
		})
	}
	require.Len(t, limitAddressGroups(infos), 1)
	require.Len(t, limitAddressGroups(infos[1:]), 4)
}

// Above the high water mark, a peer still connects to new peers: between mark and hard limit is room for the
// dials of one grace period.
func TestRoomAboveTheHighWaterMark(t *testing.T) {
	c := testConfig(t)
	c.Limits.Connections = minConnections
	c, row, err := c.complete()
	require.NoError(t, err)
	resources, err := newResources(&c, row)
	require.NoError(t, err)
	defer resources.Close()
	for _, dir := range []network.Direction{network.DirInbound, network.DirOutbound} {
		for i := range 3 * minConnections {
			scope, err := resources.OpenConnection(dir, true, addr(t, fmt.Sprintf("/ip4/203.0.113.%d/tcp/4801", 1+i)))
			require.NoError(t, err, "%s %d", dir, i)
			require.NoError(t, scope.SetPeer(peer.ID(fmt.Sprint(dir, i))))
			defer scope.Done()
		}
	}
}

// A search begins with connected servers that are in no bucket, and never with a leaf.
func TestSearchBeginsWithConnectedServers(t *testing.T) {
	servers := meet(t, 4)
	c := testConfig(t)
	c.Leaf, c.Listen = true, nil
	c.Bootstrap = []peer.AddrInfo{info(servers[0]), info(servers[1])}
	leaf := start(t, c)
	waitTable(t, leaf, func(size int) bool { return size == 4 })
	require.NoError(t, leaf.host.Connect(t.Context(), info(servers[0])))
	n := servers[0]
	require.Contains(t, n.host.Network().Peers(), leaf.host.ID())
	target := kb.ConvertKey("k")
	var others []peer.ID
	for _, s := range servers[1:] {
		others = append(others, s.host.ID())
		n.dht.RoutingTable().RemovePeer(s.host.ID())
	}
	require.ElementsMatch(t, others, n.Routing().finder.acquainted(target))
	s := newSearch("k", n.host.ID())
	for _, id := range n.Routing().finder.acquainted(target) {
		s.add(id, false)
	}
	require.Len(t, s.next(time.Now()), 3)
}
