package p2p

import (
	"context"
	"log/slog"
	"sync"
	"time"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
)

const (
	firstRetry  = 250 * time.Millisecond // a bootstrap peer may start a moment later than this one
	lastRetry   = 30 * time.Second
	dialTimeout = 10 * time.Second
	joinDials   = 8 // concurrent dials to peers of earlier runs

	// Connections to bootstrap peers are checked again: often while the table is small, so that the halves of
	// a healed partition meet, rarely in a large network, whose bootstrap peers cannot hold a connection for
	// each peer.
	recheckSmall = 5 * time.Second
	recheckLarge = 10 * time.Minute
)

// bootstrapper connects this peer to its network and fills the routing table.
type bootstrapper struct {
	host    host.Host
	dht     *dht.IpfsDHT
	routing *Routing
	log     *slog.Logger
	joined  chan struct{} // capacity 1: a bootstrap peer or a peer of an earlier run was connected
}

func newBootstrapper(h host.Host, d *dht.IpfsDHT, r *Routing, log *slog.Logger) *bootstrapper {
	return &bootstrapper{host: h, dht: d, routing: r, log: log, joined: make(chan struct{}, 1)}
}

// run stays connected to the bootstrap peers until ctx ends, and dials each peer of earlier runs once.
func (b *bootstrapper) run(ctx context.Context, bootstrap, known []peer.AddrInfo) {
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { b.fillTable(ctx) })
	for _, p := range bootstrap {
		work.Go(func() { b.stayConnected(ctx, p) })
	}
	slots := make(chan struct{}, joinDials)
	for _, p := range known {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		work.Go(func() {
			b.connect(ctx, p)
			<-slots
		})
	}
}

// stayConnected dials a bootstrap peer with growing pauses and checks the connection later.
func (b *bootstrapper) stayConnected(ctx context.Context, p peer.AddrInfo) {
	retry := firstRetry
	for ctx.Err() == nil {
		pause := retry
		if b.connect(ctx, p) {
			retry, pause = firstRetry, recheckSmall
			if b.routing.Size() >= tableReplicas {
				pause = recheckLarge
			}
		} else {
			retry = min(2*retry, lastRetry)
		}
		sleep(ctx, pause)
	}
}

// connect reports whether the peer is connected in the end.
func (b *bootstrapper) connect(ctx context.Context, p peer.AddrInfo) bool {
	if b.host.Network().Connectedness(p.ID) == network.Connected {
		b.routing.introduced()
		return true
	}
	if !dialPeer(ctx, b.host, p, b.log) {
		return false
	}
	b.routing.introduced()
	select {
	case b.joined <- struct{}{}:
	default:
	}
	return true
}

// dialPeer connects to a peer within dialTimeout and reports whether it succeeded.
func dialPeer(ctx context.Context, h host.Host, p peer.AddrInfo, log *slog.Logger) bool {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	clearBackoff(h.Network(), p.ID)
	if err := h.Connect(ctx, p); err != nil {
		log.Debug("cannot connect to peer", "peer", p.ID, "err", err)
		return false
	}
	return true
}

// fillTable refreshes the routing table after each join. One refresh is too few: two peers that join at the
// same moment may both query the bootstrap peer before it has the other one in its table.
func (b *bootstrapper) fillTable(ctx context.Context) {
	for {
		select {
		case <-b.joined:
		case <-ctx.Done():
			return
		}
		b.awaitEntry(ctx)
		for pause := firstRetry; pause <= 8*time.Second && ctx.Err() == nil; pause *= 2 {
			select {
			case <-b.dht.RefreshRoutingTable(): // fails on an empty table only
			case <-ctx.Done():
			}
			sleep(ctx, pause)
		}
	}
}

// awaitEntry waits for the first entry of the routing table, which checks a peer before it adds it.
func (b *bootstrapper) awaitEntry(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	for {
		changed := b.routing.Changed()
		if b.routing.Size() > 0 {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
