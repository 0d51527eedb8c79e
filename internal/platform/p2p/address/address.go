// Package address reads and filters multiaddrs.
package address

import (
	"net/netip"
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Parse parses multiaddrs. Error: Invalid with the field.
func Parse(field string, addrs []string) ([]multiaddr.Multiaddr, error) {
	out := make([]multiaddr.Multiaddr, 0, len(addrs))
	for _, s := range addrs {
		a, err := multiaddr.NewMultiaddr(s)
		if err != nil {
			return nil, fault.Invalidf(field, s, "malformed multiaddr: use the form /ip4/192.0.2.1/tcp/4801: %w", err)
		}
		out = append(out, a)
	}
	return out, nil
}

// ParsePeers parses multiaddrs with a /p2p/ part and merges the addresses of each peer. Error: Invalid with the
// field.
func ParsePeers(field string, addrs []string) ([]peer.AddrInfo, error) {
	parsed, err := Parse(field, addrs)
	if err != nil {
		return nil, err
	}
	infos, err := peer.AddrInfosFromP2pAddrs(parsed...)
	if err != nil {
		return nil, fault.Invalidf(field, addrs, "each address needs a /p2p/ part with the peer id: %w", err)
	}
	return infos, nil
}

// ParseWays parses multiaddrs of peers, and of TCP addresses without an id. Error: Invalid with the field.
func ParseWays(field string, addrs []string) (peers []peer.AddrInfo, doors []multiaddr.Multiaddr, err error) {
	parsed, err := Parse(field, addrs)
	if err != nil {
		return nil, nil, err
	}
	var named []string
	for i, a := range parsed {
		if _, err := a.ValueForProtocol(multiaddr.P_P2P); err == nil {
			named = append(named, addrs[i])
			continue
		}
		_, tcp := a.ValueForProtocol(multiaddr.P_TCP)
		if parts := a.Protocols(); tcp != nil || len(parts) != 2 {
			return nil, nil, fault.Invalidf(field, addrs[i], "needs a /p2p/ part with the peer id, or the form /dns4/peers.example/tcp/4801")
		}
		doors = append(doors, a)
	}
	peers, err = ParsePeers(field, named)
	return peers, doors, err
}

// IP returns the IP address of a multiaddr, or the zero value.
func IP(a multiaddr.Multiaddr) netip.Addr {
	from, err := manet.ToIP(a)
	if err != nil {
		return netip.Addr{}
	}
	ip, _ := netip.AddrFromSlice(from)
	return ip.Unmap()
}

// Public removes private addresses: strangers must not direct this peer's dials into its own network. It keeps DNS names,
// which a peer may announce; kad-dht's own filters know none.
func Public(addrs []multiaddr.Multiaddr) []multiaddr.Multiaddr {
	return multiaddr.FilterAddrs(addrs, manet.IsPublicAddr)
}

// Direct reports whether one of the addresses is public and needs no relay.
func Direct(addrs []multiaddr.Multiaddr) bool {
	return slices.ContainsFunc(addrs, func(a multiaddr.Multiaddr) bool {
		_, err := a.ValueForProtocol(multiaddr.P_CIRCUIT)
		return err != nil && manet.IsPublicAddr(a)
	})
}
