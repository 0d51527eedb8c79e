package p2p

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/host/routed"

	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/internal/platform/p2p/address"
	"github.com/blackhole/blackhole/internal/platform/p2p/dial"
	"github.com/blackhole/blackhole/internal/platform/p2p/join"
	"github.com/blackhole/blackhole/internal/platform/p2p/probe"
	"github.com/blackhole/blackhole/internal/platform/p2p/reach"
	"github.com/blackhole/blackhole/internal/platform/p2p/routing"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Node is this peer in its network. It is safe for concurrent use.
type Node struct {
	stack
	log       *slog.Logger
	known     *join.Known
	border    *join.Border
	reach     *reach.Reach
	bootstrap []peer.AddrInfo
	leaf      bool
	alone     bool       // see Alone
	mdns      *join.MDNS // nil without mDNS in the profile or without working multicast

	open   atomic.Bool // listening; before, the node dials no peer
	cancel context.CancelFunc
	stop   func() error // for Close, once
}

// stack are the services that planes use: a host and what runs on it.
type stack struct {
	host    host.Host // without routing
	routed  host.Host // finds addresses through the DHT
	dht     *dht.IpfsDHT
	pubsub  *pubsub.PubSub
	routing *routing.Routing
	prober  *probe.Prober
	work    sync.WaitGroup // the Run of each part
}

// serve creates the parts on the host and the DHT, and runs them until life ends. low is the number of connections below which
// the host never trims.
func (s *stack) serve(life context.Context, low int, table routing.Config, measure probe.Config, options []pubsub.Option) (err error) {
	if s.prober, err = probe.New(s.host, s.dht, low, measure); err != nil {
		return err
	}
	if s.routing, err = routing.New(s.dht, table, s.prober); err != nil {
		return err
	}
	s.work.Go(func() { s.routing.Run(life) })
	s.work.Go(func() { s.prober.Run(life) })
	s.routed = routedhost.Wrap(s.host, s.dht)
	// The host without routing: gossip uses connected peers and must never cause a lookup.
	s.pubsub, err = pubsub.NewGossipSub(life, plainHost{s.host}, options...)
	return err
}

// PeerInfo is a connected peer.
type PeerInfo struct {
	ID      peer.ID
	Addrs   []string      // of its connections
	Agent   string        // its own user agent, unverified, at most 128 bytes
	Latency time.Duration // moving average; 0: unknown
}

// New builds and starts a node. On return the node listens and joins its network in the background; see Ready.
// ctx bounds only the construction.
//
// Errors: Invalid with the field of Config; Unavailable with field "listen" for an address that does not open.
func New(ctx context.Context, c Config) (*Node, error) {
	const op = "p2p.New"
	c, settings, err := c.complete()
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	fallback, err := address.Parse("listen", settings.listen)
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	n := &Node{log: c.Logger, bootstrap: c.Bootstrap, leaf: c.Leaf, reach: reach.New(c.Reach, reach.Settings{
		Profile: string(c.Profile), Open: settings.open, Leaf: c.Leaf, First: len(c.Bootstrap) == 0, Conditions: c.Conditions,
	}, time.Now())}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	n.cancel, n.stop = cancel, sync.OnceValue(n.stopParts)
	if n.known, err = join.OpenKnown(ctx, c.Datastore, c.Network, c.Logger); err == nil {
		err = n.build(life, &c, settings)
	}
	if err == nil {
		err = listen(n.host, c.Listen, fallback)
	}
	if err == nil {
		err = n.reach.Follow(n.host)
	}
	if err != nil {
		return nil, fault.Wrap(op, errors.Join(err, n.Close()))
	}
	n.work.Go(func() { n.reach.Run(life) })
	n.alone = len(n.known.Peers()) == 0 && len(c.Doors) == 0 && !slices.ContainsFunc(c.Bootstrap, func(p peer.AddrInfo) bool { return p.ID != n.host.ID() })
	n.open.Store(true)
	n.start(life, &c, settings)
	return n, nil
}

// build creates the parts. The host listens later, so the parts are still unshared.
func (n *Node) build(life context.Context, c *Config, settings profileSettings) (err error) {
	if n.host, err = newHost(c, settings, n.reach); err != nil {
		return err
	}
	if n.border, err = join.NewBorder(n.host, c.Network, c.Logger, func() { c.Limits.OnRefusal(RefusedNetwork) }); err != nil {
		return err
	}
	n.work.Go(func() { n.border.Run(life) })
	if err = n.reach.Attach(n.host); err != nil {
		return err
	}
	table := routing.Config{
		Host: n.host, Network: c.Network, Mode: mode(c, settings), Open: settings.open, Refresh: settings.refresh, Query: settings.query,
		Values: c.Datastore, Namespaces: c.Namespaces, Providers: c.Providers, Bootstrap: n.bootstrapPeers,
		HasBootstrap: len(c.Bootstrap)+len(c.Doors) > 0, HasKnown: len(n.known.Peers()) > 0,
	}
	if n.dht, err = routing.NewDHT(table); err != nil {
		return err
	}
	err = n.serve(life, settings.low, table, c.Probe, c.PubSub)
	if err == nil {
		n.reach.Relays(n.routing)
	}
	return err
}

