package discovery

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/keeper"
	"github.com/blackhole/blackhole/internal/discovery/offers"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/discovery/truth"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/metrics"
	"github.com/blackhole/blackhole/internal/platform/p2p"
	"github.com/blackhole/blackhole/internal/platform/p2p/address"
	reachability "github.com/blackhole/blackhole/internal/platform/p2p/probe"
	"github.com/blackhole/blackhole/internal/platform/p2p/routing"
	"github.com/blackhole/blackhole/internal/platform/probe"
	"github.com/blackhole/blackhole/internal/platform/trace"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/gossip"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// verifiedRecords bounds the cache of verified envelopes, each at most 1.5 KiB. Most of them are also in
// the index.
const verifiedRecords = 8192

// maxSellers bounds an answer to GET_PROVIDERS: clients ask several keepers, mostly for 20.
const maxSellers = 64

// Config are the settings of a Plane. Network, Dir and Key are required.
type Config struct {
	Network network.Name
	Dir     string         // folder of the registry's database
	Key     crypto.PrivKey // Ed25519: this peer's identity, signs its records

	MaxServices      int           // services of this peer; 0: see package offers
	IndexBytes       int64         // memory of the records in the index; 0: see package index
	TTL, Refresh     time.Duration // of own records: see offers.Config
	Precision        int           // of geohashes in keys: see offers.Config
	PublishPrecision int           // of published places: see offers.Config
	Settings         Settings

	Loopback   bool // all peers may share one address: see gossip.Config
	OneMachine bool // all peers run on one machine, without quotas: see protocol.Limits
	Closed     bool // not everybody may join: see truth.Sharing

	Metrics  *metrics.Discovery // nil: none
	Logger   *slog.Logger       // nil: silent
	Now      func() time.Time   // nil: time.Now
	Resolver *net.Resolver      // of names in offers; nil: the machine's
	// Interfaces reads the addresses of this machine, which no check connects to; nil: net.InterfaceAddrs.
	Interfaces func() ([]net.Addr, error)
	// Conditions receives the causes that limit this plane; nil: none.
	Conditions *condition.Set
	Tracer     *trace.Tracer // nil: no spans
}

// Node is what a plane uses of the network: see p2p.Node and p2p.Attached.
type Node interface {
	Host() host.Host
	QuickHost() host.Host
	PubSub() *pubsub.PubSub
	Routing() *routing.Routing
	Prober() *reachability.Prober
}

// Plane is the discovery plane of one peer. New creates its memory, Network names its needs, Start joins
// it to a node.
type Plane struct {
	config   Config
	verifier *records.Verifier
	index    *index.Index
	watches  *watchSet
	identity *IdentityWatch

	node     Node                    // nil before Start
	keepers  *keeper.Keeper          // nil before Start
	registry *offers.Registry        // nil before Start
	service  atomic.Pointer[Service] // nil before the end of Start
	undo     []func() error          // stops the started parts, in order of their start
}

