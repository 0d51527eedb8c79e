package netns

import "net/netip"

// NAT is a kind of address translation.
type NAT string

// The kinds of NAT.
const (
	Preserving NAT = "masquerade"              // keeps free ports: holes can be punched
	Random     NAT = "masquerade fully-random" // new port for each destination: no hole can be punched
)

// RouterAddress is the address of every router in its own network.
const RouterAddress = "192.168.1.1/24"

// Forward makes a namespace with a device eth0 the router of an inner network: all addresses outside are behind it.
func (s *Space) Forward(inside *Network, kind NAT) error {
	port, err := inside.Plug(s, "lan0")
	if err != nil {
		return err
	}
	port.Uplink()
	if err := port.Add(netip.MustParsePrefix(RouterAddress)); err != nil {
		return err
	}
	for _, forward := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := s.Set(forward, "1"); err != nil {
			return err
		}
	}
	return s.Translate(kind)
}

// Translate gives a router its rules: translate IPv4 addresses, and admit only packets of connections from inside.
func (s *Space) Translate(kind NAT) error {
	return s.Run(`
table ip nat {
	chain post { type nat hook postrouting priority 100; oifname "eth0" `+string(kind)+`; }
}
table inet filter {
	chain forward {
		type filter hook forward priority 0; policy drop;
		ct state established,related accept
		iifname "lan0" accept
	}
	chain input {
		type filter hook input priority 0; policy drop;
		ct state established,related accept
		iifname { "lo", "lan0" } accept
		meta l4proto { icmp, ipv6-icmp } accept
	}
}
`, "nft", "-f", "-")
}
