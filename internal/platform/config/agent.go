package config

import (
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Agent are the settings of the agent plane.
type Agent struct {
	Enabled                bool        `yaml:"enabled" help:"Accept instances of applications: true or false."`
	RegistrationsPerMinute int         `yaml:"registrations_per_minute" help:"Registrations of one client on another machine per minute, up to 1000000. 0: no limit."`
	DependencyValidation   bool        `yaml:"dependency_validation" help:"Refuse instances with unregistered dependencies."`
	Strict                 bool        `yaml:"strict" help:"Refuse to register an existing id again."`
	Limits                 AgentLimits `yaml:"limits"`
	Checks                 Checks      `yaml:"checks"`
}

// AgentLimits bound the instances of this peer.
type AgentLimits struct {
	Instances int `yaml:"instances" help:"Instances that this peer accepts: 1 to 100000."`
}

// Checks are the settings of health checks.
type Checks struct {
	Workers       int                 `yaml:"workers" help:"Concurrent health checks: 1 to 1024."`
	AllowLoopback string              `yaml:"allow_loopback" help:"Check addresses of this host: true, false, or auto: for instances registered from this host."`
	Scripts       map[string][]string `yaml:"scripts" help:"Commands for script checks, only in this file: {disk: [/usr/lib/check_disk, -w, \"90\"]}."`
}

// scriptsKey is the only setting with a map.
const scriptsKey = "agent.checks.scripts"

// Bounds of lists, maps and names.
const (
	maxScripts = 256
	maxArgs    = 64
	maxDomains = 8
	maxHosts   = 64
	maxDomain  = 128 // bytes, of the 253 of a name; services and nodes need the rest
	maxSocket  = 103 // bytes of a path on every system
)

func (a *Agent) validate() error {
	return firstError(
		between("agent.limits.instances", a.Limits.Instances, 1, 100_000),
		between("agent.registrations_per_minute", a.RegistrationsPerMinute, 0, 1_000_000),
		between("agent.checks.workers", a.Checks.Workers, 1, 1024),
		oneOf("agent.checks.allow_loopback", a.Checks.AllowLoopback, auto, "true", "false"),
		scripts(scriptsKey, a.Checks.Scripts),
	)
}

func (c *Config) validateDNS() error {
	if len(c.DNSDomain) == 0 || len(c.DNSDomain) > maxDomains {
		return fault.Invalidf("dns_domain", c.DNSDomain, "must have 1 to %d entries", maxDomains)
	}
	for i, name := range c.DNSDomain {
		if !isName(name) || len(name) > maxDomain || name != strings.ToLower(name) || slices.Contains(c.DNSDomain[:i], name) {
			return fault.Invalidf("dns_domain", name, "must be a domain in lower case of at most %d bytes, listed once and without the last dot", maxDomain)
		}
	}
	return firstError(nameServer("dns", c.DNS), between("dns_ttl", c.DNSTTL, 0, 24*time.Hour))
}

// nameServer allows loopback and private addresses. DNS has neither TLS nor tokens, and a
// public name server can be abused for amplification attacks.
func nameServer(key, addr string) error {
	if addr == Off {
		return nil
	}
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return fault.Invalidf(key, addr, "must be IP:port or %q: %v", Off, err)
	}
	if ip := at.Addr().Unmap(); ip.IsLoopback() || ip.IsPrivate() {
		return nil
	}
	return fault.Invalidf(key, addr, "must be a loopback or private address")
}

func scripts(key string, commands map[string][]string) error {
	if len(commands) > maxScripts {
		return fault.Invalidf(key, len(commands), "must be at most %d", maxScripts)
	}
	for name, argv := range commands {
		at := key + "." + name
		if !regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`).MatchString(name) {
			return fault.Invalidf(at, nil, "needs a name of 1 to 64 characters a-z, 0-9, _ or -")
		}
		if err := command(at, argv); err != nil {
			return err
		}
	}
	return nil
}

func command(key string, argv []string) error {
	switch {
	case len(argv) == 0 || len(argv) > maxArgs:
		return fault.Invalidf(key, argv, "must be a command with at most %d arguments", maxArgs-1)
	case !filepath.IsAbs(argv[0]):
		return fault.Invalidf(key, argv[0], "must begin with the absolute path of a command")
	}
	return nil
}

func (t *Trade) validate() error {
	for key, argv := range map[string][]string{"trade.on_pay": t.OnPay, "trade.on_grant": t.OnGrant, "trade.on_end": t.OnEnd} {
		if len(argv) == 0 {
			continue
		}
		if err := command(key, argv); err != nil {
			return err
		}
	}
	return between("trade.time_limit", t.TimeLimit, 100*time.Millisecond, 6*time.Second)
}

func socket(key, path string) error {
	if len(path) > maxSocket {
		return fault.Invalidf(key, path, "needs a path of up to %d bytes, or %q", maxSocket, Off)
	}
	return folder(key, path)
}

func hosts(key string, names []string) error {
	if len(names) > maxHosts {
		return fault.Invalidf(key, len(names), "must be at most %d", maxHosts)
	}
	for _, name := range names {
		if !isName(name) && net.ParseIP(name) == nil {
			return fault.Invalidf(key, name, "must be a host name or an address, without a port")
		}
	}
	return nil
}

// isName reports whether name is a valid host name (RFC 1123, section 2.1).
func isName(name string) bool {
	return len(name) <= 253 && regexp.MustCompile(`^(?i:[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)(?i:\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$`).MatchString(name)
}