func (n *Node) start(life context.Context, c *Config, settings profileSettings) {
	bootstrapper := join.NewBootstrapper(n.host, n.border, n.routing, c.Conditions, c.Logger)
	known := n.known.Peers()
	if n.leaf {
		known = known[:min(len(known), leafKnown)]
	}
	n.work.Go(func() {
		bootstrapper.Run(life, join.Ways{Bootstrap: n.bootstrap, Known: known, Doors: c.Doors, Private: c.PrivateKey})
	})
	n.work.Go(func() { n.known.Run(life, n.routing.Peers) })
	if !settings.mdns {
		return
	}
	var err error
	if n.mdns, err = join.StartMDNS(life, n.host, c.Network.Multicast(), settings.open, n.log); err != nil {
		n.log.Warn("multicast DNS does not work here; only bootstrap peers lead into the network", "err", err)
	}
}

// bootstrapPeers are the DHT's entry points for an empty table. Before the node listens it must not dial.
func (n *Node) bootstrapPeers() []peer.AddrInfo {
	if !n.open.Load() {
		return nil
	}
	return slices.Concat(n.bootstrap, n.known.Peers())
}

// Host is the libp2p host. It looks up unknown addresses in the DHT.
func (s *stack) Host() host.Host { return s.routed }

// QuickHost is the Host, except that NewStream does not wait until a new connection has identified its peer. The protocol must
// carry the name of the network.
func (s *stack) QuickHost() host.Host { return dial.QuickHost{Host: s.routed} }

// Alone reports whether this peer started without a way to other peers: no bootstrap peer besides itself, no door, and no known
// peer of an earlier run.
func (n *Node) Alone() bool { return n.alone }

// HasMulticast reports whether multicast DNS looks for neighbours.
func (n *Node) HasMulticast() bool { return n.mdns != nil }

// PubSub is the GossipSub of the host.
func (s *stack) PubSub() *pubsub.PubSub { return s.pubsub }

// Routing is the DHT as keepers use it.
func (s *stack) Routing() *routing.Routing { return s.routing }

// Prober measures providers.
func (s *stack) Prober() *probe.Prober { return s.prober }

// Reach says how strangers reach this peer.
func (n *Node) Reach() reach.Status { return n.reach.Status() }

// Connections counts the open connections: direct ones, and ones through a relay.
func (n *Node) Connections() (direct, relayed int) {
	for _, c := range n.host.Network().Conns() {
		if c.Stat().Limited {
			relayed++
		} else {
			direct++
		}
	}
	return direct, relayed
}

// Addrs returns this peer's known dialable addresses, each with its id: "/ip4/.../p2p/ID".
func (n *Node) Addrs() []string {
	info := peer.AddrInfo{ID: n.host.ID(), Addrs: n.host.Addrs()}
	full, err := peer.AddrInfoToP2pAddrs(&info)
	if err != nil || len(info.Addrs) == 0 {
		return nil
	}
	out := make([]string, 0, len(full))
	for _, a := range full {
		out = append(out, a.String())
	}
	return out
}

// Peers lists the connected peers by id.
func (n *Node) Peers() []PeerInfo {
	ids := n.host.Network().Peers()
	slices.Sort(ids)
	out := make([]PeerInfo, 0, len(ids))
	for _, id := range ids {
		info := PeerInfo{ID: id, Agent: n.agent(id), Latency: n.host.Peerstore().LatencyEWMA(id)}
		for _, c := range n.host.Network().ConnsToPeer(id) {
			info.Addrs = append(info.Addrs, c.RemoteMultiaddr().String())
		}
		slices.Sort(info.Addrs)
		out = append(out, info)
	}
	return out
}

func (n *Node) agent(id peer.ID) string {
	const limit = 128
	v, err := n.host.Peerstore().Get(id, "AgentVersion")
	agent, ok := v.(string)
	if err != nil || !ok {
		return ""
	}
	return clean.Text(agent, limit)
}

// Ready reports whether this peer listens, if it is no leaf, and, with bootstrap peers configured, has joined their network.
func (n *Node) Ready() bool {
	return (n.leaf || len(n.host.Network().ListenAddresses()) > 0) &&
		(len(n.bootstrap) == 0 || n.routing.Size() > 0)
}

// Close stops the node and waits for it. The caller may close the datastore afterwards. Further calls return
// the same result.
func (n *Node) Close() error { return n.stop() }

// stopParts closes the parts: first the sources of new connections, including the last save of known peers; PubSub ends with the
// same context; then the DHT, which uses the host until its end; then the host.
func (n *Node) stopParts() error {
	n.cancel()
	errs := []error{n.reach.Close()}
	if n.mdns != nil {
		n.mdns.Close()
	}
	n.work.Wait()
	if n.routing != nil {
		n.routing.Close()
	}
	if n.dht != nil {
		errs = append(errs, n.dht.Close())
	}
	if n.host != nil {
		errs = append(errs, n.host.Close())
	}
	return fault.Wrap("p2p.Close", errors.Join(errs...))
}
