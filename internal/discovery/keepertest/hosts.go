package keepertest

import (
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	ma "github.com/multiformats/go-multiaddr"
)

// Addressed is a host that knows one address of each peer, and has no connection.
type Addressed struct {
	host.Host
	Of map[peer.ID]string
}

func (h Addressed) Network() network.Network { return unconnected{} }

func (h Addressed) Peerstore() peerstore.Peerstore { return addressbook{addresses: h} }

type addressbook struct {
	peerstore.Peerstore
	addresses Addressed
}

func (b addressbook) Addrs(id peer.ID) []ma.Multiaddr {
	if addr, ok := b.addresses.Of[id]; ok {
		return []ma.Multiaddr{ma.StringCast(addr)}
	}
	return nil
}

// unconnected is a network without connections.
type unconnected struct{ network.Network }

func (unconnected) ConnsToPeer(peer.ID) []network.Conn { return nil }
