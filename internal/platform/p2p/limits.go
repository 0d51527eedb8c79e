package p2p

import (
	"net/netip"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/host/autonat"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	"github.com/libp2p/go-libp2p/p2p/protocol/holepunch"
	"github.com/libp2p/go-libp2p/p2p/protocol/identify"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	"github.com/libp2p/go-libp2p/x/rate"
)

// Limits bound the connections of a node.
type Limits struct {
	// Connections is the number above which this peer closes the least useful third, at least 24, about the need of a routing table. The hard limit
	// in each direction is four times that. Zero: the profile's.
	Connections int
	// PerAddress is the number of peers behind one IPv4 address or one IPv6 /56. A peer may open two connections
	// at once, TCP and QUIC, so twice as many connections are allowed, in both directions together. A /48 may have
	// eight times as many. Zero: the profile's.
	PerAddress int
	// OnRefusal is called for each refused incoming connection; nil: nobody is told.
	OnRefusal func(Refusal)
}

// apply replaces the profile's limits by the given ones.
func (l Limits) apply(to *profileSettings) {
	if l.Connections != 0 {
		to.low, to.high = l.Connections*2/3, l.Connections
	}
	if l.PerAddress != 0 {
		to.perAddress = l.PerAddress
	}
}

// Limits of each own protocol. libp2p's default, 64 inbound streams of one peer and protocol, is below the
// parallel queries of one busy consumer.
const (
	protocolStreams     = 4096
	protocolPeerStreams = 512
	protocolMemory      = 64 << 20
	protocolPeerMemory  = 16 << 20
)

// Peers behind one address. libp2p's default of 8 connections shuts out the ninth peer of an office or of a cluster
// behind one address.
const (
	publicPerAddress = 64
	sharedPerAddress = 1024 // where all peers may share one address

	addressPrefix, sitePrefix = 56, 48 // IPv6 prefixes that count as one address, and as one site
	addressesPerSite          = 8

	connectionsPerPeer = 2 // at most, while it dials
	burstFactor        = 4 // connections that a peer may open at once, with repetitions
	// rateShare is the number of connections that each peer behind an address may open again each second.
	rateShare = 1.0 / 8
)

// newResources returns libp2p's resource manager with the limits of the profile.
func newResources(c *Config, settings profileSettings) (network.ResourceManager, error) {
	limits := rcmgr.DefaultLimits
	services(&limits)
	for _, id := range c.Protocols {
		allow(&limits, id)
	}
	connections(&limits, settings)
	c.Reach.Relay.Allow(&limits)
	limits.PeerBaseLimit.StreamsInbound = 2 * protocolPeerStreams
	limits.PeerBaseLimit.StreamsOutbound = 2 * protocolPeerStreams
	limits.PeerBaseLimit.Streams = 4 * protocolPeerStreams

	options, err := resourceMetrics(c.Registerer)
	if err != nil {
		return nil, err
	}
	most := connectionsPerPeer * settings.perAddress
	manager, err := rcmgr.NewResourceManager(rcmgr.NewFixedLimiter(limits.AutoScale()), append(options,
		rcmgr.WithConnRateLimiters(&rate.Limiter{}), // zero value: no limit; resources has its own
		rcmgr.WithLimitPerSubnet(
			[]rcmgr.ConnLimitPerSubnet{{PrefixLength: 32, ConnCount: most}},
			[]rcmgr.ConnLimitPerSubnet{
				{PrefixLength: addressPrefix, ConnCount: most},
				{PrefixLength: sitePrefix, ConnCount: addressesPerSite * most},
			}))...)
	if err != nil {
		return nil, err
	}
	return &resources{ResourceManager: manager, rate: addressRate(settings), refusals: newRefusals(c.Logger, c.Limits.OnRefusal)}, nil
}

