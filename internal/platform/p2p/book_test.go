package p2p

import (
	"crypto/rand"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/libp2p/go-libp2p/core/record"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
	"github.com/libp2p/go-libp2p/p2p/host/peerstore/pstoremem"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"
)

// visit does to a peerstore what the host does during one connection of a fresh identity with 100 addresses and 60 protocols.
func visit(t *testing.T, s knownPeers, n int) peer.ID {
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	require.NoError(t, err)
	id, err := peer.IDFromPrivateKey(key)
	require.NoError(t, err)
	var addrs []multiaddr.Multiaddr
	for port := range 100 {
		addrs = append(addrs, multiaddr.StringCast(fmt.Sprintf("/ip4/10.%d.%d.1/tcp/%d", n/250%250, n%250, 1000+port)))
	}
	envelope, err := record.Seal(&peer.PeerRecord{PeerID: id, Addrs: addrs, Seq: 1}, key)
	require.NoError(t, err)
	require.NoError(t, s.AddPubKey(id, key.GetPublic()))
	for range 60 {
		require.NoError(t, s.AddProtocols(id, "/some/protocol/1.0.0"))
	}
	require.NoError(t, s.Put(id, "AgentVersion", "stranger"))
	// identify, when it hears of the peer
	s.UpdateAddrs(id, peerstore.RecentlyConnectedAddrTTL, peerstore.TempAddrTTL)
	s.UpdateAddrs(id, peerstore.ConnectedAddrTTL, peerstore.TempAddrTTL)
	_, err = s.ConsumePeerRecord(envelope, peerstore.ConnectedAddrTTL)
	require.NoError(t, err)
	s.AddAddrs(id, addrs, peerstore.ConnectedAddrTTL)
	s.UpdateAddrs(id, peerstore.TempAddrTTL, 0)
	require.Len(t, s.Addrs(id), 100, "the connected ones stay whole")
	// identify, after the last connection, and the manager of the peerstore
	left := s.Addrs(id)
	s.UpdateAddrs(id, peerstore.ConnectedAddrTTL, peerstore.TempAddrTTL)
	s.AddAddrs(id, left[:20], peerstore.RecentlyConnectedAddrTTL)
	s.UpdateAddrs(id, peerstore.TempAddrTTL, 0)
	s.RemovePeer(id)
	return id
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestIdentitiesAreForgotten: 20 minutes after one connection each, nothing is left of 5,000 identities but at most 1 KB.
func TestIdentitiesAreForgotten(t *testing.T) {
	const identities = 5000
	synctest.Test(t, func(t *testing.T) {
		inner, err := pstoremem.NewPeerstore()
		require.NoError(t, err)
		defer inner.Close()
		var honest peer.ID
		b := newBook(inner, func(p peer.ID) bool { return p == honest })
		honest = visit(t, b, 0)
		before := heap()
		for n := range identities {
			visit(t, b, n)
		}
		require.Len(t, b.PeersWithAddrs(), maxParted+1, "the last ones, and one of the routing table")
		require.NotEmpty(t, b.Addrs(honest))
		for _, id := range b.PeersWithAddrs() {
			require.LessOrEqual(t, len(b.Addrs(id)), maxLeft)
		}
		meanwhile := heap()
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		require.Empty(t, b.Peers())
		left := (heap() - before) / identities
		t.Logf("bytes for each identity: %d after its connection, %d after 20 minutes", (meanwhile-before)/identities, left)
		require.Less(t, left, int64(1024))
		runtime.KeepAlive(inner)
	})
}

// TestIdentifiedPeersKeepTheirAddresses: whoever asks for a connected peer while it is identified again finds it.
func TestIdentifiedPeersKeepTheirAddresses(t *testing.T) {
	inner, err := pstoremem.NewPeerstore()
	require.NoError(t, err)
	defer inner.Close()
	b := newBook(inner, func(peer.ID) bool { return false })
	id, addrs := peer.ID("a"), []multiaddr.Multiaddr{multiaddr.StringCast("/ip4/10.0.0.1/tcp/1")}
	b.AddAddrs(id, addrs, peerstore.ConnectedAddrTTL)
	again := make(chan struct{})
	go func() {
		defer close(again)
		for range 10_000 {
			b.UpdateAddrs(id, peerstore.ConnectedAddrTTL, peerstore.TempAddrTTL)
			b.AddAddrs(id, addrs, peerstore.ConnectedAddrTTL)
		}
	}()
	for lost := 0; ; {
		select {
		case <-again:
			require.Zero(t, lost)
			return
		default:
			if len(b.PeerInfo(id).Addrs) == 0 {
				lost++
			}
		}
	}
}

// TestLibraryKeepsTheConnected fails as soon as the library forgets addresses by itself: then book and plainHost can go.
func TestLibraryKeepsTheConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, err := pstoremem.NewPeerstore()
		require.NoError(t, err)
		defer inner.Close()
		for n := range 10 {
			visit(t, inner, n)
		}
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		require.Len(t, inner.PeersWithAddrs(), 10)
	})
}

// TestGossipKeepsNoBook: GossipSub's book hears of no identification; its other parts do.
func TestGossipKeepsNoBook(t *testing.T) {
	bus := plainBus{eventbus.NewBus()}
	bookOf, err := bus.Subscribe([]any{new(event.EvtPeerIdentificationCompleted), new(event.EvtPeerConnectednessChanged)})
	require.NoError(t, err)
	defer bookOf.Close()
	others, err := bus.Subscribe([]any{new(event.EvtPeerIdentificationCompleted), new(event.EvtPeerProtocolsUpdated)})
	require.NoError(t, err)
	defer others.Close()
	identified, err := bus.Emitter(new(event.EvtPeerIdentificationCompleted))
	require.NoError(t, err)
	defer identified.Close()
	connected, err := bus.Emitter(new(event.EvtPeerConnectednessChanged))
	require.NoError(t, err)
	defer connected.Close()
	require.NoError(t, identified.Emit(event.EvtPeerIdentificationCompleted{}))
	require.NoError(t, connected.Emit(event.EvtPeerConnectednessChanged{}))
	require.IsType(t, event.EvtPeerConnectednessChanged{}, <-bookOf.Out())
	require.IsType(t, event.EvtPeerIdentificationCompleted{}, <-others.Out())
}
