package access

import (
	"crypto/x509"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Options holds the clock and the logger. The zero value is usable.
type Options struct {
	Now    func() time.Time // nil means time.Now
	Logger *slog.Logger     // nil disables logging; debug level has the reasons of refusals, never credentials
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Guard authenticates callers. It is safe for concurrent use and needs no Close. A nil Guard gives
// everybody RoleAdmin.
type Guard struct {
	options Options
	rules   atomic.Pointer[rules]
	uid     int // of this process
	pages   *sessions
}

// rules are the settings of a guard that may change while it works.
type rules struct {
	anonymous Role
	bearers   *reloadable[tokenVerifier] // nil for method mtls
	certs     map[string]Certificate     // by name
}

// New makes a guard, or returns nil if authentication is off. It fails with Invalid, with the setting
// below auth.
func New(c Config, o Options) (*Guard, error) {
	const op = "access.New"
	if err := c.Validate(); err != nil || !c.Enabled {
		return nil, fault.Wrap(op, err)
	}
	g := &Guard{options: o.withDefaults(), uid: os.Geteuid(), pages: &sessions{}}
	r := &rules{anonymous: c.anonymous(), certs: map[string]Certificate{}}
	g.rules.Store(r)
	switch c.method() {
	case MethodToken:
		r.bearers = &reloadable[tokenVerifier]{files: c.tokenFiles(), parse: c.parseTokens}
	case MethodJWT:
		r.bearers = &reloadable[tokenVerifier]{files: c.JWT.files(), parse: func(contents [][]byte) (tokenVerifier, error) {
			return c.JWT.parse(contents, g.options.Now)
		}}
	default:
		for _, cert := range c.Certificates {
			r.certs[cert.Name] = cert
		}
		return g, nil
	}
	r.bearers.now, r.bearers.log = g.options.Now, g.options.Logger
	if err := r.bearers.load(); err != nil {
		return nil, fault.Wrap(op, err)
	}
	return g, nil
}

// Adopt takes over the rules of another guard, which is not used afterwards. Calls and streams that run now are checked
// against them at their next check. Sessions of pages stay, as long as the credentials behind them do.
func (g *Guard) Adopt(other *Guard) { g.rules.Store(other.rules.Load()) }

// callCredentials holds the credentials of a call.
type callCredentials struct {
	authorization []string
	chains        [][]*x509.Certificate // verified by TLS
	remote        net.Addr              // nil if only address is known
	address       string
}

// identify returns the caller. It fails with Unauthentic for wrong credentials. A caller without
// credentials is anonymous.
func (g *Guard) identify(e callCredentials) (caller, error) {
	if g == nil {
		return caller{Principal: Principal{Name: "local", Role: RoleAdmin}, client: clientOf(e)}, nil
	}
	c, err := g.authenticate(e)
	if err != nil {
		g.options.Logger.Debug("refused a caller with invalid credentials", "client", clientOf(e), "err", err)
		return caller{}, unauthentic()
	}
	if c.client = c.Name; c.Name == "" {
		c.client = clientOf(e)
	}
	c.by = e
	return c, nil
}

// enter returns the caller of a call, which fulfils the need. Where none is needed a wrong credential counts as none,
// so that a client whose token has ended can ask for another one, and probes go on.
func (g *Guard) enter(e callCredentials, n Need) (caller, error) {
	c, err := g.identify(e)
	if err != nil && n == (Need{}) {
		e.authorization, e.chains = nil, nil
		c, err = g.identify(e)
	}
	if err == nil {
		err = c.check(n)
	}
	return c, err
}

func (g *Guard) authenticate(e callCredentials) (caller, error) {
	if c, ok, err := g.paged(e); ok {
		return c, err
	}
	r := g.rules.Load()
	if r.bearers != nil && len(e.authorization) > 0 {
		token, err := bearer(e.authorization)
		if err != nil {
			return caller{}, err
		}
		return (*r.bearers.get()).verify(token)
	}
	if r.bearers == nil && len(e.chains) > 0 {
		return g.certified(e.chains[0][0])
	}
	if p, ok := Plain(e.remote).(peerAddr); ok && p.known && (p.uid == g.uid || p.uid == 0) {
		return caller{Principal: Principal{Name: p.String(), Role: RoleAdmin}}, nil
	}
	return caller{Principal: Principal{Role: r.anonymous}}, nil
}

// certified returns the caller of a client certificate, by its first name in the settings. TLS has
// verified the certificate, but it may have expired on an open connection.
func (g *Guard) certified(cert *x509.Certificate) (caller, error) {
	if !g.options.Now().Before(cert.NotAfter) {
		return caller{}, errCertificate
	}
	listed := g.rules.Load().certs
	names := append([]string{cert.Subject.CommonName}, cert.DNSNames...)
	for _, name := range names {
		if known, ok := listed[name]; ok && name != "" {
			return caller{Principal: Principal{Name: name, Role: known.Role, Services: known.Services}, expires: cert.NotAfter}, nil
		}
	}
	services := own(names...)
	if len(services) == 0 {
		return caller{}, errCertificate
	}
	return caller{Principal: Principal{Name: services[0], Role: RoleService, Services: services}, expires: cert.NotAfter}, nil
}

// clientOf returns the origin of a call as a key of rate limits.
func clientOf(e callCredentials) string {
	if r, ok := e.remote.(*remote); ok && r.client != "" {
		return r.client
	} else if ok && r.user != nil {
		return r.user.String()
	}
	if p, ok := Plain(e.remote).(peerAddr); ok {
		return p.String()
	}
	if e.remote != nil {
		e.address = e.remote.String()
	}
	at, err := netip.ParseAddrPort(e.address)
	if err != nil {
		return e.address
	}
	addr := at.Addr().Unmap()
	switch {
	case addr.IsLoopback(): // each process chooses among all of 127.0.0.0/8; the user behind it is not known
		return "loopback"
	case addr.Is6():
		return netip.PrefixFrom(addr, 64).Masked().String()
	}
	return addr.String()
}

// Plain returns the address of a caller as its listener gave it, without what Connections added.
func Plain(a net.Addr) net.Addr {
	if r, ok := a.(*remote); ok {
		return r.Addr
	}
	return a
}

// peerAddr is the remote address of a connection on a unix socket: the user of the other process.
type peerAddr struct {
	uid   int
	known bool
}

// Network implements net.Addr.
func (peerAddr) Network() string { return "unix" }

// String implements net.Addr.
func (a peerAddr) String() string {
	if !a.known {
		return "uid:unknown"
	}
	return "uid:" + strconv.Itoa(a.uid)
}
