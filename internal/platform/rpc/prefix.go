package rpc

import (
	"net/netip"

	"github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

// PrefixOf returns the network of an address: /24 of IPv4, /48 of IPv6. One owner usually controls a network of this
// size. It is zero for an address without an IP. Behind a relay it is the relay's.
func PrefixOf(at multiaddr.Multiaddr) netip.Prefix {
	addr := AddrOf(at)
	bits := 48
	if addr.Is4() {
		bits = 24
	}
	p, _ := addr.Prefix(bits) // zero for the zero address
	return p
}

// AddrOf returns the IP of an address, an IPv4 address in its own form, without a zone. It is zero for an address without an IP.
func AddrOf(at multiaddr.Multiaddr) netip.Addr {
	ip, err := manet.ToIP(at)
	if err != nil {
		return netip.Addr{}
	}
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}
