package reach

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/host/autorelay"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	circuit "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	"github.com/libp2p/go-libp2p/x/rate"
	"github.com/multiformats/go-multiaddr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/blackhole/blackhole/internal/platform/p2p/address"
)

// RelayConfig bounds the service of a reachable peer as a relay for peers behind NAT. A zero field takes its
// default.
//
// A relayed connection carries the first packets of a hole punch. Where the NAT allows none, it carries
// everything, so its limits must fit requests to keepers, calls between members of a group, and their log.
type RelayConfig struct {
	Off bool // relay for nobody
	// Reservations is the number of peers behind NAT with an address at this relay; 256. ReservationsPerAddress
	// is the number of them behind one IP address, such as an office; 64.
	Reservations           int
	ReservationsPerAddress int
	// Circuits is the number of relayed connections; 512. CircuitsPerPeer is the number of them from or to one
	// peer; 32.
	Circuits        int
	CircuitsPerPeer int
	// CircuitBytes is the traffic of one relayed connection in each direction until its end; 32 MiB.
	CircuitBytes int64
	// CircuitTime is the lifetime of a relayed connection; 30 min. Its peers connect again.
	CircuitTime time.Duration
}

func (c RelayConfig) complete() RelayConfig {
	c.Reservations = cmp.Or(c.Reservations, 256)
	c.ReservationsPerAddress = cmp.Or(c.ReservationsPerAddress, 64)
	c.Circuits = cmp.Or(c.Circuits, 512)
	c.CircuitsPerPeer = cmp.Or(c.CircuitsPerPeer, 32)
	c.CircuitBytes = cmp.Or(c.CircuitBytes, 32<<20)
	c.CircuitTime = cmp.Or(c.CircuitTime, 30*time.Minute)
	return c
}

// circuitBuffer is the size of both buffers of a relayed connection. libp2p reads and writes through them.
const circuitBuffer = 4 << 10

// service is the relay of libp2p, which runs while this peer is publicly reachable.
func (c RelayConfig) service() []relay.Option {
	return []relay.Option{
		relay.WithResources(relay.Resources{
			Limit:                 &relay.RelayLimit{Duration: c.CircuitTime, Data: c.CircuitBytes},
			ReservationTTL:        time.Hour,
			MaxReservations:       c.Reservations,
			MaxReservationsPerIP:  c.ReservationsPerAddress,
			MaxReservationsPerASN: c.Reservations,
			MaxCircuits:           c.CircuitsPerPeer,
			BufferSize:            circuitBuffer,
		}),
		relay.WithACL(newRelayGate()),
	}
}

// Allow sets the limits of the relay service: libp2p's defaults are below or above the configured ones, depending
// on the memory of the machine.
func (c RelayConfig) Allow(limits *rcmgr.ScalingLimitConfig) {
	const requests = 64 // reservations under way
	total, each := c.Circuits+requests, c.CircuitsPerPeer+2
	all := rcmgr.BaseLimit{StreamsInbound: total, StreamsOutbound: total, Streams: 2 * total, Memory: 64 << 20}
	one := rcmgr.BaseLimit{StreamsInbound: each, StreamsOutbound: each, Streams: 2 * each, Memory: 8 << 20}
	limits.AddServiceLimit(relay.ServiceName, all, rcmgr.BaseLimitIncrease{})
	limits.AddServicePeerLimit(relay.ServiceName, one, rcmgr.BaseLimitIncrease{})
	for _, id := range []protocol.ID{circuit.ProtoIDv2Hop, circuit.ProtoIDv2Stop} {
		limits.AddProtocolLimit(id, all, rcmgr.BaseLimitIncrease{})
		limits.AddProtocolPeerLimit(id, one, rcmgr.BaseLimitIncrease{})
	}
}

// circuitStarts bounds the new relayed connections from one address: a peer may use its circuits up and open
// others. It serves 64 peers behind one address that start together.
const circuitStarts = 256

// relayGate refuses new circuits of addresses that open too many.
type relayGate struct{ starts rate.Limiter }

