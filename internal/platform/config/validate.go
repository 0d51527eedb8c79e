package config

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Validate reports the first invalid setting by its key.
func (c *Config) Validate() error {
	d := &c.Discovery
	return firstError(
		oneOf("profile", c.Profile, "dev", "lan", "public"),
		folder("data", c.Data),
		c.Auth.validate(),
		c.listener("http", c.HTTP),
		c.listener("grpc", c.GRPC),
		socket("unix", c.Unix),
		c.listener("etcd.listen", c.Etcd.Listen),
		prefix("etcd.prefix", c.Etcd.Prefix),
		prefix("consul.prefix", c.Consul.Prefix),
		c.apart(),
		referrals("ard.referrals", c.ARD.Referrals),
		hosts("hosts", c.Hosts),
		c.Network.validate(),
		c.Connections.validate(),
		c.validateLeaf(),
		oneOf("log.level", strings.ToLower(c.Log.Level), "debug", "info", "warn", "error"),
		oneOf("log.format", c.Log.Format, "text", "json"),
		between("discovery.record_ttl", d.RecordTTL, time.Hour, 48*time.Hour),
		refresh(d),
		between("discovery.cache.size", d.Cache.Size, 100, 1_000_000),
		between("discovery.cache.ttl", d.Cache.TTL, time.Second, time.Hour),
		between("discovery.health.check_interval", d.Health.CheckInterval, time.Second, time.Hour),
		between("discovery.health.check_timeout", d.Health.CheckTimeout, 100*time.Millisecond, time.Minute),
		between("discovery.health.confirm_after", d.Health.ConfirmAfter, time.Second, 10*time.Minute),
		between("discovery.geo.precision", d.Geo.Precision, 4, 12),
		between("discovery.geo.publish_precision", d.Geo.PublishPrecision, 0, 12),
		servicesPerProvider(d.Limits.ServicesPerProvider),
		zeroOr("discovery.limits.index_bytes", d.Limits.IndexBytes, 1<<20, 1<<44),
		between("discovery.query.max_results", d.Query.MaxResults, 1, 1000),
		between("discovery.query.default_radius_km", d.Query.DefaultRadiusKM, 0, 20015),
		oneOf("discovery.query.claims", d.Query.Claims, "check", "trust"),
		c.Coordination.validate(),
		c.Agent.validate(),
		c.Trade.validate(),
		c.validateDNS(),
	)
}

func firstError(errs ...error) error {
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return errs[i]
	}
	return nil
}

func oneOf[T comparable](key string, value T, allowed ...T) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	names := make([]string, len(allowed))
	for i, a := range allowed {
		names[i] = fmt.Sprint(a)
	}
	// Quoted, because a file of Windows brings \r.
	return fault.Invalidf(key, value, "must be one of %s, not %q", strings.Join(names, ", "), fmt.Sprint(value))
}

// folder refuses a ~ that did not become a home: a folder of that name would get the identity.
func folder(key, path string) error {
	switch {
	case path == "":
		return fault.Invalidf(key, path, "must not be empty")
	case path[0] == '~':
		return fault.Invalidf(key, path, "begins with ~, and only ~/ with the variable HOME is a home: write the whole path")
	}
	return nil
}

// between refuses NaN too, because every comparison with it is false.
func between[T cmp.Ordered](key string, value, low, high T) error {
	if value >= low && value <= high {
		return nil
	}
	return fault.Invalidf(key, value, "must be between %v and %v", low, high)
}

// maxServices is the number of services that keepers accept from one provider: records.MaxPerProvider. A test of the
// daemon compares both.
const maxServices = 10_000

// servicesPerProvider refuses more services than the keepers of the network accept.
func servicesPerProvider(n int) error {
	if n >= 1 && n <= maxServices {
		return nil
	}
	return fault.Invalidf("discovery.limits.services_per_provider", n,
		"must be between 1 and %d: the keepers of the network accept no more services of one provider", maxServices)
}

// refresh requires time for a second renewal after a missed one.
func refresh(d *Discovery) error {
	if d.RefreshInterval >= time.Minute && d.RefreshInterval < d.RecordTTL/2 {
		return nil
	}
	return fault.Invalidf("discovery.refresh_interval", d.RefreshInterval,
		"needs a value from 1m to less than half of discovery.record_ttl (%v)", d.RecordTTL)
}

// Off as an address disables the listener.
const Off = "off"

// prefix refuses one that is no folder of keys. The front ends refuse those of the group itself.
func prefix(key, text string) error {
	name, ok := strings.CutSuffix(text, "/")
	if !ok || name == "" || len(text) > maxPrefix || strings.HasSuffix(name, "/") {
		return fault.Invalidf(key, text, "must be a name and /, with at most %d bytes", maxPrefix)
	}
	return nil
}

// apart refuses front ends whose clients would change each other's keys.
func (c *Config) apart() error {
	if a, b := c.Etcd.Prefix, c.Consul.Prefix; strings.HasPrefix(a, b) || strings.HasPrefix(b, a) {
		return fault.Invalidf("consul.prefix", b, "must not overlap etcd.prefix, %s", a)
	}
	return nil
}

// Bounds of the referrals, which are in each answer to those who want them.
const (
	maxReferrals = 16
	maxReferral  = 512 // bytes
)

// referrals refuses what is no public address of a search. Credentials in one would reach every client.
func referrals(key string, urls []string) error {
	if len(urls) > maxReferrals {
		return fault.Invalidf(key, len(urls), "must be at most %d", maxReferrals)
	}
	for n, text := range urls {
		at, err := url.Parse(text)
		if err != nil || at.Scheme != "https" || at.User != nil || at.Fragment != "" || len(text) > maxReferral || !isName(at.Hostname()) && net.ParseIP(at.Hostname()) == nil {
			return fault.Invalidf(key, text, "must be https URLs such as https://registry.example.com/search, of at most %d bytes, without credentials and #", maxReferral)
		}
		if slices.Contains(urls[:n], text) {
			return fault.Invalidf(key, text, "must be there once")
		}
	}
	return nil
}

// maxPrefix leaves most of a key to clients.
const maxPrefix = 128

// listener allows loopback addresses, and others only with TLS and authentication: every
// caller of an open API can register services in this peer's name.
func (c *Config) listener(key, addr string) error {
	if addr == Off {
		return nil
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fault.Invalidf(key, addr, "must be host:port or %q: %v", Off, err)
	}
	if ip := net.ParseIP(host); host == "localhost" || (ip != nil && ip.IsLoopback()) || (c.Auth.TLS() && c.Auth.On()) {
		return nil
	}
	return fault.Invalidf(key, addr, "must be a loopback address (127.0.0.1, [::1] or localhost), "+
		"or be protected by auth.server_cert, auth.server_key and auth.enabled")
}
