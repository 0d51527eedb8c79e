package flood

import (
	"net"
	"net/netip"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/multiformats/go-multiaddr"
)

// newHost returns a host that listens at its own address and dials from it, over TCP. Its identity is new without a key.
func newHost(address netip.Addr, key crypto.PrivKey) (host.Host, error) {
	from := func(multiaddr.Multiaddr) (tcp.ContextDialer, error) {
		return &net.Dialer{LocalAddr: &net.TCPAddr{IP: address.AsSlice()}}, nil
	}
	family := "/ip4/"
	if address.Is6() {
		family = "/ip6/"
	}
	listen, err := multiaddr.NewMultiaddr(family + address.String() + "/tcp/0")
	if err != nil {
		return nil, err
	}
	identity := libp2p.RandomIdentity
	if key != nil {
		identity = libp2p.Identity(key)
	}
	return libp2p.New(identity,
		libp2p.ListenAddrs(listen), libp2p.Transport(tcp.NewTCPTransport, tcp.WithDialerForAddr(from)), libp2p.Security(noise.ID, noise.New),
		libp2p.ResourceManager(&network.NullResourceManager{}), libp2p.DisableRelay(), libp2p.DisableMetrics(),
		libp2p.ForceReachabilityPublic(), libp2p.DisableIdentifyAddressDiscovery())
}
