package health

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/blackhole/blackhole/internal/platform/probe"
	"github.com/blackhole/blackhole/pkg/fault"
)

// maxAddresses bounds the tried addresses of a name.
const maxAddresses = 4

// line finds the allowed addresses of the plan's host. All share the check's time
// equally. Errors: Forbidden without an allowed address; Timeout; Unavailable.
func (c *Checker) line(ctx context.Context, p *plan) (*probe.Line, error) {
	to := probe.Target{Host: p.host, Port: p.port, Secure: p.secure}
	l, err := c.prober.Line(ctx, to, p.target.Check.Timeout, maxAddresses, func(a netip.Addr) error { return c.policy.Check(a, p.target.Local) })
	if err != nil {
		return nil, failed("health.resolve", err)
	}
	l.TLS = c.cfg.TLS
	return l, nil
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
