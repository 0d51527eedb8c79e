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

// Node is this peer in its network. Safe for concurrent use.
type Node struct {
	log       *slog.Logger
	host      host.Host // plain
	routed    host.Host // finds addresses through the DHT
	dht       *dht.IpfsDHT
	pubsub    *pubsub.PubSub
	routing   *Routing
	prober    *Prober
	known     *knownPeers
	bootstrap []peer.AddrInfo
	mdns      *mdnsPeers // nil where the profile has none or multicast does not work

	open   atomic.Bool // listening; nobody is dialed before
	cancel context.CancelFunc
	work   sync.WaitGroup // bootstrapper, prober, saver
	once   sync.Once
	closed error // of Close; guarded by once
}

// PeerInfo is a connected peer.
type PeerInfo struct {
	ID      peer.ID
	Addrs   []string      // of its connections
	Agent   string        // what it calls itself; anything a stranger likes, at most 128 bytes
	Latency time.Duration // moving average; 0 when unknown
}

// New builds and starts a node: when it returns, the peer listens and is on its way into
// the network; Ready tells when it arrived. ctx bounds only the construction.
//
// Errors: Invalid with the field of Config; Unavailable, field "listen", when an address
// cannot be opened.
func New(ctx context.Context, c Config) (*Node, error) {
	const op = "p2p.New"
	c, t, err := c.complete()
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	fallback, err := multiaddrs(t.listen)
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	n := &Node{log: c.Logger, bootstrap: c.Bootstrap}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	n.cancel = cancel
	n.known = openKnown(ctx, c.Datastore, c.Logger)
	if err = n.build(life, &c, t); err == nil {
		err = listen(n.host, c.Listen, fallback)
	}
	if err != nil {
		return nil, fault.Wrap(op, errors.Join(err, n.Close()))
	}
	n.open.Store(true)
	n.start(life, t)
	return n, nil
}

// build makes the parts. The host does not listen yet, so nothing happens concurrently.
func (n *Node) build(life context.Context, c *Config, t profileSettings) (err error) {
	relays := new(relaySource)
	if n.host, err = newHost(c, t, relays); err != nil {
		return err
	}
	if n.dht, err = newDHT(n.host, c, t, n.bootstrapPeers); err != nil {
		return err
	}
	relays.dht.Store(n.dht)
	known := newUnresponsivePeers()
	find, err := newFinder(n.dht, n.host, t, known)
	if err != nil {
		return err
	}
	n.routing = newRouting(n.dht, find, len(c.Bootstrap) > 0)
	n.routed = routedhost.Wrap(n.host, n.dht)
	if n.pubsub, err = newPubSub(life, n.host, c.PubSub); err != nil {
		return err
	}
	sub, err := n.host.EventBus().Subscribe(new(event.EvtPeerConnectednessChanged),
		eventbus.BufSize(256), eventbus.Name("blackhole/prober"))
	if err != nil {
		return err
	}
	n.prober = newProber(n.host.ID(), &dialer{host: n.host, dht: n.dht, low: t.low, unresponsive: known}, c.Probe)
	find.reach = n.prober
	n.work.Go(func() { n.prober.run(life, sub) })
	return nil
}

func (n *Node) start(life context.Context, t profileSettings) {
	join := newBootstrapper(n.host, n.dht, n.routing, n.log)
	n.work.Go(func() { join.run(life, n.bootstrap, n.known.peers()) })
	n.work.Go(func() { n.known.run(life, n.table) })
	if !t.mdns {
		return
	}
	var err error
	if n.mdns, err = startMDNS(life, n.host, n.log); err != nil {
		n.log.Warn("no multicast DNS; peers are found by bootstrap only", "err", err)
	}
}

// mergeBootstrap are whom the DHT asks when its table is empty. Before the peer listens it
// must make no connection.
func (n *Node) bootstrapPeers() []peer.AddrInfo {
	if !n.open.Load() {
		return nil
	}
	return slices.Concat(n.bootstrap, n.known.peers())
}

// table gives the routing table's peers with their addresses.
func (n *Node) table() []peer.AddrInfo {
	var out []peer.AddrInfo
	for _, id := range n.dht.RoutingTable().ListPeers() {
		out = append(out, n.host.Peerstore().PeerInfo(id))
	}
	return out
}

// Host is the libp2p host. It looks up addresses of peers that it does not know.
func (n *Node) Host() host.Host { return n.routed }

// PubSub is the node's GossipSub.
func (n *Node) PubSub() *pubsub.PubSub { return n.pubsub }

// Routing is the node's DHT as keepers need it.
func (n *Node) Routing() *Routing { return n.routing }

// Prober measures providers.
func (n *Node) Prober() *Prober { return n.prober }

// Addrs are the addresses this peer can be dialed at, as far as it knows, each with its
// id: "/ip4/.../p2p/ID".
func (n *Node) Addrs() []string {
	info := peer.AddrInfo{ID: n.host.ID(), Addrs: n.host.Addrs()}
	full, err := peer.AddrInfoToP2pAddrs(&info)
	if err != nil {
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

// Ready reports whether this peer listens and has met its network, if it was told of one.
func (n *Node) Ready() bool {
	return len(n.host.Network().ListenAddresses()) > 0 &&
		(len(n.bootstrap) == 0 || n.routing.Size() > 0)
}

// Close stops the node and waits for it; the datastore may be closed afterwards. It is
// safe to call more than once.
//
// The order matters: first whoever makes new connections, the last save of known peers
// among them; PubSub ends with the same context; then the DHT, which may use the host to
// its last moment; the host last.
func (n *Node) Close() error {
	n.once.Do(func() {
		n.cancel()
		if n.mdns != nil {
			n.mdns.close()
		}
		n.work.Wait()
		var errs []error
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
