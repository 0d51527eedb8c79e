package probe

import (
	"net/netip"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Policy decides which addresses a check of a stranger's target may connect to.
type Policy struct {
	forbidden []netip.Prefix
	carriers  []embeddingPrefix
}

// embeddingPrefix is a range of IPv6 addresses that embed an IPv4 address at
// byte at.
type embeddingPrefix struct {
	netip.Prefix
	at int
}

// NewPolicy returns the policy.
func NewPolicy() Policy {
	var g Policy
	for _, text := range []string{
		"0.0.0.0/8",              // this network; 0.0.0.0 is this host
		"169.254.0.0/16",         // link-local, the metadata of most clouds
		"224.0.0.0/3",            // multicast, reserved, broadcast
		"100.100.100.200/32",     // metadata of Alibaba Cloud
		"168.63.129.16/32",       // host of an Azure machine
		"192.0.0.192/32",         // metadata of Oracle Cloud
		"fe80::/10",              // link-local
		"fec0::/10",              // site-local, deprecated
		"ff00::/8",               // multicast
		"fd00:ec2::/32",          // metadata of AWS
		"fd20:ce::/32",           // metadata of Google Cloud
		"64:ff9b:1::/48",         // NAT64 for local use, RFC 8215: unknown destination
		"2001::/32",              // Teredo, RFC 4380
		"::ffff:0:0:0/96",        // translated, RFC 2765
		"fd00:c1::a9fe:a9fe/128", // metadata of Oracle Cloud
	} {
		g.forbidden = append(g.forbidden, netip.MustParsePrefix(text))
	}
	g.carriers = []embeddingPrefix{
		{netip.MustParsePrefix("::/96"), 12},        // IPv4-compatible, RFC 4291
		{netip.MustParsePrefix("64:ff9b::/96"), 12}, // NAT64, RFC 6052
		{netip.MustParsePrefix("2002::/16"), 2},     // 6to4, RFC 3056
	}
	return g
}

// Check rejects a forbidden address: Forbidden. Such addresses belong to no
// service, or answer with secrets of the host. Loopback addresses need a
// target of this host: local. An embedded IPv4 address counts as its destination.
func (g Policy) Check(a netip.Addr, local bool) error {
	a = g.destination(a.Unmap())
	switch {
	case !a.IsValid(), a.IsUnspecified():
		return refused(a, "not the address of a host")
	case a.Zone() != "":
		return refused(a, "an address with a zone")
	case a.IsLoopback() && !local:
		return refused(a, "a loopback address, but the target was not registered from this host")
	}
	for _, p := range g.forbidden {
		if p.Contains(a) {
			return refused(a, "in "+p.String())
		}
	}
	return nil
}

func refused(a netip.Addr, why string) error {
	return fault.New("probe.Check", fault.Forbidden, "checks must not connect to %s: %s", a, why)
}

// destination returns the IPv4 address embedded in an IPv6 address, or else the address.
func (g Policy) destination(a netip.Addr) netip.Addr {
	if !a.Is6() || a.IsLoopback() || a.IsUnspecified() {
		return a
	}
	b := a.As16()
	for _, c := range g.carriers {
		if c.Contains(a) {
			return netip.AddrFrom4([4]byte(b[c.at : c.at+4]))
		}
	}
	return a
}
