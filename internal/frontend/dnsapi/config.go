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

// Config holds the parts and settings of a Server. Catalog is required.
type Config struct {
	Catalog instance.Catalog

	// Self is the id of this peer, as in Instance.Peer. Answers contain instances of this peer with every
	// address, and instances of other peers with fitting addresses only.
	Self string

	// Node finds a node by a lower-case label, from memory and for concurrent callers. Nil means no nodes.
	Node func(name string) (Node, bool)
	// SelfName is the name of this peer for Node; ns.D has its addresses. Empty means no addresses.
	SelfName string

	Domains  []string      // nil means blackhole. and consul.
	TTL      time.Duration // of answers, less if an instance could become unhealthy sooner; 0 means DefaultTTL, negative means none
	Negative time.Duration // TTL of absences, at most MaxNegative; 0 means DefaultNegative

	Clients []netip.Prefix // networks of clients, besides this host
	Allow   []netip.Prefix // special-purpose networks allowed for instances of other peers

	// Rate bounds the answers over UDP per second to a network, /24 or /56, because senders can be
	// forged. Of the questions above it every other gets "ask over TCP", the rest no answer. This
	// host has no bound. 0 means DefaultRate, negative means no bound.
	Rate int

	MaxConns          int // connections over TCP; 0 means DefaultMaxConns
	MaxConnsPerClient int // of one address; 0 means DefaultMaxConnsPerClient
	Sockets           int // for UDP, per address; 0 means one per processor, at most 4

	Now    func() time.Time // nil means time.Now
	Random func() uint64    // seeds the order of answers; nil means the runtime's source
	Logger *slog.Logger     // nil disables logging
}

// Node is a node of the cluster, the content of NODE.node.D.
type Node struct {
	Addrs []netip.Addr
	Zone  string   // in lower case; may be empty
	Text  []string // strings of the TXT record, key=value, at most 255 bytes each
}

// complete sets the defaults and validates the rest. Errors: Invalid, with the name of the setting.
func (c *Config) complete() error {
	if c.Catalog == nil {
		return fault.Invalidf("catalog", nil, "is required: set the catalog of instances")
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

// orElse sets *v if it is zero.
func orElse[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// completeDomains normalises the domains: lower case, with the last dot.
func (c *Config) completeDomains() error {
	if len(c.Domains) == 0 || len(c.Domains) > MaxDomains {
		return fault.Invalidf("domains", c.Domains, "must have from 1 to %d entries", MaxDomains)
	}
	c.Domains = slices.Clone(c.Domains)
	for i, d := range c.Domains {
		name := dns.CanonicalName(d)
		labels, ok := dns.IsDomainName(name)
		if !ok || labels == 0 || len(name) > maxDomain || strings.ContainsAny(name, `\ `) {
			return fault.Invalidf("domains", d, "must be a domain name of at most %d bytes", maxDomain)
		}
		if slices.Contains(c.Domains[:i], name) {
			return fault.Invalidf("domains", d, "occurs twice: remove one")
		}
		c.Domains[i] = name
	}
	return nil
}
