package health

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/blackhole/blackhole/internal/platform/probe"
	"github.com/blackhole/blackhole/pkg/fault"
)

// maxAddresses bounds the tried addresses of a name.
const maxAddresses = 4

// network opens connections to targets.
type network struct {
	policy  probe.Policy
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	resolve func(ctx context.Context, host string) ([]netip.Addr, error)
}

func newNetwork(cfg Config) *network {
	n := &network{policy: probe.NewPolicy(), dial: cfg.Dial, resolve: cfg.Resolve}
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
	var why error = fault.As("health.resolve", fault.Unavailable, &net.DNSError{Err: "no address", Name: p.host, IsNotFound: true})
	var allowed []netip.Addr
	for _, a := range all[:min(len(all), maxAddresses)] {
		if err := n.policy.Check(a, p.target.Local); err != nil {
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

// hostPort formats a host and a port for a URL.
func hostPort(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
