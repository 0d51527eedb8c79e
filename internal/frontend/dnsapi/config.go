package dnsapi

import (
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Defaults and bounds of a Config.
const (
	DefaultTTL               = 30 * time.Second
	DefaultNegative          = 5 * time.Second
	MaxNegative              = 30 * time.Second
	DefaultRate              = 1000
	DefaultMaxConns          = 256
	DefaultMaxConnsPerClient = 64
	MaxDomains               = 16

	maxTTL     = 24 * time.Hour
	maxSockets = 16
)

// Config are the parts of a Server; Catalog is required.
type Config struct {
	Catalog instance.Catalog

	// Self is the id of this peer as Instance.Peer has it: only its own instances may be at any
	// address. An instance without a peer is its own too.
	Self string

	// Node finds a node by a label in lower case. It answers from memory, from many goroutines. nil: there are none.
	Node func(name string) (Node, bool)
	// SelfName is what Node calls this peer: ns.D has its addresses. "": ns.D has none.
	SelfName string

	Domains  []string      // answered for; nil: blackhole. and consul.
	TTL      time.Duration // of answers, less when an instance could become unhealthy sooner; 0: DefaultTTL; below: none
	Negative time.Duration // for which an absence may be remembered, at most MaxNegative; 0: DefaultNegative

	Clients []netip.Prefix // who is answered, beside this host
	Allow   []netip.Prefix // special-purpose networks in which instances of other peers may be; nil: none

	// Rate bounds the answers by UDP a second to one network, /24 or /56, for their sender may be
	// forged; above it every other question is answered by "ask over TCP" and the rest by nothing. It
	// does not bind this host. 0: DefaultRate; below: no bound.
	Rate int

	MaxConns          int // over TCP at a time; 0: DefaultMaxConns
	MaxConnsPerClient int // of one address; 0: DefaultMaxConnsPerClient
	Sockets           int // for UDP, at each address; 0: one for each processor, at most 4

	Now    func() time.Time // nil: time.Now
	Random func() uint64    // seeds the order of answers; nil: the runtime's
	Logger *slog.Logger     // nil: silence
}

// Node is a node of the cluster, as NODE.node.D shows it.
type Node struct {
	Addrs []netip.Addr
	Zone  string   // in lower case; "": in none
	Text  []string // of its TXT record, key=value, at most 255 bytes each
}

// complete fills the defaults in and checks the rest. Errors: Invalid, field by its name in the configuration.
func (c *Config) complete() error {
	if c.Catalog == nil {
		return fault.Invalidf("catalog", nil, "is required")
	}
	c.defaults()
	switch {
	case c.TTL > maxTTL:
		return fault.Invalidf("ttl", c.TTL, "must be at most %v", maxTTL)
	case c.Negative < 0 || c.Negative > MaxNegative:
		return fault.Invalidf("negative_ttl", c.Negative, "must be from 0 to %v", MaxNegative)
	case c.Sockets < 1 || c.Sockets > maxSockets:
		return fault.Invalidf("sockets", c.Sockets, "must be from 1 to %d", maxSockets)
	case c.MaxConns < 1:
		return fault.Invalidf("max_conns", c.MaxConns, "must be above 0")
	case c.MaxConnsPerClient < 1:
		return fault.Invalidf("max_conns_per_client", c.MaxConnsPerClient, "must be above 0")
	}
	return c.completeDomains()
}

func (c *Config) defaults() {
	orElse(&c.TTL, DefaultTTL)
	orElse(&c.Negative, DefaultNegative)
	orElse(&c.Rate, DefaultRate)
	orElse(&c.MaxConns, DefaultMaxConns)
	orElse(&c.MaxConnsPerClient, DefaultMaxConnsPerClient)
	orElse(&c.Sockets, min(runtime.GOMAXPROCS(0), 4))
	c.TTL = max(c.TTL, 0)
	if c.Domains == nil {
		c.Domains = []string{"blackhole.", "consul."}
	}
	if c.Node == nil {
		c.Node = func(string) (Node, bool) { return Node{}, false }
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Random == nil {
		c.Random = rand.Uint64
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// orElse sets *v where it is zero.
func orElse[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// completeDomains writes the domains as DNS compares them, in lower case with the last dot.
func (c *Config) completeDomains() error {
	if len(c.Domains) == 0 || len(c.Domains) > MaxDomains {
		return fault.Invalidf("domains", c.Domains, "must be 1 to %d", MaxDomains)
	}
	c.Domains = slices.Clone(c.Domains)
	for i, d := range c.Domains {
		name := dns.CanonicalName(d)
		labels, ok := dns.IsDomainName(name)
		if !ok || labels == 0 || len(name) > maxDomain || strings.ContainsAny(name, `\ `) {
			return fault.Invalidf("domains", d, "must be a domain name of at most %d bytes", maxDomain)
		}
		if slices.Contains(c.Domains[:i], name) {
			return fault.Invalidf("domains", d, "is named twice")
		}
		c.Domains[i] = name
	}
	return nil
}
