// Package join connects this peer to its network: by bootstrap peers, by addresses, by peers of earlier runs, and by neighbours that
// multicast DNS finds. It parts from the peers of other networks.
package join

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/pnet"
	"github.com/multiformats/go-multiaddr"

	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/p2p/dial"
	"github.com/blackhole/blackhole/internal/platform/p2p/routing"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
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
)

// Bootstrapper connects this peer to its network and fills the routing table.
type Bootstrapper struct {
	host       host.Host
	border     *Border
	routing    *routing.Routing
	conditions *condition.Set
	log        *slog.Logger
	joined     chan struct{} // capacity 1: a bootstrap peer or a peer of an earlier run was connected

	mu     sync.Mutex
	ways   int               // constant after Run
	failed map[string]string // how the last try of a way ended, by its address; guarded by mu
}

// NewBootstrapper returns a bootstrapper, which Run starts.
func NewBootstrapper(h host.Host, b *Border, r *routing.Routing, conditions *condition.Set, log *slog.Logger) *Bootstrapper {
	return &Bootstrapper{host: h, border: b, routing: r, conditions: conditions, log: log, joined: make(chan struct{}, 1)}
}

// Ways lead into the network.
type Ways struct {
	Bootstrap, Known []peer.AddrInfo       // Known: of earlier runs
	Doors            []multiaddr.Multiaddr // without an id
	Private          pnet.PSK              // of a closed network
}

// Run stays connected to the bootstrap peers and to those behind doors until ctx ends, and dials each peer of earlier runs once.
func (b *Bootstrapper) Run(ctx context.Context, w Ways) {
	bootstrap, known := w.Bootstrap, w.Known
	b.ways = len(w.Bootstrap) + len(w.Doors)
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { b.fillTable(ctx) })
	for _, door := range w.Doors {
		work.Go(func() { b.enter(ctx, door, w.Private) })
	}
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
func (b *Bootstrapper) stayConnected(ctx context.Context, p peer.AddrInfo) {
	retry := firstRetry
	for ctx.Err() == nil {
		rest := retry
		err := b.connect(ctx, p)
		b.tried(p.Addrs[0], err, retry >= refusalPatience)
		if err == nil {
			retry, rest = firstRetry, recheckSmall
			if b.routing.Size() >= routing.Replicas {
				rest = recheckLarge
			}
		} else {
			if retry >= refusalPatience {
				b.refused(p, err)
			}
			if retry = min(2*retry, lastRetry); b.foreign(p, err) {
				retry, rest = lastRetry, lastRetry // nothing but a change of settings helps
			}
		}
		pause.For(ctx, rest)
	}
}

// connect makes sure that the peer is connected.
func (b *Bootstrapper) connect(ctx context.Context, p peer.AddrInfo) error {
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
	pause.Wake(b.joined)
	return nil
}

// introduced records contact with the network.
func (b *Bootstrapper) introduced() {
	b.routing.Introduced()
	b.conditions.Clear(condition.AddressLimit)
	b.conditions.Clear(condition.OtherNetwork)
	b.conditions.Clear(condition.NoWayIn)
}

// placeOf is an address without the id of the peer, for a sentence.
func placeOf(at multiaddr.Multiaddr) string {
	if place, _ := peer.SplitAddr(at); place != nil {
		return place.String()
	}
	return at.String()
}

// tried notes how a try of a way into the network ended, and keeps the condition of a peer that no way leads in. Where a peer tells
// why it refuses this one, its own condition says it.
func (b *Bootstrapper) tried(at multiaddr.Multiaddr, err error, often bool) {
	var other *otherNetwork
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil || errors.As(err, &other) || dial.NoRoom(err) {
		delete(b.failed, at.String())
		return
	}
	if b.failed == nil {
		b.failed = map[string]string{}
	}
	b.failed[at.String()] = placeOf(at) + ": " + dial.Reason(err)
	if !often || len(b.failed) < b.ways || b.routing.Size() > 0 {
		return
	}
	list := slices.Sorted(maps.Values(b.failed))
	b.conditions.Raise(condition.NoWayIn, fault.Problem{
		What:   "no bootstrap peer was reached: " + strings.Join(list, "; "),
		Effect: "this peer is alone: it finds nobody, and nobody finds it",
		Remedy: "Correct the addresses of the setting bootstrap (--bootstrap), or join by a line of `blackholed invite`; this peer tries again every " + lastRetry.String(),
	})
}

// foreign reports whether a bootstrap peer belongs to another network, and tells it unless this peer has joined its
// own by another one.
func (b *Bootstrapper) foreign(p peer.AddrInfo, err error) bool {
	var other *otherNetwork
	if !errors.As(err, &other) {
		return false
	}
	if b.routing.Size() > 0 {
		b.conditions.Clear(condition.OtherNetwork)
		return true
	}
	b.conditions.Raise(condition.OtherNetwork, fault.Problem{
		What:   fmt.Sprintf("the bootstrap peer at %s belongs to the network %q, and this peer to %q", placeOf(p.Addrs[0]), other.theirs, other.ours),
		Effect: "this peer cannot join",
		Remedy: fmt.Sprintf("Set network.name (--network %s), or name a bootstrap peer of %q", other.theirs, other.ours),
	})
	return true
}

// refused tells why this peer cannot join, if a bootstrap peer answered and refused the connection. The
// refusal names no limit.
func (b *Bootstrapper) refused(p peer.AddrInfo, err error) {
	if b.routing.Size() > 0 || !dial.NoRoom(err) {
		return
	}
	b.conditions.Raise(condition.AddressLimit, fault.Problem{
		What: fmt.Sprintf("the bootstrap peer at %s refuses connections: it is full, or too many peers share the address of this one (its setting "+
			"connections.per_address), or its network is closed (network.closed) and this peer lacks the setting or the key", placeOf(p.Addrs[0])),
		Effect: "this peer cannot join, and tries again every " + lastRetry.String(),
		Remedy: "Add further bootstrap peers (--bootstrap), or join by a line of `blackholed invite`",
	})
}

// dialPeer connects to a peer within dialTimeout.
func dialPeer(ctx context.Context, h host.Host, p peer.AddrInfo, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if err := dial.Peer(ctx, h, p); err != nil {
		log.Debug("cannot connect to peer", "peer", p.ID, "err", err)
		return err
	}
	return nil
}

// fillTable refreshes the routing table after each join. One refresh is too few: two peers that join at the
// same moment may both query the bootstrap peer before it has the other one in its table.
func (b *Bootstrapper) fillTable(ctx context.Context) {
	for {
		select {
		case <-b.joined:
		case <-ctx.Done():
			return
		}
		b.awaitEntry(ctx)
		for rest := firstRetry; rest <= 8*time.Second && ctx.Err() == nil; rest *= 2 {
			select {
			case <-b.routing.Refresh(): // fails on an empty table only
			case <-ctx.Done():
			}
			pause.For(ctx, rest)
		}
	}
}

// awaitEntry waits for the first entry of the routing table, which checks a peer before it adds it.
func (b *Bootstrapper) awaitEntry(ctx context.Context) {
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
