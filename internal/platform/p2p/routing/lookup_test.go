package routing

import (
	"errors"
	"fmt"
	"testing"
	"time"

	ds "github.com/ipfs/go-datastore"
	dssync "github.com/ipfs/go-datastore/sync"
	"github.com/libp2p/go-libp2p"
	dht "github.com/libp2p/go-libp2p-kad-dht"
	kb "github.com/libp2p/go-libp2p-kbucket"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"
)

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
			ID: peer.ID(fmt.Sprint(i)), Addrs: []multiaddr.Multiaddr{multiaddr.StringCast("/ip4/" + a + "/tcp/1")},
		})
	}
	require.Len(t, limitAddressGroups(infos), 1)
	require.Len(t, limitAddressGroups(infos[1:]), 4)
}

// newHost starts a host with a DHT in a mode, connected to others.
func newHost(t *testing.T, mode dht.ModeOpt, to []*Routing, edits ...func(*Config)) *Routing {
	t.Helper()
	h, err := libp2p.New(libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0"), libp2p.DisableMetrics(), libp2p.DisableRelay())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	c := Config{
		Host: h, Network: "test", Mode: mode, Refresh: time.Hour, Query: time.Minute, Values: dssync.MutexWrap(ds.NewMapDatastore()),
		Bootstrap: func() []peer.AddrInfo { return nil },
	}
	for _, edit := range edits {
		edit(&c)
	}
	d, err := NewDHT(c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	r, err := New(d, c, unmeasured{})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	for _, other := range to {
		require.NoError(t, h.Connect(t.Context(), peer.AddrInfo{ID: other.finder.host.ID(), Addrs: other.finder.host.Addrs()}))
	}
	for changed := r.Changed(); r.Size() < len(to); changed = r.Changed() {
		<-changed
	}
	return r
}

// unmeasured is a prober that knows nothing.
type unmeasured struct{}

func (unmeasured) Avoid(peer.ID) bool   { return false }
func (unmeasured) Suspect(...peer.ID)   {}
func (unmeasured) Responded(peer.ID)    {}
func (unmeasured) Refuses(peer.ID) bool { return false }
func (unmeasured) Late(time.Time) bool  { return false }

// A search begins with connected servers that are in no bucket, and never with a client.
func TestSearchBeginsWithConnectedServers(t *testing.T) {
	var servers []*Routing
	var others []peer.ID
	for range 3 {
		servers = append(servers, newHost(t, dht.ModeServer, nil))
		others = append(others, servers[len(servers)-1].finder.host.ID())
	}
	n := newHost(t, dht.ModeServer, servers)
	client := newHost(t, dht.ModeClient, []*Routing{n})
	require.Contains(t, n.finder.host.Network().Peers(), client.finder.host.ID())
	target := kb.ConvertKey("k")
	for _, id := range others {
		n.dht.RoutingTable().RemovePeer(id)
	}
	require.ElementsMatch(t, others, n.finder.acquainted(target))
	s := newSearch("k", n.finder.host.ID())
	for _, id := range n.finder.acquainted(target) {
		s.add(id, false)
	}
	require.Len(t, s.next(time.Now()), 3)
}