// addressRate limits new connections of one address. Without it, one host could keep this peer busy with
// handshakes. Profiles whose peers may share one address have no limit.
func addressRate(settings profileSettings) *rate.Limiter {
	if !settings.open {
		return &rate.Limiter{}
	}
	limit := func(bits, most int) rate.SubnetLimit {
		return rate.SubnetLimit{PrefixLength: bits, Limit: rate.Limit{RPS: rateShare * float64(most), Burst: burstFactor * most}}
	}
	most := settings.perAddress
	return &rate.Limiter{
		NetworkPrefixLimits: []rate.PrefixLimit{
			{Prefix: netip.MustParsePrefix("127.0.0.0/8")}, {Prefix: netip.MustParsePrefix("::1/128")},
		},
		SubnetRateLimiter: rate.SubnetLimiter{
			IPv4SubnetLimits: []rate.SubnetLimit{limit(32, most)},
			IPv6SubnetLimits: []rate.SubnetLimit{limit(addressPrefix, most), limit(sitePrefix, addressesPerSite*most)},
			GracePeriod:      refusalPause,
		},
	}
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

// services sets the limits of libp2p's own services, but relays, to its defaults. The function of libp2p that does so links
// all its transports.
func services(limits *rcmgr.ScalingLimitConfig) {
	const mib, unlimited = 1 << 20, 8 << 30
	base := func(in, out, both int, memory int64) rcmgr.BaseLimit {
		return rcmgr.BaseLimit{StreamsInbound: in, StreamsOutbound: out, Streams: both, Memory: memory}
	}
	for _, s := range []struct {
		name                       string
		protocols                  []protocol.ID
		all, grows                 rcmgr.BaseLimit
		peerService, peerProtocols rcmgr.BaseLimit
	}{
		{identify.ServiceName, []protocol.ID{identify.ID, identify.IDPush}, base(64, 64, 128, 4*mib), base(64, 64, 128, 4*mib), base(16, 16, 32, mib), base(16, 16, 32, unlimited)},
		{ping.ServiceName, []protocol.ID{ping.ID}, base(64, 64, 64, 4*mib), base(64, 64, 64, 4*mib), base(2, 3, 4, unlimited), base(2, 3, 4, unlimited)},
		{autonat.ServiceName, []protocol.ID{autonat.AutoNATProto}, base(64, 64, 64, 4*mib), base(4, 4, 4, 2*mib), base(2, 2, 2, mib), base(2, 2, 2, mib)},
		{holepunch.ServiceName, []protocol.ID{holepunch.Protocol}, base(32, 32, 64, 4*mib), base(8, 8, 16, 4*mib), base(2, 2, 2, mib), base(2, 2, 2, mib)},
	} {
		increase := rcmgr.BaseLimitIncrease{StreamsInbound: s.grows.StreamsInbound, StreamsOutbound: s.grows.StreamsOutbound, Streams: s.grows.Streams, Memory: s.grows.Memory}
		limits.AddServiceLimit(s.name, s.all, increase)
		limits.AddServicePeerLimit(s.name, s.peerService, rcmgr.BaseLimitIncrease{})
		for _, id := range s.protocols {
			limits.AddProtocolLimit(id, s.all, increase)
			limits.AddProtocolPeerLimit(id, s.peerProtocols, rcmgr.BaseLimitIncrease{})
		}
	}
}

// hardLimit is the hard limit of connections in each direction, in high water marks. Between mark and limit is
// the room for the dials of lookups in one grace period. At the limit, peers cannot reach each other.
const hardLimit = 4

// connections derives the hard limits from the connection manager's water marks, which trim only after the
// grace period. The handshakes of a whole network that joins at once are transient connections.
func connections(limits *rcmgr.ScalingLimitConfig, settings profileSettings) {
	hard := hardLimit * settings.high
	all := 2 * hard
	if settings.leaf {
		hard, all = leafConnections, leafConnections
	}
	system := &limits.SystemBaseLimit
	system.Conns, system.ConnsInbound, system.ConnsOutbound = all, hard, hard
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
