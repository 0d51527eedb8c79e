package health

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// maxAddresses bounds the tried addresses of a name.
const maxAddresses = 4

// addressPolicy decides which addresses a check may connect to.
type addressPolicy struct {
	forbidden []netip.Prefix
	carriers  []embeddingPrefix
}

// embeddingPrefix is a range of IPv6 addresses that embed an IPv4 address at
// byte at.
type embeddingPrefix struct {
	netip.Prefix
	at int
}

func newAddressPolicy() addressPolicy {
	var g addressPolicy
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

// check rejects a forbidden address: Forbidden. Such addresses belong to no
// service, or answer with secrets of the host. Loopback addresses need an
// instance of this host. An embedded IPv4 address counts as its destination.
func (g addressPolicy) check(a netip.Addr, local bool) error {
	a = a.Unmap()
	if inner, ok := g.inside(a); ok {
		a = inner
	}
	switch {
	case !a.IsValid(), a.IsUnspecified():
		return refused(a, "not the address of a host")
	case a.Zone() != "":
		return refused(a, "an address with a zone")
	case a.IsLoopback() && !local:
		return refused(a, "a loopback address, but the instance was not registered from this host")
	}
	for _, p := range g.forbidden {
		if p.Contains(a) {
			return refused(a, "in "+p.String())
		}
	}
	return nil
}

func refused(a netip.Addr, why string) error {
	return fault.New("health.judge", fault.Forbidden, "checks must not connect to %s: %s", a, why)
}

// inside returns the IPv4 address embedded in an IPv6 address.
func (g addressPolicy) inside(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() || a.IsLoopback() || a.IsUnspecified() {
		return a, false
	}
	b := a.As16()
	for _, c := range g.carriers {
		if c.Contains(a) {
			return netip.AddrFrom4([4]byte(b[c.at : c.at+4])), true
		}
	}
	return a, false
}

// network opens connections to targets.
type network struct {
	policy  addressPolicy
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	resolve func(ctx context.Context, host string) ([]netip.Addr, error)
}

func newNetwork(cfg Config) *network {
	n := &network{policy: newAddressPolicy(), dial: cfg.Dial, resolve: cfg.Resolve}
	if n.dial == nil {
		n.dial = (&net.Dialer{KeepAlive: -1}).DialContext
	}
	if n.resolve == nil {
		r := &net.Resolver{PreferGo: true}
		n.resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return r.LookupNetIP(ctx, "ip", host)
		}
	}
	return n
}

// open connects to the first allowed address of the plan's host that answers.
// All addresses share the check's time equally. Errors: Forbidden without an
// allowed address; Timeout; Unavailable.
func (n *network) open(ctx context.Context, p *plan) (net.Conn, error) {
	addrs, err := n.addresses(ctx, p)
	if err != nil {
		return nil, err
	}
	share := p.target.Check.Timeout / time.Duration(len(addrs))
	for _, a := range addrs {
		var conn net.Conn
		if conn, err = n.attempt(ctx, netip.AddrPortFrom(a, p.port), share); err == nil {
			return conn, nil
		}
	}
	return nil, failed("health.dial", err)
}

func (n *network) attempt(ctx context.Context, to netip.AddrPort, most time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return n.dial(ctx, "tcp", to.String())
}

// addresses returns the present allowed addresses of the plan's host.
func (n *network) addresses(ctx context.Context, p *plan) ([]netip.Addr, error) {
	all, err := n.lookup(ctx, p.host)
	if err != nil {
		return nil, failed("health.resolve", err)
	}
	var why error = fault.New("health.resolve", fault.Unavailable, "%s has no address", p.host)
	var allowed []netip.Addr
	for _, a := range all[:min(len(all), maxAddresses)] {
		if err := n.policy.check(a, p.target.Local); err != nil {
			why = err
			continue
		}
		allowed = append(allowed, a.Unmap())
	}
	if len(allowed) == 0 {
		return nil, why
	}
	return allowed, nil
}

// lookup resolves a name. localhost has the same addresses everywhere (RFC
// 6761, section 6.3).
func (n *network) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	if isLocalhost(host) {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, nil
	}
	return n.resolve(ctx, host)
}

// failed gives a network error a kind: its own, Timeout or Unavailable.
func failed(op string, err error) error {
	if k := fault.KindOf(err); k != fault.Internal {
		return fault.Wrap(op, err)
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return fault.As(op, fault.Timeout, err)
	}
	return fault.As(op, fault.Unavailable, err)
}

// isLocal reports whether this peer lacks a resource, which voids a check.
// Without file descriptors all instances would seem down.
func isLocal(err error) bool {
	for _, lack := range []syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EAGAIN, syscall.EADDRNOTAVAIL,
	} {
		if errors.Is(err, lack) {
			return true
		}
	}
	return false
}

// hostPort formats a host and a port for a URL.
func hostPort(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
