// Package special has the table of special-purpose addresses: those of no host of the public Internet, or of no
// single one.
//
// It decides nothing. DNS answers and checks of endpoints ask it where an address leads.
package special

import "net/netip"

// Use says which peers may have business with an address.
type Use int

// The uses of an address.
const (
	Public   Use = iota // one host of the public Internet
	Inside              // a host of a network that is not the public Internet: private, shared, an overlay, a test
	Loopback            // this host
	Nobody              // no host, or one that answers with secrets of the machine that asks
)

// row is a range of the table. The first row with an address decides, so exceptions stand before the range they are
// cut from.
type row struct {
	netip.Prefix
	use  Use
	name string
}

// Table is the table. The zero value knows no range: use New.
type Table struct{ rows []row }

// New returns the table of
//
//   - the IANA IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890), with the ranges that they call globally
//     reachable, other than NAT64's: many hosts have such an anycast address, and none sells there
//   - the IANA IPv6 address space registry: only 2000::/3 is assigned
//   - the metadata services of clouds at addresses outside the link-local range, from the clouds' documentation
func New() Table {
	var t Table
	for _, r := range []struct {
		prefix string
		use    Use
		name   string
	}{
		{"100.100.100.200/32", Nobody, "metadata of Alibaba Cloud"},
		{"168.63.129.16/32", Nobody, "host of an Azure machine"},
		{"192.0.0.192/32", Nobody, "metadata of Oracle Cloud"},
		{"fd00:ec2::/32", Nobody, "metadata of AWS"},
		{"fd20:ce::/32", Nobody, "metadata of Google Cloud"},
		{"fd00:c1::a9fe:a9fe/128", Nobody, "metadata of Oracle Cloud"},

		{"0.0.0.0/8", Nobody, "this network, RFC 791"},
		{"10.0.0.0/8", Inside, "private, RFC 1918"},
		{"100.64.0.0/10", Inside, "shared by carriers and VPNs, RFC 6598"},
		{"127.0.0.0/8", Loopback, "loopback, RFC 1122"},
		{"169.254.0.0/16", Nobody, "link-local, RFC 3927; metadata of most clouds"},
		{"172.16.0.0/12", Inside, "private, RFC 1918"},
		{"192.0.0.0/24", Nobody, "IETF protocols, RFC 6890"},
		{"192.0.2.0/24", Inside, "documentation, RFC 5737"},
		{"192.31.196.0/24", Inside, "AS112, RFC 7535"},
		{"192.52.193.0/24", Inside, "AMT, RFC 7450"},
		{"192.88.99.0/24", Inside, "6to4 relays, RFC 7526"},
		{"192.168.0.0/16", Inside, "private, RFC 1918"},
		{"192.175.48.0/24", Inside, "AS112, RFC 7534"},
		{"198.18.0.0/15", Inside, "benchmarks, RFC 2544"},
		{"198.51.100.0/24", Inside, "documentation, RFC 5737"},
		{"203.0.113.0/24", Inside, "documentation, RFC 5737"},
		{"224.0.0.0/4", Nobody, "multicast, RFC 5771"},
		{"240.0.0.0/4", Nobody, "reserved and broadcast, RFC 1112"},

		{"::1/128", Loopback, "loopback, RFC 4291"},
		{"::/128", Nobody, "unspecified, RFC 4291"},
		{"::ffff:0:0/96", Inside, "IPv4-mapped, RFC 4291"},
		{"::ffff:0:0:0/96", Nobody, "IPv4-translated, RFC 2765"},
		{"64:ff9b:1::/48", Nobody, "NAT64 for local use, RFC 8215: the destination is unknown"},
		{"100::/64", Nobody, "discard only, RFC 6666"},
		{"100:0:0:1::/64", Nobody, "dummy prefix, RFC 9780"},
		{"2001::/32", Nobody, "Teredo, RFC 4380"},
		{"2001::/23", Inside, "IETF protocols, RFC 2928"},
		{"2001:db8::/32", Inside, "documentation, RFC 3849"},
		{"2002::/16", Inside, "6to4, RFC 3056"},
		{"2620:4f:8000::/48", Inside, "AS112, RFC 7534"},
		{"3fff::/20", Inside, "documentation, RFC 9637"},
		{"5f00::/16", Inside, "segment identifiers, RFC 9602"},
		{"fc00::/7", Inside, "unique local, RFC 4193"},
		{"fe80::/10", Nobody, "link-local, RFC 4291"},
		{"fec0::/10", Nobody, "site-local, RFC 3879"},
		{"ff00::/8", Nobody, "multicast, RFC 4291"},
		{"::/3", Inside, "not assigned to hosts, RFC 4291"},
		{"4000::/2", Inside, "not assigned, RFC 4291"},
		{"8000::/1", Inside, "not assigned, RFC 4291"},
	} {
		t.rows = append(t.rows, row{netip.MustParsePrefix(r.prefix), r.use, r.name})
	}
	return t
}

// Find returns the use of an address, with the range that decides and its name in words; neither for a public one. An
// address that embeds an IPv4 address has at most the use of that. One with a zone is on a link, and nobody's.
func (t Table) Find(a netip.Addr) (use Use, in netip.Prefix, name string) {
	if !a.IsValid() || a.Zone() != "" {
		return Nobody, in, "no address of a host, or one with a zone"
	}
	to := Destination(a)
	for _, one := range []netip.Addr{to, a} {
		for _, r := range t.rows {
			if r.Contains(one) {
				return r.use, r.Prefix, r.name
			}
		}
		if nat64(a) { // leads to its IPv4 address, wherever that is
			break
		}
	}
	return Public, in, ""
}

func nat64(a netip.Addr) bool { return netip.MustParsePrefix("64:ff9b::/96").Contains(a) }

// Destination returns the IPv4 address that an IPv6 address leads to, or else the address.
func Destination(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if !a.Is6() || a.IsLoopback() || a.IsUnspecified() {
		return a
	}
	b, at := a.As16(), -1
	switch {
	case nat64(a), netip.MustParsePrefix("::/96").Contains(a): // RFC 6052; IPv4-compatible, RFC 4291
		at = 12
	case netip.MustParsePrefix("2002::/16").Contains(a): // 6to4, RFC 3056
		at = 2
	}
	if at < 0 {
		return a
	}
	return netip.AddrFrom4([4]byte(b[at : at+4]))
}
