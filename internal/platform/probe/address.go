package probe

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/platform/special"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Policy decides which addresses a check of a stranger's target may connect to.
type Policy struct{ table special.Table }

// NewPolicy returns the policy.
func NewPolicy() Policy { return Policy{special.New()} }

// Check rejects a forbidden address: Forbidden. Such addresses belong to no
// service, or answer with secrets of the host. Loopback addresses need a
// target of this host: local. An embedded IPv4 address counts as its destination.
func (g Policy) Check(a netip.Addr, local bool) error { return g.check(a, local, true) }

// check rejects addresses inside other networks than the Internet too, without inside.
func (g Policy) check(a netip.Addr, local, inside bool) error {
	use, in, name := g.table.Find(a)
	switch {
	case use == special.Loopback && !local:
		return refused(a, "a loopback address, but the target was not registered from this host")
	case use == special.Nobody, use == special.Inside && !inside:
		return refused(a, "in "+in.String()+", "+name)
	}
	return nil
}

func refused(a netip.Addr, why string) error {
	return fault.New("probe.Check", fault.Forbidden, "checks must not connect to %s: %s", a, why)
}

// readAgain is the time after which the addresses of this machine are read again: tunnels come and go.
const readAgain = time.Minute

// Interfaces knows the addresses of this machine's interfaces, whatever the peer listens on. It is safe for concurrent
// use.
type Interfaces struct {
	read func() ([]net.Addr, error)
	now  func() time.Time

	mu    sync.Mutex // guards the fields below
	at    time.Time  // of the last reading that worked
	addrs []netip.Addr
}

// NewInterfaces returns the addresses that read returns, each once a minute; nil means net.InterfaceAddrs.
func NewInterfaces(read func() ([]net.Addr, error), now func() time.Time) *Interfaces {
	if read == nil {
		read = net.InterfaceAddrs
	}
	return &Interfaces{read: read, now: now}
}

// Have reports whether an address is one of this machine, or, with link, of IPv6 and in a /64 of it: one firewall
// stands in front of all machines there. As long as no reading worked, every address may be one.
func (i *Interfaces) Have(a netip.Addr, link bool) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if now := i.now(); i.at.IsZero() || now.Sub(i.at) >= readAgain || now.Before(i.at) {
		if list, err := i.read(); err == nil {
			i.at, i.addrs = now, nil
			for _, one := range list {
				text, _, _ := strings.Cut(one.String(), "/") // an anycast address has no length
				if a, err := netip.ParseAddr(text); err == nil {
					i.addrs = append(i.addrs, a.Unmap().WithZone(""))
				}
			}
		}
	}
	return i.at.IsZero() || slices.ContainsFunc(i.addrs, func(own netip.Addr) bool {
		return own == a || link && own.Is6() && network(own) == network(a)
	})
}

// network is what counts as one machine: an address, or a /64 of IPv6.
func network(a netip.Addr) netip.Prefix {
	p, _ := a.Prefix(map[bool]int{true: 64, false: 32}[a.Is6()]) // no error: the lengths fit
	return p
}
