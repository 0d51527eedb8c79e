package daemon

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/frontend/etcdapi"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/internal/frontend/httpapi"
	"github.com/blackhole/blackhole/internal/frontend/ui"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

// maxRateLimited bounds the clients with a counted registration rate.
const maxRateLimited = 8192

// authSetup authenticates and limits the callers of the front ends.
type authSetup struct {
	guard   *access.Guard // nil: no authentication
	tls     *access.TLS   // nil: no TLS
	limiter *access.Limiter
	pages   pages
}

// startAuth reads tokens, keys and certificates. Package config has already refused public
// listeners without authentication.
func (p *parts) startAuth(context.Context) (err error) {
	c, o := accessConfig(p.config.Auth), access.Options{Now: p.now, Logger: p.log.With("part", "access")}
	p.fronts.reloader = reloader{journal: p.journal, auth: &p.fronts.auth, options: o, log: p.log, now: p.config}
	if c.Enabled {
		if p.fronts.auth.guard, err = access.New(c, o); err != nil {
			return fault.In("auth", err)
		}
	}
	if p.fronts.auth.tls, err = access.NewTLS(c, o); err != nil {
		return fault.In("auth", err)
	}
	p.fronts.auth.pages.Guard = p.fronts.auth.guard
	p.fronts.auth.limiter = access.NewLimiter(p.config.Agent.RegistrationsPerMinute, maxRateLimited)
	return nil
}

// certificateLeft is the rest of a certificate's time in which the peer asks for a new one.
const certificateLeft = 7 * 24 * time.Hour

// checkCertificate raises or clears condition.Certificate.
func (e *authSetup) checkCertificate(files config.Auth, conditions *condition.Set, now time.Time) {
	if e.tls == nil {
		return
	}
	if p := certificateOf(files, e.tls.Ends(), now); p != nil {
		conditions.Raise(condition.Certificate, *p)
		return
	}
	conditions.Clear(condition.Certificate)
}

// pages signs readers in to the page.
type pages struct {
	*access.Guard
	address string // of the page; empty without an HTTP listener
}

// Link implements httpapi.Pages.
func (p *pages) Link(ctx context.Context) (discovery.PageLink, error) {
	if p.address == "" {
		return discovery.PageLink{}, fault.New("daemon.Page", fault.Unsupported, "this peer serves no page: its setting http is off")
	}
	code, expires, err := p.Code(ctx)
	if err != nil || code == "" {
		return discovery.PageLink{URL: p.address}, err
	}
	return discovery.PageLink{URL: p.address + "#code=" + code, Expires: expires}, nil
}

// pageAddress is the address of the page; empty without a listener.
func (p *parts) pageAddress(l net.Listener) string {
	if base := p.urlOf(l); base != "" {
		return base + ui.Prefix
	}
	return ""
}

