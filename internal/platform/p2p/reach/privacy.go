package reach

import (
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/p2p/address"
	"github.com/blackhole/blackhole/pkg/fault"
)

// privacySettle is the time without any sign of a public address until the condition begins.
const privacySettle = time.Minute

// privacy notices a peer of an open network that lives in a private one: a VPN, or a private cloud. Such a peer
// finds nobody, because the peers of an open network ignore private addresses.
type privacy struct {
	last time.Time // of the last public address, at first the start
}

// look compares the own addresses and those of the connections. A connection to a public address is a way
// out, although this machine may be behind NAT.
func (p *privacy) look(own []multiaddr.Multiaddr, connections []network.Conn, now time.Time, conditions *condition.Set) {
	public := slices.ContainsFunc(own, manet.IsPublicAddr) ||
		slices.ContainsFunc(connections, func(c network.Conn) bool { return manet.IsPublicAddr(c.RemoteMultiaddr()) })
	switch {
	case public:
		p.last = now
		conditions.Clear(condition.PrivateAddresses)
	case !slices.ContainsFunc(own, inPrivate): // offline
		conditions.Clear(condition.PrivateAddresses)
	case now.Sub(p.last) >= privacySettle:
		conditions.Raise(condition.PrivateAddresses, fault.Problem{
			What:   "this machine has private addresses only, and is connected to no public peer",
			Effect: "profile public ignores private addresses, so nobody is found",
			Remedy: "In a VPN or a private network use profile lan with bootstrap addresses; behind a forwarded port announce the outer address; " +
				"elsewhere check the way to the Internet",
		})
	}
}

// inPrivate reports whether an address can have neighbours that are not on the Internet.
func inPrivate(a multiaddr.Multiaddr) bool {
	ip := address.IP(a)
	return ip.IsValid() && !ip.IsLoopback() && !ip.IsUnspecified() && !ip.IsLinkLocalUnicast() && !manet.IsPublicAddr(a)
}
