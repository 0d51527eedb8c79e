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
	firstRetry  = 250 * time.Millisecond // a bootstrap peer may start a moment after us
	lastRetry   = 30 * time.Second
	joinTimeout = 10 * time.Second // of one attempt
	joinDials   = 8                // to known peers at once

	// A bootstrap peer that was reached is looked at again: often while the table is
	// small, so that the halves of a healed partition find each other, and seldom in a
	// large network, whose bootstrap peers could not hold everybody's connection.
	recheckSmall = 5 * time.Second
	recheckLarge = 10 * time.Minute
)

// bootstrapper gets this peer into its network and keeps it there.
type bootstrapper struct {
	host    host.Host
	dht     *dht.IpfsDHT
	routing *Routing
	log     *slog.Logger
	joined  chan struct{} // capacity 1: a bootstrap or known peer was connected
}

func newBootstrapper(h host.Host, d *dht.IpfsDHT, r *Routing, log *slog.Logger) *bootstrapper {
	return &bootstrapper{host: h, dht: d, routing: r, log: log, joined: make(chan struct{}, 1)}
}

// run works until ctx ends: all bootstrap peers at once for good, and each known peer once.
func (j *bootstrapper) run(ctx context.Context, bootstrap, known []peer.AddrInfo) {
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { j.fillTable(ctx) })
	for _, p := range bootstrap {
		work.Go(func() { j.stayConnected(ctx, p) })
	}
	slots := make(chan struct{}, joinDials)
	for _, p := range known {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		work.Go(func() {
			j.connect(ctx, p)
			<-slots
		})
	}
}

// stayConnected connects to a bootstrap peer, with growing pauses until it answers.
func (j *bootstrapper) stayConnected(ctx context.Context, p peer.AddrInfo) {
	retry := firstRetry
	for ctx.Err() == nil {
		pause := retry
		if j.connect(ctx, p) {
			retry, pause = firstRetry, recheckSmall
			if j.routing.Size() >= tableReplicas {
				pause = recheckLarge
			}
		} else {
			retry = min(2*retry, lastRetry)
		}
		sleep(ctx, pause)
	}
}

// connect reports whether there is a connection in the end.
func (j *bootstrapper) connect(ctx context.Context, p peer.AddrInfo) bool {
	if j.host.Network().Connectedness(p.ID) == network.Connected {
		j.routing.introduced()
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	clearBackoff(j.host.Network(), p.ID)
	if err := j.host.Connect(ctx, p); err != nil {
		j.log.Debug("cannot connect", "peer", p.ID, "err", err)
		return false
	}
	j.routing.introduced()
	select {
	case j.joined <- struct{}{}:
	default:
	}
	return true
}

// setResult fills the routing table after joining. One refresh is not enough: of two peers
// that join at the same moment each may ask the bootstrap peer before it knows the other.
func (j *bootstrapper) fillTable(ctx context.Context) {
	for {
		select {
		case <-j.joined:
		case <-ctx.Done():
			return
		}
		j.awaitEntry(ctx, joinTimeout)
		for pause := firstRetry; pause <= 8*time.Second && ctx.Err() == nil; pause *= 2 {
			select {
			case <-j.dht.RefreshRoutingTable(): // its error is an empty table
			case <-ctx.Done():
			}
			sleep(ctx, pause)
		}
	}
}

// awaitEntry waits until the routing table has an entry: it checks a peer before it takes it.
func (j *bootstrapper) awaitEntry(ctx context.Context, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		changed := j.routing.Changed()
		if j.routing.Size() > 0 {
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
