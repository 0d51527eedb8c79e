package health

import (
	"cmp"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/platform/probe"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// plan is a validated, immutable target.
type plan struct {
	target   Target // with the defaults of the check
	rules    thresholds
	port     uint16 // 0 for a script
	secure   bool   // TLS
	host     string // destination: name or address
	resource string // HTTP: path and query; gRPC: service
}

func (p *plan) interval() time.Duration { return p.target.Check.Interval }

// same reports whether measurements of q hold for p.
func (p *plan) same(q *plan) bool {
	a, b := p.target, q.target
	return a.Check == b.Check && a.Host == b.Host && a.Port == b.Port && a.TLS == b.TLS && a.Head == b.Head
}

// newPlan validates a target. Errors: Invalid, field "health_check.NAME".
func (c *Checker) newPlan(t Target) (*plan, error) {
	if err := t.Check.Normalize(); err != nil {
		return nil, fault.In("health_check", err)
	}
	p := &plan{target: t, rules: thresholds{healthy: uint8(t.Check.HealthyThreshold), unhealthy: uint8(t.Check.UnhealthyThreshold)}}
	if err := p.parse(c.cfg.Scripts); err != nil {
		return nil, err
	}
	return p, c.refuse(p)
}

// refuse rejects endpoints that no check may connect to.
func (c *Checker) refuse(p *plan) error {
	if p.target.Check.Type == instance.Script {
		return nil
	}
	if p.host == "" || p.port == 0 {
		return unfit(p, "the instance has no host and port of its own to check")
	}
	if !alike(p.host, p.target.Host) && !(p.target.Local && isLoopback(p.host)) {
		return unfit(p, "names the host %s, which is not the instance's own, %s: a peer checks no other", p.host, p.target.Host)
	}
	if a, err := netip.ParseAddr(p.host); err == nil {
		if err := c.policy.Check(a, p.target.Local); err != nil {
			return unfit(p, "%s", fault.Message(err))
		}
	}
	return nil
}

func unfit(p *plan, format string, args ...any) error {
	return fault.Invalidf("health_check.endpoint", p.target.Check.Endpoint, format, args...)
}

// parse parses the endpoint.
func (p *plan) parse(scripts map[string][]string) error {
	endpoint := p.target.Check.Endpoint
	switch p.target.Check.Type {
	case instance.Script:
		if _, ok := scripts[endpoint]; !ok {
			return unfit(p, "is no name in agent.checks.scripts, the setting of this peer that has the commands")
		}
		return nil
	case instance.HTTP:
		return p.parseURL(endpoint)
	case instance.GRPC:
		endpoint, p.resource, _ = strings.Cut(endpoint, "/")
		p.secure = p.target.TLS
	}
	return p.parseAddress(endpoint)
}

// parseURL parses a URL, or a path of the instance's own host and port. A path
// with two leading slashes stays a path, because the host precedes it.
func (p *plan) parseURL(endpoint string) error {
	if endpoint == "" || endpoint[0] == '/' {
		if p.target.Host == "" {
			return nil
		}
		endpoint = "http://" + net.JoinHostPort(p.target.Host, strconv.Itoa(p.target.Port)) + endpoint
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || strings.ContainsAny(endpoint, " \t") {
		return unfit(p, "is no plain http or https URL")
	}
	p.secure = u.Scheme == "https"
	p.host, p.resource = u.Hostname(), u.RequestURI()
	standard := "80"
	if p.secure {
		standard = "443"
	}
	return p.parsePort(cmp.Or(u.Port(), standard))
}

// parseAddress parses a port, host:port, or "" for the instance's own.
func (p *plan) parseAddress(endpoint string) error {
	p.host = p.target.Host
	if endpoint == "" {
		return p.parsePort(strconv.Itoa(p.target.Port))
	}
	host, port, err := net.SplitHostPort(endpoint)
	if err != nil {
		port = endpoint
	}
	p.host = cmp.Or(host, p.host)
	return p.parsePort(port)
}

func (p *plan) parsePort(text string) error {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return unfit(p, "has no port in it")
	}
	p.port = uint16(n)
	return nil
}

// alike reports whether two hosts are the same name or address.
func alike(a, b string) bool {
	x, errA := netip.ParseAddr(a)
	y, errB := netip.ParseAddr(b)
	if errA == nil && errB == nil {
		return x.Unmap() == y.Unmap()
	}
	return strings.EqualFold(strings.TrimSuffix(a, "."), strings.TrimSuffix(b, "."))
}

func isLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback() || probe.IsLocalhost(host)
}
