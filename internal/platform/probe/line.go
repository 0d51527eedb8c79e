package probe

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/publicsuffix"

	"github.com/blackhole/blackhole/internal/platform/special"
	"github.com/blackhole/blackhole/pkg/fault"
)

// This file is the one dialer: checks, probes and crawls look names up and open connections here, where addresses are
// judged and places are taken.

// connect fills in the functions of the machine.
func (c *Config) connect() {
	r := cmp.Or(c.Resolver, &net.Resolver{PreferGo: true})
	if c.Texts == nil {
		c.Texts = r.LookupTXT
	}
	if c.Resolve == nil {
		c.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) { return r.LookupNetIP(ctx, "ip", host) }
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{KeepAlive: -1}).DialContext
	}
}

func listen() (net.PacketConn, error) { return net.ListenUDP("udp", nil) }

// Line connects to one target, for a probe or for a check of an instance.
type Line struct {
	TLS *tls.Config // of a secure target; nil: the system's roots

	prober *Prober
	target Target
	within time.Duration // of all attempts to connect together
	addrs  []netip.Addr  // allowed ones of the host; after a connection the first one answers
	client *http.Transport
	heard  *firstBytes // of the newest connection of client
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

// lookup resolves a name. A stranger's one is absolute: the resolver's search list would lead it into this peer's
// network.
func (p *Prober) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	if IsLocalhost(host) {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, nil
	}
	if p.Trusted {
		return p.Resolve(ctx, host)
	}
	if !p.mayAsk(host) {
		return nil, errUnmeasured
	}
	return p.Resolve(ctx, absolute(host))
}

// texts returns the TXT records of a stranger's name.
func (p *Prober) texts(ctx context.Context, name string) ([]string, error) {
	if !p.mayAsk(name) {
		return nil, errUnmeasured
	}
	return p.Texts(ctx, absolute(name))
}

func absolute(name string) string { return strings.TrimSuffix(name, ".") + "." }

// mayAsk takes a place for a look-up. All names below one that somebody registered share a bound, as they may share
// servers. On the Internet it refuses names that no public DNS has: whether this peer's network has one, no stranger
// should learn.
func (p *Prober) mayAsk(name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	suffix, listed := publicsuffix.PublicSuffix(name)
	known := listed || strings.Contains(suffix, ".") // else the rule for unknown top-level domains
	if !p.Private && (!known || !strings.Contains(name, ".") || suffix == "home.arpa" || suffix == "onion") {
		return false
	}
	owner, err := publicsuffix.EffectiveTLDPlusOne(name)
	if err != nil { // a suffix itself
		owner = name
	}
	return p.names.Of(owner).Allow()
}

// mayDial takes a place for a connection to an address. All addresses of a /64 are one machine.
func (p *Prober) mayDial(a netip.Addr) bool {
	a = special.Destination(a)
	unbounded := p.Trusted || p.Loopback && a.IsLoopback() // a network of one machine is a test
	return unbounded || p.rates.Of(network(a)).Allow()
}

// allows refuses addresses that a stranger's target must not have: those of this peer, and by the settings inner ones.
func (p *Prober) allows(a netip.Addr) error {
	if err := p.policy.check(a, p.Loopback, p.Private); err != nil {
		return err
	}
	if to := special.Destination(a); p.Own != nil && !to.IsLoopback() && (p.Own(to) || p.Own(a)) {
		return refused(a, "an address of this peer")
	}
	return nil
}

// DialContext is the dialer of an HTTP client that reads what its caller names: see Config.
func (p *Prober) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return nil, err
	}
	l, err := p.Line(ctx, Target{Host: host, Port: uint16(port)}, Timeout, maxAddresses, p.allows)
	if err != nil {
		return nil, err
	}
	return l.dial(ctx, network)
}

// IsLocalhost reports whether a host is localhost, which has the same addresses everywhere (RFC 6761, section 6.3).
func IsLocalhost(host string) bool {
	return strings.EqualFold(strings.TrimSuffix(host, "."), "localhost")
}

// dial connects to the first address that answers, or to a carried target.
func (l *Line) dial(ctx context.Context, network string) (conn net.Conn, err error) {
	if l.target.Carried {
		conn, err = l.target.dial(ctx)
		switch {
		case errors.Is(err, fault.Gone):
			err = syscall.ECONNREFUSED
		case err != nil:
			err = errUnmeasured
		}
		return conn, err
	}
	err = l.each(ctx, func(ctx context.Context, to netip.AddrPort) error {
		conn, err = l.prober.Dial(ctx, network, to.String())
		return err
	})
	return conn, err
}

// web speaks HTTP with the target, over one connection while the server keeps it: a session then takes one place. The
// owner calls hangUp.
func (l *Line) web() *http.Transport {
	if l.client == nil {
		l.heard = new(firstBytes)
		l.client = &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				conn, err := l.dial(ctx, "tcp")
				return l.heard.of(conn), err
			},
			TLSClientConfig: l.tls(), ForceAttemptHTTP2: true, DisableCompression: true,
			IdleConnTimeout: Timeout, MaxResponseHeaderBytes: maxAnswer,
		}
	}
	return l.client
}

func (l *Line) hangUp() {
	if l.client != nil {
		l.client.CloseIdleConnections()
	}
}

// packets has try speak to the first address that answers it, over a socket of its own.
func (l *Line) packets(ctx context.Context, try func(context.Context, net.PacketConn, net.Addr) error) error {
	return l.each(ctx, func(ctx context.Context, to netip.AddrPort) error {
		socket, err := l.prober.listen()
		if err != nil {
			return errUnmeasured
		}
		defer func() { _ = socket.Close() }()
		return try(ctx, socket, net.UDPAddrFromAddrPort(to))
	})
}

// each tries the addresses until one answers, and stays with it. Each try takes a place of its address. If an address
// had no place and none of the others answers, the target stays unmeasured.
func (l *Line) each(ctx context.Context, try func(context.Context, netip.AddrPort) error) (err error) {
	var untried error
	for i, a := range l.addrs {
		if !l.prober.mayDial(a) {
			untried = errUnmeasured
			continue
		}
		share, cancel := context.WithTimeout(ctx, l.within/time.Duration(len(l.addrs)))
		err = try(share, netip.AddrPortFrom(a, l.target.Port))
		cancel()
		if err == nil {
			l.addrs = l.addrs[i:]
			return nil
		}
	}
	if untried != nil {
		return untried
	}
	return err
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
