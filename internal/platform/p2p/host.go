package p2p

import (
	"errors"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	basichost "github.com/libp2p/go-libp2p/p2p/host/basic"
	"github.com/libp2p/go-libp2p/p2p/net/connmgr"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	quic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/multiformats/go-multiaddr"
	"go.uber.org/fx"

	"github.com/blackhole/blackhole/pkg/fault"
)

// trimEvery is the time between two looks of the connection manager at its high water mark. Together with the
// grace period it is short: new connections find room although many idle peers hold others.
const trimEvery = time.Second

// newHost builds a host that does not listen yet.
func newHost(c *Config, settings profileSettings, nat *natParts) (host.Host, error) {
	manager, err := connmgr.NewConnManager(settings.low, settings.high,
		connmgr.WithGracePeriod(settings.grace), connmgr.WithSilencePeriod(trimEvery))
	if err != nil {
		return nil, err
	}
	resources, err := newResources(c, settings)
	if err != nil {
		return nil, errors.Join(err, manager.Close())
	}
	opts, err := hostOptions(c)
	if err != nil {
		return nil, errors.Join(err, resources.Close(), manager.Close())
	}
	opts = append(opts,
		libp2p.ConnectionManager(manager),
		libp2p.ResourceManager(resources))
	opts = append(opts, transports(c, settings)...)
	opts = append(opts, natOptions(c, settings, nat)...)
	h, err := libp2p.New(opts...)
	if err != nil {
		return nil, errors.Join(err, resources.Close(), manager.Close())
	}
	return h, nil
}

func hostOptions(c *Config) ([]libp2p.Option, error) {
	opts := []libp2p.Option{
		libp2p.Identity(c.Identity),
		libp2p.UserAgent(c.UserAgent),
		libp2p.ProtocolVersion(c.Network.Version()),
		libp2p.NoListenAddrs, // New listens after all handlers are set
	}
	if len(c.PrivateKey) > 0 {
		opts = append(opts, libp2p.PrivateNetwork(c.PrivateKey))
	}
	if c.Registerer == nil {
		// libp2p's collectors are global: several hosts of one process would share their series.
		return append(opts, libp2p.DisableMetrics()), nil
	}
	bytes, err := newTraffic(c.Registerer, c.Network.Prefix())
	return append(opts, libp2p.PrometheusRegisterer(c.Registerer), libp2p.BandwidthReporter(bytes)), err
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

// natParts are the parts of NAT traversal that exist before the host.
type natParts struct {
	relays   *relaySource
	reach    *reach
	announce []multiaddr.Multiaddr
	observed basichost.ObservedAddrsManager // set by the host
}

// natOptions configures NAT traversal, which only the open Internet needs.
func natOptions(c *Config, settings profileSettings, nat *natParts) []libp2p.Option {
	opts := []libp2p.Option{libp2p.AddrsFactory(c.Reach.addrs)}
	if settings.leaf {
		return leafOptions()
	}
	if !settings.open {
		return append(opts,
			libp2p.DisableRelay(),
			libp2p.ForceReachabilityPublic(), // AutoNAT has no servers here
			libp2p.DisableIdentifyAddressDiscovery())
	}
	opts = append(opts,
		libp2p.EnableRelay(), // the transport; NoListenAddrs would turn it off
		nat.relays.client(c.Registerer, nat.reach),
		libp2p.WithFxOption(fx.Invoke(func(o basichost.ObservedAddrsManager) { nat.observed = o })),
		libp2p.NATPortMap(),
		libp2p.EnableAutoNATv2(),
		// The DHT's automatic mode depends on AutoNAT v1, served by this network's peers only.
		libp2p.EnableNATService(),
		libp2p.NonPublicAddrPublishing(false))
	switch c.Reach.Mode {
	case ReachablePublic:
		opts = append(opts, libp2p.ForceReachabilityPublic())
	case ReachablePrivate:
		opts = append(opts, libp2p.ForceReachabilityPrivate())
	}
	return append(opts, c.Reach.Relay.service()...)
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
	if len(fallback) == 0 {
		return nil // a leaf
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
