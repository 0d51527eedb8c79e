package p2p

import (
	"context"
	"log/slog"
	"sync"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/discovery/mdns"

	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	mdnsService = "_blackhole._udp"
	mdnsDials   = 8 // concurrent
)

// mdnsPeers connects to the peers that multicast DNS finds on the local network.
type mdnsPeers struct {
	host    host.Host
	log     *slog.Logger
	ctx     context.Context // ends with close
	stop    context.CancelFunc
	service interface{ Close() error }
	slots   chan struct{} // of dials
	work    sync.WaitGroup
}

// startMDNS announces this peer on the local network and searches for others. It returns Unavailable without
// working multicast, as in many containers; the peer then depends on its bootstrap peers.
func startMDNS(ctx context.Context, h host.Host, log *slog.Logger) (*mdnsPeers, error) {
	m := &mdnsPeers{host: h, log: log, slots: make(chan struct{}, mdnsDials)}
	m.ctx, m.stop = context.WithCancel(ctx)
	service := mdns.NewMdnsService(h, mdnsService, m)
	if err := service.Start(); err != nil {
		m.stop()
		return nil, fault.As("p2p.mdns", fault.Unavailable, err)
	}
	m.service = service
	return m, nil
}

// HandlePeerFound implements mdns.Notifee. It must not block. mDNS repeats its finds, so a find without a free
// slot is ignored.
func (m *mdnsPeers) HandlePeerFound(p peer.AddrInfo) {
	if p.ID == m.host.ID() || m.host.Network().Connectedness(p.ID) == network.Connected {
		return
	}
	select {
	case m.slots <- struct{}{}:
	default:
		return
	}
	m.work.Go(func() {
		defer func() { <-m.slots }()
		dialPeer(m.ctx, m.host, p, m.log)
	})
}

func (m *mdnsPeers) close() {
	m.stop()
	if err := m.service.Close(); err != nil { // waits for its goroutines, so HandlePeerFound is not called later
		m.log.Debug("multicast DNS did not close cleanly", "err", err)
	}
	m.work.Wait()
}
