package p2p

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	kb "github.com/libp2p/go-libp2p-kbucket"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/platform/condition"
)

const (
	firstRetry  = 250 * time.Millisecond // a bootstrap peer may start a moment later than this one
	lastRetry   = 30 * time.Second
	dialTimeout = 10 * time.Second
	// refusalPatience is the pause between dials from which on a refusal is no coincidence of many peers that start
	// at once.
	refusalPatience = 2 * time.Second
	joinDials       = 8 // concurrent dials to peers of earlier runs

	// Connections to bootstrap peers are checked again: often while the table is small, so that the halves of
	// a healed partition meet, rarely in a large network, whose bootstrap peers cannot hold a connection for
	// each peer.
	recheckSmall = 5 * time.Second
	recheckLarge = 10 * time.Minute

	// freezeEvery is the time after which an entry of the routing table stays until its peer fails. While a peer
	// joins, kad-dht lets newcomers replace entries, and in full buckets the same few peers replace each other
	// for minutes. Keepers would take each of them for lost and returned.
	freezeEvery = 10 * time.Second
)

// bootstrapper connects this peer to its network and fills the routing table.
type bootstrapper struct {
	host       host.Host
	border     *border
	dht        *dht.IpfsDHT
	routing    *Routing
	conditions *condition.Set
	log        *slog.Logger
	joined     chan struct{} // capacity 1: a bootstrap peer or a peer of an earlier run was connected
}

func newBootstrapper(n *Node, c *Config) *bootstrapper {
	return &bootstrapper{
		host: n.host, border: n.border, dht: n.dht, routing: n.routing, conditions: c.Conditions, log: c.Logger,
		joined: make(chan struct{}, 1),
	}
}

// run stays connected to the bootstrap peers until ctx ends, and dials each peer of earlier runs once.
func (b *bootstrapper) run(ctx context.Context, bootstrap, known []peer.AddrInfo) {
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { b.fillTable(ctx) })
	work.Go(func() { freeze(ctx, b.dht.RoutingTable()) })
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
			_ = b.connect(ctx, p) // logged; this peer may have other ways
			<-slots
		})
	}
}

// stayConnected dials a bootstrap peer with growing pauses and checks the connection later.
func (b *bootstrapper) stayConnected(ctx context.Context, p peer.AddrInfo) {
	retry := firstRetry
	for ctx.Err() == nil {
		pause := retry
		err := b.connect(ctx, p)
		if err == nil {
			retry, pause = firstRetry, recheckSmall
			if b.routing.Size() >= tableReplicas {
				pause = recheckLarge
			}
		} else {
			if retry >= refusalPatience {
				b.refused(p, err)
			}
			if retry = min(2*retry, lastRetry); b.foreign(p, err) {
				retry, pause = lastRetry, lastRetry // nothing but a change of settings helps
			}
		}
		sleep(ctx, pause)
	}
}

// connect makes sure that the peer is connected.
func (b *bootstrapper) connect(ctx context.Context, p peer.AddrInfo) error {
	if b.host.Network().Connectedness(p.ID) == network.Connected {
		if err := b.border.check(p.ID); err != nil {
			return err
		}
		b.introduced()
		return nil
	}
	if err := dialPeer(ctx, b.host, p, b.log); err != nil {
		return err
	}
	if err := b.border.check(p.ID); err != nil { // the dial ended after identify
		return err
	}
	b.introduced()
	select {
	case b.joined <- struct{}{}:
	default:
	}
	return nil
}

// introduced records contact with the network.
func (b *bootstrapper) introduced() {
	b.routing.introduced()
	b.conditions.Clear(condition.AddressLimit)
	b.conditions.Clear(condition.OtherNetwork)
}

// foreign reports whether a bootstrap peer belongs to another network, and tells it unless this peer has joined its
// own by another one.
func (b *bootstrapper) foreign(p peer.AddrInfo, err error) bool {
	var other *otherNetwork
	if !errors.As(err, &other) {
		return false
	}
	if b.routing.Size() > 0 {
		b.conditions.Clear(condition.OtherNetwork)
		return true
	}
	b.conditions.Raise(condition.OtherNetwork,
		"bootstrap peer %s at %s belongs to the network %q, and this peer to %q: set network.name (--network %s), or name a bootstrap peer of %q",
		p.ID, p.Addrs[0], other.theirs, other.ours, other.theirs, other.ours)
	return true
}

// refused tells why this peer cannot join, if a bootstrap peer answered and refused the connection. The
// refusal names no limit.
func (b *bootstrapper) refused(p peer.AddrInfo, err error) {
	if b.routing.Size() > 0 || !noRoomError(err) {
		return
	}
	b.conditions.Raise(condition.AddressLimit,
		"bootstrap peer %s refuses connections: it is full, or too many peers share the address of this one (its setting connections.per_address), "+
			"or its network is closed (network.closed) and this peer lacks the setting or the key; "+
			"this peer tries again every %s; add further bootstrap peers", p.ID, lastRetry)
}

// dialPeer connects to a peer within dialTimeout.
func dialPeer(ctx context.Context, h host.Host, p peer.AddrInfo, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	clearBackoff(h.Network(), p.ID)
	if err := h.Connect(ctx, p); err != nil {
		log.Debug("cannot connect to peer", "peer", p.ID, "err", err)
		return err
	}
	return nil
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

// freeze keeps newcomers from replacing entries of a routing table, until ctx ends.
func freeze(ctx context.Context, table *kb.RoutingTable) {
	for ctx.Err() == nil {
		table.MarkAllPeersIrreplaceable()
		sleep(ctx, freezeEvery)
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
