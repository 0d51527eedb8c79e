package dnsapi

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/internal/platform/special"
	"github.com/blackhole/blackhole/pkg/instance"
)

// addressRule decides about the addresses of instances in answers.
type addressRule struct {
	self    string
	special special.Table
	allow   []netip.Prefix
}

// own reports whether an instance belongs to this peer.
func (r *addressRule) own(i *instance.Instance) bool { return i.Peer == "" || i.Peer == r.self }

// mayBe reports whether an instance may have an address.
func (r *addressRule) mayBe(i *instance.Instance, a netip.Addr) bool {
	switch {
	case !connectable(a):
		return false
	case r.own(i):
		return true
	}
	use, _, _ := r.special.Find(a)
	allowed := func(p netip.Prefix) bool { return p.Contains(a) }
	return use == special.Public || use != special.Nobody && slices.ContainsFunc(r.allow, allowed)
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