// New creates a plane that is not connected yet. It opens no file.
func New(c Config) (*Plane, error) {
	if c.Key == nil {
		return nil, fault.New("discovery.New", fault.Invalid, "Key is required")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	verifier, err := records.NewVerifier(c.Network, verifiedRecords)
	if err != nil {
		return nil, fault.Wrap("discovery.New", err)
	}
	identity := &IdentityWatch{Conditions: c.Conditions, Logger: c.Logger.With("part", "identity"), Now: c.Now}
	return &Plane{
		config: c, verifier: verifier, watches: newWatchSet(), identity: identity,
		index: index.New(index.Config{MaxBytes: c.IndexBytes, Seen: identity.Seen}),
	}, nil
}

// Network adds the plane's protocols, GossipSub options and answers to the configuration of a node.
func (p *Plane) Network(c p2p.Config) p2p.Config {
	c.Providers = func(multihash []byte) []peer.ID {
		return p.index.Sellers(multihash, maxSellers, p.config.Now(), rand.IntN)
	}
	c.PubSub = append(c.PubSub, gossip.Options(p.gossip())...)
	c.Protocols = append(c.Protocols, protocol.Protocol(p.config.Network), gossip.Protocol(p.config.Network))
	return c
}

func (p *Plane) gossip() gossip.Config {
	return gossip.Config{
		Network:  p.config.Network,
		Verifier: p.verifier, Now: p.config.Now, Known: p.index.Latest, Sink: p.receive,
		Logger: p.config.Logger.With("part", "gossip"), Received: p.config.Metrics.Received,
		Lost: p.watches.lost, Loopback: p.config.Loopback,
	}
}

// receive puts a live update into the index, which refuses stale ones with Exists.
func (p *Plane) receive(r *records.Record) {
	if _, err := p.index.Put(r, p.config.Now()); err != nil && fault.KindOf(err) != fault.Exists {
		p.config.Metrics.Failed("gossip.Sink", err)
	}
}

// Start connects the plane to a node that was built with Network's configuration, opens the registry, and
// begins to announce. Close the plane before the node, also after an error.
func (p *Plane) Start(node Node) (*Service, error) {
	p.node = node
	live, err := gossip.New(p.gossip(), node.PubSub())
	if err != nil {
		return nil, err
	}
	p.onClose(func() error { live.Close(); return nil })
	c := p.config
	p.keepers, err = keeper.New(protocol.Config{
		Network: c.Network,
		Host:    node.QuickHost(), Router: node.Routing(), Index: p.index, Verifier: p.verifier,
		Now: c.Now, Logger: c.Logger.With("part", "keeper"), Wanted: p.watches.wants,
		Limits: protocol.Limits{Loopback: c.OneMachine},
		Heard:  p.heard, Asked: p.asked, Draw: rand.IntN,
		Signals: protocol.Signals{Conditions: c.Conditions, Tracer: c.Tracer, Metrics: c.Metrics},
	})
	if err != nil {
		return nil, err
	}
	p.onClose(p.keepers.Close)
	p.registry, err = offers.Open(offers.Config{
		Network: c.Network, Dir: c.Dir, Key: c.Key, MaxServices: c.MaxServices, TTL: c.TTL, Refresh: c.Refresh,
		Precision: c.Precision, PublishPrecision: c.PublishPrecision,
		Jitter: rand.Float64, Logger: c.Logger.With("part", "registry"),
	}, c.Now())
	if err != nil {
		return nil, err
	}
	p.onClose(p.registry.Close)
	p.identity.Attach(p.registry, p.index)
	settings := c.Settings
	settings.Witnesses = &truth.Sharing{
		Network: c.Network, Key: c.Key, Self: node.Host().ID(), Closed: c.Closed, Knowers: p.keepers.Knowers,
		Records: p.index.All, Witness: p.keepers.Witness, Tell: p.keepers.Tell, Hand: p.keepers.Hand, OwnWitnesses: p.keepers.OwnWitnesses,
	}
	service, err := NewService(Parts{
		Registry: p.registry, Index: p.index, Keepers: p.keepers, Updates: live, Peers: node.Prober(),
		Metrics: c.Metrics, Logger: c.Logger.With("part", "discovery"), Now: c.Now, Random: rand.Uint64,
		watches: p.watches, Conditions: c.Conditions, Speaks: p.endpointProber(node),
	}, settings)
	if err != nil {
		return nil, err
	}
	p.onClose(service.Close)
	p.service.Store(service)
	return service, nil
}

// heard and asked pass on what other peers found, and what they want to know.
func (p *Plane) heard(st protocol.Statement, from netip.Prefix) {
	if s := p.service.Load(); s != nil {
		s.Heard(st, from)
	}
}

func (p *Plane) asked(n records.Name, by peer.ID) {
	if s := p.service.Load(); s != nil {
		s.Asked(n, by)
	}
}

// endpointProber speaks to the endpoints of offers, but not to this machine, nor to private addresses on the Internet.
// Own addresses are those of the interfaces, whatever this peer listens on, and those that it announces.
func (p *Plane) endpointProber(node Node) *probe.Prober {
	c := p.config
	machine := probe.NewInterfaces(c.Interfaces, c.Now)
	own := func(a netip.Addr) bool {
		announced := func(m multiaddr.Multiaddr) bool {
			_, err := m.ValueForProtocol(multiaddr.P_CIRCUIT) // the address of a relay is not of this peer
			return err != nil && address.IP(m) == a
		}
		return !c.OneMachine && (machine.Have(a, !c.Loopback) || slices.ContainsFunc(node.Host().Addrs(), announced))
	}
	return probe.New(probe.Config{Private: c.Loopback, Loopback: c.OneMachine, Own: own, Resolver: c.Resolver})
}

func (p *Plane) onClose(f func() error) { p.undo = append(p.undo, f) }

// Close stops the parts in reverse order and waits for them. Registered services stay on disk.
func (p *Plane) Close() error {
	var errs []error
	for i := len(p.undo) - 1; i >= 0; i-- {
		errs = append(errs, p.undo[i]())
	}
	p.undo = nil
	return errors.Join(errs...)
}

// Records counts the records in the index and the registered services of this peer. Call it after Start.
func (p *Plane) Records() (indexed, own int) { return p.index.Len(), p.registry.Len() }

// IndexBytes returns the estimated memory of the records in the index, and its limit.
func (p *Plane) IndexBytes() (used, limit int64) { return p.index.Memory() }

// Unstored returns the ids of the services of this peer that no keeper holds. Call it after Start.
func (p *Plane) Unstored() []string { return p.registry.Unstored() }

// Announcing counts the changes of this peer's services that some keeper has not taken. Call it after Start.
func (p *Plane) Announcing() int { return p.registry.Announcing() }

// Usable counts the records in the index: a record is unusable if it claims to be unhealthy, if its provider or its
// endpoint does not answer, or if it needs features of a later version. Call it after Start.
func (p *Plane) Usable() (usable, unusable int) {
	hidden := p.service.Load().hidden(false)
	for r := range p.index.All() {
		if r.Needs() != "" || r.Facts().Status == pb.HealthStatus_UNHEALTHY || hidden.has(r) {
			unusable++
		} else {
			usable++
		}
	}
	return usable, unusable
}
