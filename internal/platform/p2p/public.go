package p2p

import (
	"slices"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

// The peers of an open network reach each other at public addresses. kad-dht's own filters know no DNS names, which
// a peer may announce.

// publicOnly removes private addresses: strangers must not direct this peer's dials into its own network.
func publicOnly(addrs []multiaddr.Multiaddr) []multiaddr.Multiaddr {
	return multiaddr.FilterAddrs(addrs, manet.IsPublicAddr)
}

// direct reports whether one of the addresses is public and needs no relay.
func direct(addrs []multiaddr.Multiaddr) bool {
	return slices.ContainsFunc(addrs, func(a multiaddr.Multiaddr) bool {
		_, err := a.ValueForProtocol(multiaddr.P_CIRCUIT)
		return err != nil && manet.IsPublicAddr(a)
	})
}

// publicQuery is the DHT's filter of peers to ask.
func publicQuery(_ any, p peer.AddrInfo) bool { return direct(p.Addrs) }

// publicTable is the DHT's filter of peers for the routing table. A connected neighbour of the local network stays
// outside, because others cannot reach it.
func publicTable(h host.Host) dht.RouteTableFilterFunc {
	return func(_ any, id peer.ID) bool {
		return len(h.Network().ConnsToPeer(id)) > 0 && direct(h.Peerstore().Addrs(id))
	}
}

// publicHost is the host as the DHT of an open network sees it. The DHT answers strangers from its peer store, which
// must not tell them the private addresses of neighbours.
type publicHost struct{ host.Host }

// Peerstore implements host.Host.
func (h publicHost) Peerstore() peerstore.Peerstore { return publicBook{h.Host.Peerstore()} }

type publicBook struct{ peerstore.Peerstore }

// PeerInfo implements peerstore.Peerstore.
func (b publicBook) PeerInfo(id peer.ID) peer.AddrInfo {
	info := b.Peerstore.PeerInfo(id)
	info.Addrs = publicOnly(info.Addrs)
	return info
}
