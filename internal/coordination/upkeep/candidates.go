package upkeep

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/blackhole/blackhole/internal/coordination/membership"
)

const (
	// Offering is the time between two offers of a peer to be a member, and Standby the one to a group that needs no member.
	Offering = 2 * time.Second
	Standby  = 30 * time.Second

	fresh      = 4 * Offering     // maximum age of a usable offer
	remembered = 2 * Standby      // offers with smaller gaps are one
	maxOffers  = 256              // remembered
	dialTime   = 5 * time.Second  // for one candidate
	maxDials   = 8                // at a time
	redial     = 30 * time.Second // after a failure
	dialAge    = 5 * time.Minute  // of a success until the next dial
)

// candidates holds the peers that offer to be members, and whether this peer can dial them.
type candidates struct {
	host     host.Host
	dial     func(context.Context, peer.ID) error // nil: all can be dialled
	withName func(id string) string

	mu   sync.Mutex
	seen map[peer.ID]candidate
}

type candidate struct {
	raftID    uint64
	since, at time.Time // first and last offer
	prefix    string    // of its address
	dialing   bool
	dialled   time.Time // end of the last dial; zero: none yet
	failed    error     // of the last dial
}

func (c *candidates) add(p peer.ID, raftID uint64) {
	prefix := prefixOf(c.host, p)
	c.mu.Lock()
	defer c.mu.Unlock()
	one, known := c.seen[p]
	switch {
	case !known && len(c.seen) >= maxOffers:
		return
	case !known || one.raftID != raftID || time.Since(one.at) > remembered:
		one = candidate{raftID: raftID, since: time.Now(), dialing: one.dialing}
	}
	one.at, one.prefix = time.Now(), cmp.Or(prefix, one.prefix)
	c.seen[p] = one
}

// fresh returns recent offers, those of the longest standing first, and forgets old ones.
func (c *candidates) fresh() []membership.Peer {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []peer.ID
	for p, o := range c.seen {
		switch age := time.Since(o.at); {
		case age > remembered && !o.dialing:
			delete(c.seen, p)
		case age <= fresh:
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b peer.ID) int {
		return cmp.Or(c.seen[a].since.Compare(c.seen[b].since), cmp.Compare(a.String(), b.String()))
	})
	var peers []membership.Peer
	for _, p := range all {
		peers = append(peers, membership.Peer{ID: c.seen[p].raftID, Name: p.String(), Prefix: c.seen[p].prefix})
	}
	return peers
}

// unreached says of the candidates that this peer has not reached, by raft id, why.
func (c *candidates) unreached() map[uint64]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	why := map[uint64]string{}
	for _, o := range c.seen {
		switch {
		case o.dialled.IsZero():
			why[o.raftID] = "the leader has not dialled it yet"
		case o.failed != nil:
			why[o.raftID] = fmt.Sprintf("the leader cannot connect to it: %v", o.failed)
		}
	}
	return why
}

// dialDue begins to dial the candidates that are due, and does not wait for them. start runs work in a goroutine, or returns false.
func (c *candidates) dialDue(ctx context.Context, start func(func()) bool, log *slog.Logger) {
	for _, id := range c.due() {
		if !start(func() {
			ctx, cancel := context.WithTimeout(ctx, dialTime)
			defer cancel()
			var err error
			if c.dial != nil {
				err = c.dial(ctx, id)
			}
			if c.done(id, err) {
				log.Warn("a peer offers itself as a member of the group, but this peer cannot connect to it: "+
					"let others connect to it, or make it a client with coordination.members none", "peer", c.withName(id.String()), "error", err)
			}
		}) {
			return // the plane ends
		}
	}
}

// due returns the candidates to dial now, and notes the dials.
func (c *candidates) due() (ids []peer.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	running := 0
	for _, o := range c.seen {
		if o.dialing {
			running++
		}
	}
	for p, o := range c.seen {
		wait := dialAge
		if o.failed != nil {
			wait = redial
		}
		if running == maxDials || o.dialing || time.Since(o.at) > fresh || !o.dialled.IsZero() && time.Since(o.dialled) < wait {
			continue
		}
		o.dialing = true
		c.seen[p] = o
		ids, running = append(ids, p), running+1
	}
	return ids
}

// done notes the result of a dial. It reports whether the candidate was not known to be out of reach.
func (c *candidates) done(p peer.ID, err error) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.seen[p]
	news = o.failed == nil && err != nil
	o.dialing, o.dialled, o.failed = false, time.Now(), err
	c.seen[p] = o
	return news
}

// Addresses with one prefix belong to one provider or site, as in libp2p's routing tables.
const (
	prefix4 = 16 // bits
	prefix6 = 32
)

// prefixOf returns the prefix of the address under which a peer is connected, or of this peer's own; empty if unknown.
func prefixOf(h host.Host, id peer.ID) string {
	var all []multiaddr.Multiaddr
	for _, c := range h.Network().ConnsToPeer(id) {
		if !c.Stat().Limited { // otherwise it is the relay's
			all = append(all, c.RemoteMultiaddr())
		}
	}
	if id == h.ID() {
		all = h.Addrs()
	}
	best := slices.IndexFunc(all, manet.IsPublicAddr)
	if best < 0 {
		best = slices.IndexFunc(all, func(a multiaddr.Multiaddr) bool { return !manet.IsIPLoopback(a) })
	}
	if len(all) == 0 {
		return ""
	}
	ip, err := manet.ToIP(all[max(best, 0)])
	switch four := ip.To4(); {
	case err != nil:
		return ""
	case four != nil:
		return fmt.Sprintf("%d.%d/%d", four[0], four[1], prefix4)
	}
	return fmt.Sprintf("%x/%d", []byte(ip[:prefix6/8]), prefix6)
}
