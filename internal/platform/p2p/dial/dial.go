// Package dial connects to peers, and tells from a failure what it says about them.
package dial

import (
	"context"
	"errors"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/multiformats/go-multiaddr"

	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	reachAddresses = 8               // of one peer are dialled
	reachTime      = 2 * time.Second // for one address
)

// Peer connects to a peer, whatever the swarm remembers: for at least 5 s after a failed dial, it returns the cached failure.
func Peer(ctx context.Context, h host.Host, p peer.AddrInfo) error {
	clearBackoff(h.Network(), p.ID)
	err := h.Connect(ctx, p)
	if errors.Is(err, swarm.ErrDialBackoff) { // a concurrent dial failed after the clearing
		clearBackoff(h.Network(), p.ID)
		err = h.Connect(ctx, p)
	}
	return err
}

func clearBackoff(n network.Network, id peer.ID) {
	if s, ok := n.(interface{ Backoff() *swarm.DialBackoff }); ok {
		s.Backoff().Clear(id)
	}
}

// Reaches returns nil if this host can connect directly to another peer. A connection that only the other one opened proves
// nothing, so a new one is opened beside it, and closed at once. Relays do not count. Errors: Unavailable, Timeout, Canceled.
func Reaches(ctx context.Context, h host.Host, id peer.ID) error {
	const op = "dial.Reaches"
	for _, c := range h.Network().ConnsToPeer(id) {
		if s := c.Stat(); s.Direction == network.DirOutbound && !s.Limited {
			return nil
		}
	}
	dials, ok := h.Network().(interface {
		TransportForDialing(multiaddr.Multiaddr) transport.Transport
	})
	if !ok {
		return fault.New(op, fault.Internal, "the network has no transports")
	}
	failed := errors.New("it told no direct address")
	known := h.Peerstore().Addrs(id)
	for _, a := range known[:min(len(known), reachAddresses)] {
		t := dials.TransportForDialing(a)
		if t == nil || t.Proxy() { // a relay
			continue
		}
		if failed = knock(ctx, t, a, id); failed == nil {
			return nil
		}
	}
	if ctx.Err() != nil {
		return fault.Wrap(op, ctx.Err())
	}
	return fault.As(op, fault.Unavailable, failed)
}

// knock opens a connection and closes it. The handshake proves the peer's key.
func knock(ctx context.Context, t transport.Transport, a multiaddr.Multiaddr, id peer.ID) error {
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	c, err := t.Dial(ctx, a, id)
	if err != nil {
		return err
	}
	return c.Close()
}