func newRelayGate() *relayGate {
	each := rate.Limit{RPS: 2, Burst: circuitStarts}
	return &relayGate{starts: rate.Limiter{SubnetRateLimiter: rate.SubnetLimiter{
		IPv4SubnetLimits: []rate.SubnetLimit{{PrefixLength: 32, Limit: each}},
		IPv6SubnetLimits: []rate.SubnetLimit{{PrefixLength: 56, Limit: each}},
		GracePeriod:      time.Minute,
	}}}
}

// AllowReserve implements relay.ACLFilter. The relay counts reservations itself.
func (g *relayGate) AllowReserve(peer.ID, multiaddr.Multiaddr) bool { return true }

// AllowConnect implements relay.ACLFilter.
func (g *relayGate) AllowConnect(_ peer.ID, from multiaddr.Multiaddr, _ peer.ID) bool {
	ip := address.IP(from)
	return ip.IsValid() && g.starts.Allow(ip)
}

const (
	// relayBoot is the time for the first candidates to appear. With relayChoice candidates, the wait ends.
	relayBoot   = 3 * time.Second
	relayChoice = 3
	// relays is the number of reservations of a peer behind NAT. One relay may end at any time.
	relays = 2
	// relaySearch is the time between two searches for candidates without enough of them.
	relaySearch = 10 * time.Second
	// relayBackoff is the time without requests to a relay that refused one.
	relayBackoff = 2 * time.Minute
)

// client makes a peer behind NAT reserve addresses at relays, and tells their answers.
func (s *relaySource) client(reg prometheus.Registerer, reserved func(error)) []autorelay.Option {
	if reg == nil {
		reg = prometheus.NewRegistry() // otherwise libp2p takes the global one
	}
	tracer := relayTracer{autorelay.NewMetricsTracer(autorelay.WithRegisterer(reg)), reserved}
	return []autorelay.Option{autorelay.WithPeerSource(s.candidates), autorelay.WithMetricsTracer(tracer),
		autorelay.WithBootDelay(relayBoot), autorelay.WithMinCandidates(relayChoice), autorelay.WithNumRelays(relays),
		autorelay.WithMinInterval(relaySearch), autorelay.WithBackoff(relayBackoff)}
}

// relayTracer passes on what libp2p counts.
type relayTracer struct {
	autorelay.MetricsTracer
	reserved func(error)
}

// ReservationRequestFinished implements autorelay.MetricsTracer.
func (t relayTracer) ReservationRequestFinished(again bool, err error) {
	t.MetricsTracer.ReservationRequestFinished(again, err)
	t.reserved(err)
}

// Table is the routing table of the DHT.
type Table interface {
	Changed() <-chan struct{} // closes with the next change
	Peers() []peer.AddrInfo
	// Speaks returns the known protocols of a peer.
	Speaks(peer.ID) ([]protocol.ID, error)
}

// relaySource offers servers of the DHT to AutoRelay. The host needs it before the DHT exists.
type relaySource struct {
	ready chan struct{} // closed by set
	table Table
}

func newRelaySource() *relaySource { return &relaySource{ready: make(chan struct{})} }

// set is called once.
func (s *relaySource) set(t Table) {
	s.table = t
	close(s.ready)
}

// candidates waits for the first server of the routing table. AutoRelay asks again after relaySearch.
func (s *relaySource) candidates(ctx context.Context, n int) <-chan peer.AddrInfo {
	out := make(chan peer.AddrInfo, max(n, 0))
	defer close(out)
	select {
	case <-s.ready:
	case <-ctx.Done():
		return out
	}
	for ctx.Err() == nil {
		changed := s.table.Changed()
		list := relaysAmong(s.table)
		for _, info := range list[:min(n, len(list))] {
			out <- info
		}
		if len(list) > 0 {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return out
}

// relaysAmong selects the peers with an address that are known to relay, or about which nothing is known yet.
func relaysAmong(t Table) []peer.AddrInfo {
	return slices.DeleteFunc(t.Peers(), func(p peer.AddrInfo) bool {
		all, err := t.Speaks(p.ID)
		return len(p.Addrs) == 0 || err != nil || len(all) > 0 && !slices.Contains(all, circuit.ProtoIDv2Hop)
	})
}
