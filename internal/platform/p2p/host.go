package p2p

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/libp2p/go-libp2p"
	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	"github.com/libp2p/go-libp2p/p2p/net/connmgr"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	quic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/libp2p/go-libp2p/x/rate"
	"github.com/multiformats/go-multiaddr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/blackhole/blackhole/pkg/fault"
)

// newHost builds a host that does not listen yet.
func newHost(c *Config, t profileSettings, relays *relaySource) (host.Host, error) {
	manager, err := connmgr.NewConnManager(t.low, t.high, connmgr.WithGracePeriod(t.grace))
	if err != nil {
		return nil, err
	}
	resources, err := newResources(c, t)
	if err != nil {
		return nil, errors.Join(err, manager.Close())
	}
	opts := append(hostOptions(c),
		libp2p.ConnectionManager(manager),
		libp2p.ResourceManager(resources))
	opts = append(opts, transports(c, t)...)
	opts = append(opts, natOptions(t, relays)...)
	h, err := libp2p.New(opts...)
	if err != nil {
		return nil, errors.Join(err, resources.Close(), manager.Close())
	}
	return h, nil
}

func hostOptions(c *Config) []libp2p.Option {
	opts := []libp2p.Option{
		libp2p.Identity(c.Identity),
		libp2p.UserAgent(c.UserAgent),
		libp2p.NoListenAddrs, // New listens when all handlers are in place
	}
	if c.Registerer == nil {
		// libp2p's collectors are global to the process, so hosts share their series:
		// only a process with one host should ask for them.
		return append(opts, libp2p.DisableMetrics())
	}
	return append(opts, libp2p.PrometheusRegisterer(c.Registerer))
}

// transports are named one by one: libp2p's defaults add WebRTC, WebTransport and
// WebSocket, which cost memory and serve browsers that we do not have.
func transports(c *Config, t profileSettings) []libp2p.Option {
	if len(c.Transport) > 0 {
		return c.Transport
	}
	opts := []libp2p.Option{
		libp2p.Security(noise.ID, newNoise),
		libp2p.Security(libp2ptls.ID, newTLS),
	}
	if t.open {
		// Dialing from the listening port is what lets NAT hole punching work over TCP.
		opts = append(opts, libp2p.Transport(tcp.NewTCPTransport))
	} else {
		// Elsewhere port reuse does harm: a second daemon on the same port would start
		// without an error and take half of the connections.
		opts = append(opts, libp2p.Transport(tcp.NewTCPTransport, tcp.DisableReuseport()))
	}
	if t.quic {
		opts = append(opts, libp2p.Transport(quic.NewTransport))
	}
	return opts
}

// natOptions is all about NATs, which only the open Internet has.
func natOptions(t profileSettings, relays *relaySource) []libp2p.Option {
	if !t.open {
		return []libp2p.Option{
			libp2p.DisableRelay(),
			libp2p.ForceReachabilityPublic(), // nobody to ask, nothing to find out
			libp2p.DisableIdentifyAddressDiscovery(),
		}
	}
	return []libp2p.Option{
		libp2p.EnableRelay(), // client only; NoListenAddrs would turn it off
		libp2p.EnableAutoRelayWithPeerSource(relays.candidates),
		libp2p.EnableHolePunching(),
		libp2p.NATPortMap(),
		libp2p.EnableAutoNATv2(),
		// The DHT's automatic mode listens to AutoNAT v1, whose only servers are our own peers.
		libp2p.EnableNATService(),
		libp2p.NonPublicAddrPublishing(false),
	}
}

// Limits of each of our protocols. libp2p's default of 64 inbound streams per peer and
// protocol is below one busy consumer's parallel queries.
const (
	protocolStreams     = 4096
	protocolPeerStreams = 512
	protocolMemory      = 64 << 20
	protocolPeerMemory  = 16 << 20
	sharedAddress       = 1024 // connections from one address where all may share one
)

func newResources(c *Config, t profileSettings) (network.ResourceManager, error) {
	limits := rcmgr.DefaultLimits
	libp2p.SetDefaultServiceLimits(&limits)
	for _, id := range c.Protocols {
		allow(&limits, id)
	}
	connections(&limits, t)
	limits.PeerBaseLimit.StreamsInbound = 2 * protocolPeerStreams
	limits.PeerBaseLimit.StreamsOutbound = 2 * protocolPeerStreams
	limits.PeerBaseLimit.Streams = 4 * protocolPeerStreams

	var opts []rcmgr.Option
	if !t.open {
		opts = append(opts,
			rcmgr.WithConnRateLimiters(&rate.Limiter{}), // the zero value limits nothing
			rcmgr.WithLimitPerSubnet(
				[]rcmgr.ConnLimitPerSubnet{{PrefixLength: 32, ConnCount: sharedAddress}},
				[]rcmgr.ConnLimitPerSubnet{{PrefixLength: 56, ConnCount: sharedAddress}}))
	}
	traced, err := resourceMetrics(c.Registerer)
	if err != nil {
		return nil, err
	}
	return rcmgr.NewResourceManager(rcmgr.NewFixedLimiter(limits.AutoScale()), append(opts, traced)...)
}

