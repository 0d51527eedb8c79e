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
func newHost(c *Config, settings profileSettings, relays *relaySource) (host.Host, error) {
	manager, err := connmgr.NewConnManager(settings.low, settings.high, connmgr.WithGracePeriod(settings.grace))
	if err != nil {
		return nil, err
	}
	resources, err := newResources(c, settings)
	if err != nil {
		return nil, errors.Join(err, manager.Close())
	}
	opts := append(hostOptions(c),
		libp2p.ConnectionManager(manager),
		libp2p.ResourceManager(resources))
	opts = append(opts, transports(c, settings)...)
	opts = append(opts, natOptions(settings, relays)...)
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
		libp2p.NoListenAddrs, // New listens after all handlers are set
	}
	if c.Registerer == nil {
		// libp2p's collectors are global: several hosts of one process would share their series.
		return append(opts, libp2p.DisableMetrics())
	}
	return append(opts, libp2p.PrometheusRegisterer(c.Registerer))
}

// transports lists the transports explicitly: libp2p's defaults add WebRTC, WebTransport and WebSocket, which
// cost memory and serve browsers.
func transports(c *Config, settings profileSettings) []libp2p.Option {
	if len(c.Transport) > 0 {
		return c.Transport
	}
	opts := []libp2p.Option{
		libp2p.Security(noise.ID, newNoise),
		libp2p.Security(libp2ptls.ID, newTLS),
	}
	if settings.open {
		// NAT hole punching over TCP needs dials from the listening port.
		opts = append(opts, libp2p.Transport(tcp.NewTCPTransport))
	} else {
		// Elsewhere port reuse is harmful: a second daemon on the same port would start without an error and
		// receive half of the connections.
		opts = append(opts, libp2p.Transport(tcp.NewTCPTransport, tcp.DisableReuseport()))
	}
	if settings.quic {
		opts = append(opts, libp2p.Transport(quic.NewTransport))
	}
	return opts
}

// natOptions configures NAT traversal, which only the open Internet needs.
func natOptions(settings profileSettings, relays *relaySource) []libp2p.Option {
	if !settings.open {
		return []libp2p.Option{
			libp2p.DisableRelay(),
			libp2p.ForceReachabilityPublic(), // AutoNAT has no servers here
			libp2p.DisableIdentifyAddressDiscovery(),
		}
	}
	return []libp2p.Option{
		libp2p.EnableRelay(), // client only; NoListenAddrs would turn it off
		libp2p.EnableAutoRelayWithPeerSource(relays.candidates),
		libp2p.EnableHolePunching(),
		libp2p.NATPortMap(),
		libp2p.EnableAutoNATv2(),
		// The DHT's automatic mode depends on AutoNAT v1, served by this network's peers only.
		libp2p.EnableNATService(),
		libp2p.NonPublicAddrPublishing(false),
	}
}

// Limits of each own protocol. libp2p's default, 64 inbound streams of one peer and protocol, is below the
// parallel queries of one busy consumer.
const (
	protocolStreams     = 4096
	protocolPeerStreams = 512
	protocolMemory      = 64 << 20
	protocolPeerMemory  = 16 << 20
	sharedAddress       = 1024 // connections from one address, for profiles with a shared address
)

func newResources(c *Config, settings profileSettings) (network.ResourceManager, error) {
	limits := rcmgr.DefaultLimits
	libp2p.SetDefaultServiceLimits(&limits)
	for _, id := range c.Protocols {
		allow(&limits, id)
	}
	connections(&limits, settings)
	limits.PeerBaseLimit.StreamsInbound = 2 * protocolPeerStreams
	limits.PeerBaseLimit.StreamsOutbound = 2 * protocolPeerStreams
	limits.PeerBaseLimit.Streams = 4 * protocolPeerStreams

	var opts []rcmgr.Option
	if !settings.open {
		opts = append(opts,
			rcmgr.WithConnRateLimiters(&rate.Limiter{}), // zero value: no limit
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
	rcmgr.MustRegisterWith(reg) // ignores existing registrations
	reporter, err := rcmgr.NewStatsTraceReporter()
	if err != nil {
		return nil, err
	}
	return rcmgr.WithTraceReporter(reporter), nil
}

// allow sets fixed limits for one own protocol.
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

// hardLimit is the hard limit of connections in each direction, in high water marks. Between mark and limit is
// the room for the dials of lookups in one grace period. At the limit, peers cannot reach each other.
const hardLimit = 4

// connections derives the hard limits from the connection manager's water marks, which trim only after the
// grace period. The handshakes of a whole network that joins at once are transient connections.
func connections(limits *rcmgr.ScalingLimitConfig, settings profileSettings) {
	hard := hardLimit * settings.high
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

// relaySource offers peers of the routing table to AutoRelay. The host needs it before the DHT exists, so dht is
// set later.
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

// listen opens the addresses. All configured addresses must open. Without them, one of the profile's is enough,
// because a machine may lack IPv6.
func listen(h host.Host, wanted, fallback []multiaddr.Multiaddr) error {
	const op = "p2p.New"
	var failed []error
	for _, a := range wanted {
		if err := h.Network().Listen(a); err != nil {
			return fault.In("listen", fault.New(op, fault.Unavailable, "listening on %s failed: %w", a, err))
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
