package join

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/discovery/mdns"
	"github.com/multiformats/go-multiaddr"

	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/internal/platform/p2p/address"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	mdnsDials = 8 // concurrent

	// In an open network this peer connects to a few neighbours. It knows the addresses of the others, which
	// suffices to reach them on demand: a full mesh of an office costs each peer a connection with each.
	maxNeighbours  = 8
	neighbourTTL   = time.Hour
	neighbourBound = 256 // known addresses
	// neighbourTag keeps these connections when the connection manager trims, because a dial by way of the
	// Internet may fail.
	neighbourTag, neighbourWeight = "neighbour", 10
)

// MDNS connects to the peers that multicast DNS finds on the local network.
type MDNS struct {
	host    host.Host
	log     *slog.Logger
	ctx     context.Context // ends with close
	stop    context.CancelFunc
	service interface{ Close() error }
	slots   chan struct{} // of dials
	work    sync.WaitGroup
	open    *neighbours // nil: each found peer is connected
}

// neighbours are the found peers of an open network.
type neighbours struct {
	// onLink returns the networks of this machine's devices. A stranger in the local network must not direct dials
	// into others.
	onLink func() []netip.Prefix

	mu    sync.Mutex
	known *simplelru.LRU[peer.ID, struct{}] // with stored addresses; guarded by mu
}

func newNeighbours(h host.Host, onLink func() []netip.Prefix) *neighbours {
	known := bounded.Map(neighbourBound, func(id peer.ID, _ struct{}) {
		if h.Network().Connectedness(id) != network.Connected {
			h.Peerstore().ClearAddrs(id)
		}
	})
	return &neighbours{onLink: onLink, known: known}
}

// StartMDNS announces this peer on the local network under the name of a service, and searches for others. In an open network
// it returns nil for a machine without a private network, where no neighbour may be. It returns Unavailable without
// working multicast, as in many containers; the peer then depends on its bootstrap peers.
func StartMDNS(ctx context.Context, h host.Host, service string, open bool, log *slog.Logger) (*MDNS, error) {
	m := &MDNS{host: h, log: log, slots: make(chan struct{}, mdnsDials)}
	if open && !slices.ContainsFunc(localNetworks(), private) {
		return nil, nil
	}
	if open {
		m.open = newNeighbours(h, localNetworks)
	}
	m.ctx, m.stop = context.WithCancel(ctx)
	multicast := mdns.NewMdnsService(h, service, m)
	if err := multicast.Start(); err != nil {
		m.stop()
		return nil, fault.As("join.StartMDNS", fault.Unavailable, err)
	}
	m.service = multicast
	return m, nil
}

// HandlePeerFound implements mdns.Notifee. It must not block. mDNS repeats its finds, so a find without a free
// slot is ignored.
func (m *MDNS) HandlePeerFound(p peer.AddrInfo) {
	if p.ID == m.host.ID() || m.host.Network().Connectedness(p.ID) == network.Connected {
		return
	}
	if m.open != nil && !m.open.admit(m.host, &p) {
		return
	}
	select {
	case m.slots <- struct{}{}:
	default:
		return
	}
	m.work.Go(func() {
		defer func() { <-m.slots }()
		err := dialPeer(m.ctx, m.host, p, m.log) // logs a failure; mDNS repeats the find
		if err == nil && m.open != nil {
			m.host.ConnManager().TagPeer(p.ID, neighbourTag, neighbourWeight)
		}
	})
}

// admit stores the addresses of a neighbour on this machine's networks, removes all others from p, and reports
// whether to connect now.
func (n *neighbours) admit(h host.Host, p *peer.AddrInfo) bool {
	p.Addrs = within(n.onLink(), p.Addrs)
	if len(p.Addrs) == 0 {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known.Add(p.ID, struct{}{})
	h.Peerstore().AddAddrs(p.ID, p.Addrs, neighbourTTL)
	return n.connected(h) < maxNeighbours
}

func (n *neighbours) connected(h host.Host) int {
	count := 0
	for _, id := range h.Network().Peers() {
		if info := h.ConnManager().GetTagInfo(id); info != nil && info.Tags[neighbourTag] > 0 {
			count++
		}
	}
	return count
}

// Close ends the search and its dials.
func (m *MDNS) Close() {
	m.stop()
	if err := m.service.Close(); err != nil { // waits for its goroutines, so HandlePeerFound is not called later
		m.log.Debug("multicast DNS did not close cleanly", "err", err)
	}
	m.work.Wait()
}

// within returns the addresses in one of the networks.
func within(networks []netip.Prefix, addrs []multiaddr.Multiaddr) []multiaddr.Multiaddr {
	return multiaddr.FilterAddrs(addrs, func(a multiaddr.Multiaddr) bool {
		return slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(address.IP(a)) })
	})
}

// localNetworks returns the networks of this machine's devices, without loopback.
func localNetworks() []netip.Prefix {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var out []netip.Prefix
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && !p.Addr().IsLoopback() && !p.IsSingleIP() {
			out = append(out, p.Masked())
		}
	}
	return out
}

// private reports whether neighbours may exist in a network.
func private(n netip.Prefix) bool { return n.Addr().IsPrivate() }
