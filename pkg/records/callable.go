package records

import (
	"net/netip"

	"github.com/blackhole/blackhole/internal/platform/endpoint"
)

// EndpointNetwork returns the address prefix of the first callable endpoint of a record, if that states a public address: a /24
// of IPv4, a /48 of IPv6.
func (r *Record) EndpointNetwork() (p netip.Prefix) {
	for _, text := range r.Service().GetMetadata().GetEndpoints() {
		host := endpoint.Host(text)
		if host == "" {
			continue
		}
		a, err := netip.ParseAddr(host)
		if a = a.Unmap(); err == nil && a.IsGlobalUnicast() && !a.IsPrivate() {
			p, _ = a.Prefix(map[bool]int{true: 24, false: 48}[a.Is4()]) // no error: the lengths fit
		}
		return p
	}
	return p
}
