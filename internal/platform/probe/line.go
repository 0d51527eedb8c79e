package probe

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"strings"
	"time"
)

// Line connects to one target, for a probe or for a check of an instance.
type Line struct {
	TLS *tls.Config // of a secure target; nil: the system's roots

	prober *Prober
	target Target
	within time.Duration // of all attempts to connect together
	addrs  []netip.Addr  // allowed ones of the host; after a connection the first one answers
}

// Line finds at most so many addresses of a target that allow accepts. The attempts to connect share a time equally.
// Errors: those of the resolver, with a name without an address; the last refusal of allow.
func (p *Prober) Line(ctx context.Context, t Target, within time.Duration, most int, allow func(netip.Addr) error) (*Line, error) {
	all, err := p.lookup(ctx, t.Host)
	if err != nil {
		return nil, err
	}
	l := &Line{prober: p, target: t, within: within}
	err = &net.DNSError{Err: "no address", Name: t.Host, IsNotFound: true}
	for _, a := range all {
		a = a.Unmap()
		if refused := allow(a); refused != nil {
			err = refused
		} else if len(l.addrs) < most {
			l.addrs = append(l.addrs, a)
		}
	}
	if len(l.addrs) == 0 {
		return nil, err
	}
	return l, nil
}

// lookup resolves a name.
func (p *Prober) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	if IsLocalhost(host) {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, nil
	}
	return p.Resolve(ctx, host)
}

// IsLocalhost reports whether a host is localhost, which has the same addresses everywhere (RFC 6761, section 6.3).
func IsLocalhost(host string) bool {
	return strings.EqualFold(strings.TrimSuffix(host, "."), "localhost")
}

// dial connects to the first address that answers.
func (l *Line) dial(ctx context.Context, network string) (conn net.Conn, err error) {
	for i, a := range l.addrs {
		share, cancel := context.WithTimeout(ctx, l.within/time.Duration(len(l.addrs)))
		conn, err = l.prober.Dial(share, network, netip.AddrPortFrom(a, l.target.Port).String())
		cancel()
		if err == nil {
			l.addrs = l.addrs[i:]
			return conn, nil
		}
	}
	return nil, err
}

// Open connects, with TLS for a secure target. The connection ends with ctx; the caller calls end.
func (l *Line) Open(ctx context.Context, protocols ...string) (_ net.Conn, end func(), err error) {
	conn, err := l.dial(ctx, "tcp")
	if err != nil {
		return nil, nil, err
	}
	release := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	end = func() { release(); _ = conn.Close() }
	if !l.target.Secure {
		return conn, end, nil
	}
	secured := tls.Client(conn, l.tls(protocols...))
	if err := secured.HandshakeContext(ctx); err != nil {
		end()
		return nil, nil, err
	}
	return secured, end, nil
}

// tls is the client's configuration for the target.
func (l *Line) tls(protocols ...string) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if l.TLS != nil {
		c = l.TLS.Clone()
	}
	c.ServerName, c.NextProtos = l.target.Host, protocols
	return c
}
