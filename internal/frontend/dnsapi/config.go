package dnsapi

import (
	"cmp"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Bounds of a Server.
const (
	negativeTTL       = 5 * time.Second // of absences
	defaultRate       = 1000
	maxConns          = 256 // over TCP
	maxConnsPerClient = 64  // of one address
	maxSockets        = 4   // for UDP, per address; one per processor
)

// Catalog has the instances. Its names have letter case, those of DNS have none (RFC 4343).
type Catalog interface {
	instances.Catalog
	// Spellings returns the services whose names differ from n's by letter case alone, from memory.
	Spellings(n instance.Name) []instance.Name
}

// Config holds the parts and settings of a Server. Catalog is required.
type Config struct {
	Catalog Catalog

	// Self is the id of this peer, as in Instance.Peer. Answers contain instances of this peer with every
	// address, and instances of other peers with fitting addresses only.
	Self string

	// Node finds a node by a lower-case label, from memory and for concurrent callers. Nil means no nodes.
	Node func(name string) (Node, bool)
	// SelfName is the name of this peer for Node; ns.D has its addresses. Empty means no addresses.
	SelfName string

	Domains []string      // nil means blackhole and consul
	TTL     time.Duration // of answers, less if an instance could become unhealthy sooner

	Allow []netip.Prefix // special-purpose networks allowed for instances of other peers

	// Rate bounds the answers over UDP per second to a network, /24 or /56, because senders can be
	// forged. Of the questions above it every other gets "ask over TCP", the rest no answer. This
	// host has no bound. 0 means 1,000, negative means no bound.
	Rate int

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

func (c *Config) setDefaults() {
	c.Rate = cmp.Or(c.Rate, defaultRate)
	if c.Domains == nil {
		c.Domains = []string{"blackhole", "consul"}
	}
	c.Domains = slices.Clone(c.Domains)
	for i, d := range c.Domains {
		c.Domains[i] = dns.CanonicalName(d)
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
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
}
