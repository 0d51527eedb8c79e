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

// maxAddresses bounds the addresses of a name that are tried.
const maxAddresses = 4

// gate decides which addresses checks may connect to.
type gate struct {
	forbidden []netip.Prefix
	carriers  []carrier
}

// carrier is a range of IPv6 addresses with an IPv4 address in them, beginning at byte at.
type carrier struct {
	netip.Prefix
	at int
}

func newGate() gate {
	var g gate
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
		"64:ff9b:1::/48",         // NAT64 for local use, RFC 8215: where it leads is not told
		"2001::/32",              // Teredo, RFC 4380
		"::ffff:0:0:0/96",        // translated, RFC 2765
		"fd00:c1::a9fe:a9fe/128", // metadata of Oracle Cloud
	} {
		g.forbidden = append(g.forbidden, netip.MustParsePrefix(text))
	}
	g.carriers = []carrier{
		{netip.MustParsePrefix("::/96"), 12},        // compatible, RFC 4291
		{netip.MustParsePrefix("64:ff9b::/96"), 12}, // NAT64, RFC 6052
		{netip.MustParsePrefix("2002::/16"), 2},     // 6to4, RFC 3056
	}
	return g
}

// judge says whether a check may connect to an address: Forbidden if not. They are no hosts of
// services, or they answer with the secrets of the host itself. Loopback is for instances of
// this host alone. An IPv4 address in an IPv6 one is judged as what it leads to.
func (g gate) judge(a netip.Addr, local bool) error {
	a = a.Unmap()
	if inner, ok := g.inside(a); ok {
		a = inner
	}
	switch {
	case !a.IsValid(), a.IsUnspecified():
		return refused(a, "no host")
	case a.Zone() != "":
		return refused(a, "has a zone")
	case a.IsLoopback() && !local:
		return refused(a, "loopback, and the instance is not of this host")
	}
	for _, p := range g.forbidden {
		if p.Contains(a) {
			return refused(a, "in "+p.String())
		}
	}
	return nil
}

func refused(a netip.Addr, why string) error {
	return fault.New("health.judge", fault.Forbidden, "a check may not go to %s: %s", a, why)
}

// inside gives the IPv4 address that an IPv6 one carries.
func (g gate) inside(a netip.Addr) (netip.Addr, bool) {
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
	gate    gate
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	resolve func(ctx context.Context, host string) ([]netip.Addr, error)
}

func newNetwork(cfg Config) *network {
	n := &network{gate: newGate(), dial: cfg.Dial, resolve: cfg.Resolve}
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

// open connects to the first address of the plan's host that is allowed and answers. Each gets an
// equal share of the check's time. Errors: Forbidden when none is allowed; Timeout; Unavailable.
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

// addresses gives those that the plan's host has at this moment and that are allowed.
func (n *network) addresses(ctx context.Context, p *plan) ([]netip.Addr, error) {
	all, err := n.lookup(ctx, p.host)
	if err != nil {
		return nil, failed("health.resolve", err)
	}
	var why error = fault.New("health.resolve", fault.Unavailable, "%s has no address", p.host)
	var allowed []netip.Addr
	for _, a := range all[:min(len(all), maxAddresses)] {
		if err := n.gate.judge(a, p.target.Local); err != nil {
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

// lookup resolves a name, if it is one. That of loopback is the same everywhere (RFC 6761, section 6.3).
func (n *network) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	if isLocalhost(host) {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, nil
	}
	return n.resolve(ctx, host)
}

// failed gives an error of the network a kind: its own, Timeout, or Unavailable.
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

// ours reports whether an error says that this peer lacks something, so that a check is void. Out of
// file descriptors, it would otherwise find every instance down.
func ours(err error) bool {
	for _, lack := range []syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EAGAIN, syscall.EADDRNOTAVAIL,
	} {
		if errors.Is(err, lack) {
			return true
		}
	}
	return false
}

// hostPort is as in URLs.
func hostPort(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
