package p2p

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
	"github.com/libp2p/go-libp2p/p2p/host/routed"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Node is this peer in its network. It is safe for concurrent use.
type Node struct {
	log       *slog.Logger
	host      host.Host // without routing
	routed    host.Host // finds addresses through the DHT
	dht       *dht.IpfsDHT
	pubsub    *pubsub.PubSub
	routing   *Routing
	prober    *Prober
	known     *knownPeers
	border    *border
	reach     *reach
	punch     *puncher // nil in profiles without NAT
	bootstrap []peer.AddrInfo
	leaf      bool
	alone     bool       // see Alone
	mdns      *mdnsPeers // nil without mDNS in the profile or without working multicast

	open   atomic.Bool // listening; before, the node dials no peer
	cancel context.CancelFunc
	work   sync.WaitGroup // bootstrapper, prober, knownPeers
	once   sync.Once
	closed error // result of Close; guarded by once
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
	fallback, err := ParseAddrs("listen", settings.listen)
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	n := &Node{log: c.Logger, bootstrap: c.Bootstrap, leaf: c.Leaf, reach: newReach(&c, settings.open && !c.Leaf, time.Now())}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	n.cancel = cancel
	if n.known, err = openKnown(ctx, c.Datastore, c.Network, c.Logger); err == nil {
		err = n.build(life, &c, settings)
	}
	if err == nil {
		err = listen(n.host, c.Listen, fallback)
	}
	if err == nil {
		err = n.followReach(life, &c)
	}
	if err != nil {
		return nil, fault.Wrap(op, errors.Join(err, n.Close()))
	}
	n.alone = len(n.known.peers()) == 0 && !slices.ContainsFunc(c.Bootstrap, func(p peer.AddrInfo) bool { return p.ID != n.host.ID() })
	n.open.Store(true)
	n.start(life, &c, settings)
	return n, nil
}

// build creates the parts. The host listens later, so the parts are still unshared.
func (n *Node) build(life context.Context, c *Config, settings profileSettings) (err error) {
	nat := &natParts{relays: newRelaySource(), reach: n.reach, announce: c.Reach.Announce}
	if n.host, err = newHost(c, settings, nat); err != nil {
		return err
	}
	n.border = newBorder(n.host, c)
	identified, err := n.border.subscribe()
	if err != nil {
		return err
	}
	n.work.Go(func() { n.border.run(life, identified) })
	if settings.open {
		if n.punch, err = newPuncher(n.host, nat); err != nil {
			return err
		}
	}
	if n.dht, err = newDHT(quickHost{n.host}, c, settings, n.bootstrapPeers); err != nil {
		return err
	}
	find, err := newFinder(n.dht, dhtProtocol(c.Network), n.host, settings)
	if err != nil {
		return err
	}
	n.routing = newRouting(n.dht, find, len(c.Bootstrap) > 0)
	nat.relays.set(n.routing)
	n.routing.hasNetwork = n.routing.hasNetwork || len(n.known.peers()) > 0
	if err = n.followMode(life, dhtProtocol(c.Network)); err != nil {
		return err
	}
	n.routed = routedhost.Wrap(n.host, n.dht)
	// The host without routing: gossip uses connected peers and must never cause a lookup.
	if n.pubsub, err = pubsub.NewGossipSub(life, n.host, c.PubSub...); err != nil {
		return err
	}
	sub, err := n.host.EventBus().Subscribe(new(event.EvtPeerConnectednessChanged),
		eventbus.BufSize(256), eventbus.Name("blackhole/prober"))
	if err != nil {
		return err
	}
	n.prober = newProber(n.host.ID(), &dialer{host: n.host, dht: n.dht, low: settings.low}, c.Probe)
	find.prober = n.prober
	n.work.Go(func() { n.prober.run(life, sub) })
	return nil
}

func (n *Node) start(life context.Context, c *Config, settings profileSettings) {
	join := newBootstrapper(n, c)
	known := n.known.peers()
	if n.leaf {
		known = known[:min(len(known), leafKnown)]
	}
	n.work.Go(func() { join.run(life, n.bootstrap, known) })
	n.work.Go(func() { n.known.run(life, n.table) })
	if n.punch != nil {
		n.work.Go(func() { n.punch.run(life) })
	}
	if !settings.mdns || settings.open && !inPrivateNetwork(localNetworks()) {
		return
	}
	var err error
	if n.mdns, err = startMDNS(life, n.host, c.Network.Multicast(), settings.open, n.log); err != nil {
		n.log.Warn("multicast DNS does not work here; only bootstrap peers lead into the network", "err", err)
	}
}

// bootstrapPeers are the DHT's entry points for an empty table. Before the node listens it must not dial.
func (n *Node) bootstrapPeers() []peer.AddrInfo {
	if !n.open.Load() {
		return nil
	}
	return slices.Concat(n.bootstrap, n.known.peers())
}

// table returns the peers of the routing table with their addresses.
func (n *Node) table() []peer.AddrInfo {
	var out []peer.AddrInfo
	for _, id := range n.dht.RoutingTable().ListPeers() {
		out = append(out, n.host.Peerstore().PeerInfo(id))
	}
	return out
}

// Host is the libp2p host. It looks up unknown addresses in the DHT.
func (n *Node) Host() host.Host { return n.routed }

// QuickHost is the Host, except that NewStream does not wait until a new connection has identified its peer. The protocol must
// carry the name of the network.
func (n *Node) QuickHost() host.Host { return quickHost{n.routed} }

// Alone reports whether this peer started without a way to other peers: no bootstrap peer besides itself, and no known
// peer of an earlier run.
func (n *Node) Alone() bool { return n.alone }

// HasMulticast reports whether multicast DNS looks for neighbours.
func (n *Node) HasMulticast() bool { return n.mdns != nil }

// PubSub is the node's GossipSub.
func (n *Node) PubSub() *pubsub.PubSub { return n.pubsub }

// Routing is the node's DHT as keepers use it.
func (n *Node) Routing() *Routing { return n.routing }

// Prober measures providers.
func (n *Node) Prober() *Prober { return n.prober }

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
	slices.SortFunc(ids, compareIDs)
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
	return strings.ToValidUTF8(agent[:min(len(agent), limit)], "")
}

// Ready reports whether this peer listens, if it is no leaf, and, with bootstrap peers configured, has joined their network.
func (n *Node) Ready() bool {
	return (n.leaf || len(n.host.Network().ListenAddresses()) > 0) &&
		(len(n.bootstrap) == 0 || n.routing.Size() > 0)
}

// Close stops the node and waits for it. The caller may close the datastore afterwards. Further calls return
// the same result.
//
// Order: first the sources of new connections, including the last save of known peers; PubSub ends with the
// same context; then the DHT, which uses the host until its end; then the host.
func (n *Node) Close() error {
	n.once.Do(func() {
		n.cancel()
		var errs []error
		if n.punch != nil {
			errs = append(errs, n.punch.close())
		}
		if n.mdns != nil {
			n.mdns.close()
		}
		n.work.Wait()
		if n.routing != nil {
			n.routing.finder.requests.close()
		}
		if n.dht != nil {
			errs = append(errs, n.dht.Close())
		}
		if n.host != nil {
			errs = append(errs, n.host.Close())
		}
		n.closed = fault.Wrap("p2p.Close", errors.Join(errs...))
	})
	return n.closed
}

// compareIDs orders peers by their binary ids.
func compareIDs(a, b peer.ID) int { return cmp.Compare(a, b) }
