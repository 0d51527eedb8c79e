package dnsapi

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/pkg/instance"
)

// addressRule decides about the addresses of instances in answers.
type addressRule struct {
	self    string
	special []netip.Prefix
	allow   []netip.Prefix
}

// own reports whether an instance belongs to this peer.
func (r *addressRule) own(i *instance.Instance) bool { return i.Peer == "" || i.Peer == r.self }

// mayBe reports whether an instance may have an address.
func (r *addressRule) mayBe(i *instance.Instance, a netip.Addr) bool {
	within := func(p netip.Prefix) bool { return p.Contains(a) }
	switch {
	case !connectable(a):
		return false
	case r.own(i):
		return true
	}
	return !slices.ContainsFunc(r.special, within) || slices.ContainsFunc(r.allow, within)
}

// mayBeNamed reports whether an instance may have a name as its host. Another peer's instance
// must not have a name of this host.
func (r *addressRule) mayBeNamed(i *instance.Instance, host string) bool {
	return r.own(i) || !strings.EqualFold(lastLabel(host), "localhost")
}

func lastLabel(host string) string {
	host = strings.TrimSuffix(host, ".")
	return host[strings.LastIndexByte(host, '.')+1:]
}

// connectable reports whether an address can be the target of a connection.
func connectable(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.IsUnspecified() && !a.IsMulticast() &&
		a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// specialPurpose returns the networks outside the public Internet, from the IANA registries of
// special-purpose addresses (RFC 6890), and networks with embedded IPv4 addresses, which may lead into
// them.
func specialPurpose() []netip.Prefix {
	var all []netip.Prefix
	for _, text := range []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
		"192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24",
		"192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
		"::/8", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23", "2001:db8::/32",
		"2002::/16", "2620:4f:8000::/48", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10",
	} {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}
