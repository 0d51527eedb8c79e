package routing

import (
	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"

	"github.com/blackhole/blackhole/internal/platform/p2p/address"
)

// publicQuery is the DHT's filter of peers to ask.
func publicQuery(_ any, p peer.AddrInfo) bool { return address.Direct(p.Addrs) }

// publicTable is the DHT's filter of peers for the routing table. A connected neighbour of the local network stays
// outside, because others cannot reach it.
func publicTable(h host.Host) dht.RouteTableFilterFunc {
	return func(_ any, id peer.ID) bool {
		return len(h.Network().ConnsToPeer(id)) > 0 && address.Direct(h.Peerstore().Addrs(id))
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
	info.Addrs = address.Public(info.Addrs)
	return info
}
