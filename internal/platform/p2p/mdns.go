package p2p

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/discovery/mdns"

	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	mdnsService = "_blackhole._udp"
	mdnsDials   = 8 // at once
	mdnsTimeout = 10 * time.Second
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

// startMDNS announces this peer and looks for others. Where multicast does not work,
// as in many containers, it returns Unavailable and the peer must rely on bootstrap peers.
func startMDNS(ctx context.Context, h host.Host, log *slog.Logger) (*mdnsPeers, error) {
	n := &mdnsPeers{host: h, log: log, slots: make(chan struct{}, mdnsDials)}
	n.ctx, n.stop = context.WithCancel(ctx)
	service := mdns.NewMdnsService(h, mdnsService, n)
	if err := service.Start(); err != nil {
		n.stop()
		return nil, fault.As("p2p.mdns", fault.Unavailable, err)
	}
	n.service = service
	return n, nil
}

// HandlePeerFound implements mdns.Notifee. It must not block, and is called again and
// again for the same peer: while mdnsDials dials are under way it does nothing.
func (n *mdnsPeers) HandlePeerFound(p peer.AddrInfo) {
	if p.ID == n.host.ID() || n.host.Network().Connectedness(p.ID) == network.Connected {
		return
	}
	select {
	case n.slots <- struct{}{}:
	default:
		return
	}
	n.work.Go(func() {
		defer func() { <-n.slots }()
		ctx, cancel := context.WithTimeout(n.ctx, mdnsTimeout)
		defer cancel()
		if err := n.host.Connect(ctx, p); err != nil {
			n.log.Debug("cannot connect to a neighbour", "peer", p.ID, "err", err)
		}
	})
}

func (n *mdnsPeers) close() {
	n.stop()
	if err := n.service.Close(); err != nil { // waits for its goroutines, so that none finds a peer any more
		n.log.Debug("closing multicast DNS", "err", err)
	}
	n.work.Wait()
}