func resourceMetrics(reg prometheus.Registerer) (rcmgr.Option, error) {
	if reg == nil {
		return rcmgr.WithMetricsDisabled(), nil
	}
	rcmgr.MustRegisterWith(reg) // ignores what is registered already
	reporter, err := rcmgr.NewStatsTraceReporter()
	if err != nil {
		return nil, err
	}
	return rcmgr.WithTraceReporter(reporter), nil
}

// allow gives one of our protocols fixed limits instead of the defaults.
func allow(limits *rcmgr.ScalingLimitConfig, id protocol.ID) {
	limits.AddProtocolLimit(id, rcmgr.BaseLimit{
		StreamsInbound: protocolStreams, StreamsOutbound: protocolStreams,
		Streams: 2 * protocolStreams, Memory: protocolMemory,
	}, rcmgr.BaseLimitIncrease{})
	limits.AddProtocolPeerLimit(id, rcmgr.BaseLimit{
		StreamsInbound: protocolPeerStreams, StreamsOutbound: protocolPeerStreams,
		Streams: 2 * protocolPeerStreams, Memory: protocolPeerMemory,
	}, rcmgr.BaseLimitIncrease{})
}

// hardLimit is the hard limit of connections each way, in high water marks. It is far above
// the mark because what is between the two is what lookups of new places may dial, or be
// dialed for, in one grace period; at the limit peers lose sight of each other.
const hardLimit = 4

// connections derives the hard limits from the connection manager's water marks, which
// trim only after the grace period. Handshakes of a whole network that joins at once
// count as transient.
func connections(limits *rcmgr.ScalingLimitConfig, t profileSettings) {
	hard := hardLimit * t.high
	system := &limits.SystemBaseLimit
	system.Conns, system.ConnsInbound, system.ConnsOutbound = 2*hard, hard, hard
	system.FD = max(system.FD, 2*hard)
	streams := 2 * protocolStreams
	system.Streams, system.StreamsInbound, system.StreamsOutbound = 2*streams, streams, streams
	limits.SystemLimitIncrease.Conns = 0
	limits.SystemLimitIncrease.ConnsInbound = 0
	limits.SystemLimitIncrease.ConnsOutbound = 0
	transient := &limits.TransientBaseLimit
	transient.Conns, transient.ConnsInbound, transient.ConnsOutbound = hard, hard/2, hard/2
	transient.FD = max(transient.FD, hard)
}

// relaySource offers routing table peers to AutoRelay. The host needs it before the DHT
// exists, so the table comes later.
type relaySource struct{ dht atomic.Pointer[dht.IpfsDHT] }

func (r *relaySource) candidates(ctx context.Context, n int) <-chan peer.AddrInfo {
	out := make(chan peer.AddrInfo, max(n, 0))
	defer close(out)
	d := r.dht.Load()
	if d == nil || ctx.Err() != nil {
		return out
	}
	for _, id := range d.RoutingTable().ListPeers() {
		if len(out) == cap(out) {
			break
		}
		if addrs := d.Host().Peerstore().Addrs(id); len(addrs) > 0 {
			out <- peer.AddrInfo{ID: id, Addrs: addrs}
		}
	}
	return out
}

// listen opens the addresses. Those of the operator must all work; of the profile's one
// is enough, since a machine may lack IPv6.
func listen(h host.Host, wanted, fallback []multiaddr.Multiaddr) error {
	const op = "p2p.New"
	var failed []error
	for _, a := range wanted {
		if err := h.Network().Listen(a); err != nil {
			return fault.In("listen", fault.New(op, fault.Unavailable, "%s: %w", a, err))
		}
	}
	if len(wanted) > 0 {
		return nil
	}
	for _, a := range fallback {
		if err := h.Network().Listen(a); err != nil {
			failed = append(failed, err)
		}
	}
	if len(failed) == len(fallback) {
		return fault.In("listen", fault.As(op, fault.Unavailable, errors.Join(failed...)))
	}
	return nil
}

func multiaddrs(ss []string) ([]multiaddr.Multiaddr, error) {
	out := make([]multiaddr.Multiaddr, 0, len(ss))
	for _, s := range ss {
		a, err := multiaddr.NewMultiaddr(s)
		if err != nil {
			return nil, fault.Invalidf("listen", s, "%w", err)
		}
		out = append(out, a)
	}
	return out, nil
}
