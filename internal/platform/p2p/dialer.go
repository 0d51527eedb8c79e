package p2p

import (
	"context"
	"errors"
	"time"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/routing"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
)

// errNoAddress is a peer whose addresses this peer could not ask for.
var errNoAddress = errors.New("no known address")

// errAddressUnknown is a peer whose addresses nobody knows.
var errAddressUnknown = errors.New("nobody knows the peer's address")

// dialer is the prober's view of the real network.
type dialer struct {
	host host.Host // without routing: the prober bounds its lookups itself
	dht  *dht.IpfsDHT
	low  int // connections below which the connection manager closes none

	unresponsive *unresponsivePeers
}

func (d *dialer) connected(id peer.ID) bool {
	return d.host.Network().Connectedness(id) != network.NotConnected
}

// watch wants every lost member of the routing table looked into, so that the dead leave
// the table at once and not at the next failed query. Where the connection manager trims,
// a loss means nothing, and redialing would undo its work.
func (d *dialer) watch(id peer.ID) bool {
	return len(d.host.Network().Peers()) < d.low && d.dht.RoutingTable().Find(id) != ""
}

func (d *dialer) gone(id peer.ID) { d.dht.RoutingTable().RemovePeer(id) }

func (d *dialer) alive(id peer.ID) { d.unresponsive.clear(id) }

func (d *dialer) check(ctx context.Context, p probe) outcome {
	ctx = network.WithAllowLimitedConn(ctx, "probe")
	if d.connected(p.id) && !p.fresh {
		return d.ping(network.WithNoDial(ctx, "probe"), p.id, false)
	}
	if err := d.dial(ctx, p); err != nil {
		return outcome{result: resultOf(err), dialed: true}
	}
	return d.ping(ctx, p.id, true)
}

// dial makes a connection that is new for sure, whatever the swarm remembers.
func (d *dialer) dial(ctx context.Context, p probe) error {
	net := d.host.Network()
	if p.fresh {
		_ = net.ClosePeer(p.id) // it did not answer: its error is no news
	}
	clearBackoff(net, p.id) // a refusal out of the backoff would be old evidence
	known := d.host.Peerstore().Addrs(p.id)
	if len(known) == 0 || p.search {
		found, err := d.find(ctx, p.id)
		if err != nil && len(known) == 0 {
			return err
		}
		known = append(known, found.Addrs...)
	}
	return d.host.Connect(ctx, peer.AddrInfo{ID: p.id, Addrs: known})
}

// find asks the network where a peer is, for at most half of the time that is left.
func (d *dialer) find(ctx context.Context, id peer.ID) (peer.AddrInfo, error) {
	if deadline, ok := ctx.Deadline(); ok {
		half, cancel := context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
		ctx = half
	}
	info, err := d.dht.FindPeer(ctx, id)
	// FindPeer gives up on a peer that it could not dial before it learned the address.
	heard := d.host.Peerstore().PeerInfo(id)
	switch {
	case errors.Is(err, routing.ErrNotFound) && len(heard.Addrs) > 0:
		return heard, nil
	case errors.Is(err, routing.ErrNotFound):
		return info, errAddressUnknown
	case err != nil:
		return info, errors.Join(errNoAddress, err)
	}
	return info, nil
}

// ping asks for one answer, over the connection just dialed or one that was there.
func (d *dialer) ping(ctx context.Context, id peer.ID, dialed bool) outcome {
	ctx, cancel := context.WithCancel(ctx) // ends the stream after one answer
	defer cancel()
	var r ping.Result
	select {
	case r = <-ping.Ping(ctx, d.host, id):
	case <-ctx.Done():
		r.Error = ctx.Err()
	}
	if r.Error != nil {
		return outcome{result: resultOf(r.Error), dialed: dialed, linked: dialed}
	}
	if r.RTT == 0 {
		return outcome{result: failed, dialed: dialed, linked: dialed} // closed without an answer
	}
	return outcome{result: answered, dialed: dialed, linked: dialed, roundTrip: r.RTT}
}

// markUnresponsive tells a peer's failure from this peer's own.
func resultOf(err error) result {
	switch {
	case errors.Is(err, errAddressUnknown):
		return addressUnknown
	case errors.Is(err, errNoAddress), errors.Is(err, network.ErrResourceLimitExceeded):
		return undecided
	default:
		return failed
	}
}

// clearBackoff makes the next dial a real one. After a failed dial the swarm answers from
// memory for at least 5 s.
func clearBackoff(n network.Network, id peer.ID) {
	if s, ok := n.(interface{ Backoff() *swarm.DialBackoff }); ok {
		s.Backoff().Clear(id)
	}
}