// urlOf is the address of a listener for a program on this host, or on another one if the listener is open to others.
func (p *parts) urlOf(l net.Listener) string {
	if l == nil {
		return ""
	}
	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return ""
	}
	scheme, ip := "http", net.ParseIP(host)
	if p.fronts.auth.tls != nil {
		scheme = "https"
	}
	switch {
	case len(p.config.Hosts) > 0 && (scheme == "https" || !ip.IsLoopback()):
		host = p.config.Hosts[0]
	case ip.IsUnspecified(), ip.Equal(net.IPv4(127, 0, 0, 1)):
		host = "localhost"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// accessConfig converts the settings for package access.
func accessConfig(a config.Auth) access.Config {
	c := access.Config{
		Enabled: a.On(), Method: a.Method, Token: a.Token, TokenFile: a.TokenFile,
		JWT:    access.JWT{Algorithms: a.JWT.Algorithms, Key: a.JWT.Key, KeyFile: a.JWT.KeyFile, Audience: a.JWT.Audience, Issuer: a.JWT.Issuer},
		CACert: a.CACert, ServerCert: a.ServerCert, ServerKey: a.ServerKey, Anonymous: a.Anonymous,
	}
	if c.Anonymous == "auto" {
		c.Anonymous = ""
	}
	for _, t := range a.Tokens {
		c.Tokens = append(c.Tokens, access.Token{Token: t.Token, TokenFile: t.TokenFile, Name: t.Name, Role: role(t.Role), Services: t.Services})
	}
	for _, t := range a.Certificates {
		c.Certificates = append(c.Certificates, access.Certificate{Name: t.Name, Role: role(t.Role), Services: t.Services})
	}
	return c
}

// role returns the role with a name. config.Validate allows only known names.
func role(name string) access.Role {
	r, _ := access.ParseRole(name)
	return r
}

// limit counts a registration of the caller.
func (e *authSetup) limit(ctx context.Context) error {
	return e.limiter.Of(ctx, time.Now())
}

// may returns an error unless the caller may act for a service.
func (e *authSetup) may(ctx context.Context, service string) error {
	if e.guard == nil {
		return nil
	}
	return access.Check(ctx, access.Need{Role: access.RoleService, Service: service})
}

// callerName returns the authenticated name of a caller; without authentication nobody has one.
func (e *authSetup) callerName(ctx context.Context) string {
	if e.guard == nil {
		return ""
	}
	return access.From(ctx).Name
}

// http sets the authentication of the HTTP front end.
func (e *authSetup) http(c *httpapi.Config) {
	c.Pages = &e.pages
	c.May = e.may
	c.Limit, c.ConnContext = e.limit, access.ConnContext
	if e.guard != nil {
		c.Guard = func(role access.Role, next http.Handler, refuse func(http.ResponseWriter, error)) http.Handler {
			return e.guard.HTTP(access.Need{Role: role}, next, refuse)
		}
	}
}

// need returns the role that a method of gRPC needs.
func (e *authSetup) need(method string) access.Need {
	return access.Need{Role: grpcapi.Need(method)}
}

// grpc sets the authentication of a gRPC front end.
func (e *authSetup) grpc(c *grpcapi.Config) {
	c.Web.Page = e.pages.Link
	if e.guard != nil {
		c.Unary = []grpc.UnaryServerInterceptor{e.guard.Unary(e.need)}
		c.Stream = []grpc.StreamServerInterceptor{e.guard.Stream(e.need)}
		c.Name = e.guard.Name
	}
	c.May = e.may
	c.Limit = e.limit
	if e.tls != nil {
		c.Credentials = credentials.NewTLS(e.tls.Server("h2"))
	}
}

// etcd sets the authentication of the front end for clients of etcd.
func (e *authSetup) etcd(c *etcdapi.Config) {
	if e.guard == nil {
		return
	}
	need := func(method string) access.Need { return access.Need{Role: etcdapi.Need(method)} }
	c.Authenticated = true
	c.Unary = []grpc.UnaryServerInterceptor{e.guard.Unary(need)}
	c.Stream = []grpc.StreamServerInterceptor{e.guard.Stream(need)}
	c.Name = e.guard.Name
}

// secure adds TLS to a listener, if TLS is configured, with the protocols that it prefers.
func (e *authSetup) secure(l net.Listener, protocols ...string) net.Listener {
	if e.tls == nil {
		return l
	}
	return tls.NewListener(l, e.tls.Server(protocols...))
}

// address is the address of the name server, or "off".
func (f *fronts) address() string {
	if f.dns == nil {
		return config.Off
	}
	return f.dns.Addr().String()
}

// listenUnix opens the unix socket of the HTTP API.
func listenUnix(path string) (net.Listener, error) {
	if path == config.Off {
		return nil, nil
	}
	l, err := access.ListenUnix(path)
	if err != nil {
		return nil, fault.Wrap("daemon.Run", fault.Invalidf("unix", path, "%w", err))
	}
	return l, nil
}
