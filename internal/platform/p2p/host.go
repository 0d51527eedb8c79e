package p2p

import (
	"errors"
	"time"

	hostconfig "github.com/libp2p/go-libp2p/config"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/host/peerstore/pstoremem"
	"github.com/libp2p/go-libp2p/p2p/muxer/yamux"
	"github.com/libp2p/go-libp2p/p2p/net/connmgr"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/net/upgrader"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	quic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/libp2p/go-libp2p/p2p/transport/tcpreuse"
	"github.com/multiformats/go-multiaddr"
	"go.uber.org/fx"

	"github.com/blackhole/blackhole/internal/platform/p2p/dial"
	"github.com/blackhole/blackhole/internal/platform/p2p/reach"
	"github.com/blackhole/blackhole/pkg/fault"
)

// trimEvery is the time between two looks of the connection manager at its high water mark. Together with the
// grace period it is short: new connections find room although many idle peers hold others.
const trimEvery = time.Second

// newHost builds a host that does not listen yet. It fills the configuration of libp2p itself: whoever names the package with
// the options links its defaults too, which are WebRTC, WebTransport and WebSocket.
func newHost(c *Config, settings profileSettings, nat *reach.Reach) (host.Host, error) {
	manager, err := connmgr.NewConnManager(settings.low, settings.high,
		connmgr.WithGracePeriod(settings.grace), connmgr.WithSilencePeriod(trimEvery))
	if err != nil {
		return nil, err
	}
	resources, err := newResources(c, settings)
	if err != nil {
		return nil, errors.Join(err, manager.Close())
	}
	known, err := pstoremem.NewPeerstore()
	if err != nil {
		return nil, errors.Join(err, resources.Close(), manager.Close())
	}
	h := &hostconfig.Config{
		PeerKey: c.Identity, UserAgent: c.UserAgent, ProtocolVersion: c.Network.Version(), PSK: c.PrivateKey,
		ListenAddrs: []multiaddr.Multiaddr{}, // New listens after all handlers are set
		ConnManager: manager, ResourceManager: resources, Peerstore: newBook(known, func(p peer.ID) bool { return manager.IsProtected(p, "") }),
		RelayCustom:                true,
		UDPBlackHoleSuccessCounter: blackHole("UDP"), IPv6BlackHoleSuccessCounter: blackHole("IPv6"),
	}
	err = transports(h, c, settings)
	if h.DisableMetrics = c.Registerer == nil; !h.DisableMetrics { // libp2p's collectors are global: hosts of one process would share them
		h.PrometheusRegisterer = c.Registerer
		var failed error
		h.Reporter, failed = newTraffic(c.Registerer, c.Network.Prefix())
		err = errors.Join(err, failed)
	}
	nat.Configure(h)
	var made host.Host
	if err == nil {
		made, err = h.NewNode()
	}
	if err != nil {
		return nil, errors.Join(err, known.Close(), resources.Close(), manager.Close())
	}
	return made, nil
}

// blackHole notices that a kind of dial fails always: below 5 successes in 100 dials, as libp2p does by default.
func blackHole(name string) *swarm.BlackHoleSuccessCounter {
	return &swarm.BlackHoleSuccessCounter{N: 100, MinSuccesses: 5, Name: name}
}

// transports sets the transports: TCP, and QUIC in some profiles.
func transports(h *hostconfig.Config, c *Config, settings profileSettings) error {
	h.Muxers = []upgrader.StreamMuxer{{ID: yamux.ID, Muxer: yamux.DefaultTransport}}
	if len(c.Transport) > 0 {
		err := h.Apply(c.Transport...)
		if h.SecurityTransports == nil {
			h.SecurityTransports = []hostconfig.Security{{ID: libp2ptls.ID, Constructor: libp2ptls.New}, {ID: noise.ID, Constructor: noise.New}}
		}
		return err
	}
	h.SecurityTransports = []hostconfig.Security{{ID: noise.ID, Constructor: newNoise}, {ID: libp2ptls.ID, Constructor: newTLS}}
	provide := func(constructor any) {
		h.Transports = append(h.Transports, fx.Provide(
			fx.Annotate(constructor, fx.As(new(transport.Transport)), fx.ResultTags(`group:"transport"`))))
	}
	provide(func(up transport.Upgrader, limits network.ResourceManager, shared *tcpreuse.ConnMgr) (*dial.TCP, error) {
		var options []tcp.Option
		if !settings.open { // where NAT hole punching over TCP needs dials from the listening port
			// Elsewhere port reuse is harmful: a second daemon on the same port would start without an error and
			// receive half of the connections.
			options = append(options, tcp.DisableReuseport())
		}
		below, err := tcp.NewTCPTransport(up, limits, shared, options...)
		return dial.NewTCP(below), err
	})
	if settings.quic {
		provide(quic.NewTransport)
	}
	return nil
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
	if len(wanted) > 0 || len(fallback) == 0 { // the latter is a leaf
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
