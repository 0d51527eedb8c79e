package p2p

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/core/routing"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/protocol/identify"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	"github.com/multiformats/go-multistream"
)

var (
	errNoAddress      = errors.New("no known address")               // the lookup itself failed
	errAddressUnknown = errors.New("address unknown to the network") // the lookup succeeded without a result
)

// dialer is the prober's real network.
type dialer struct {
	host host.Host // without routing: check bounds its own lookups
	dht  *dht.IpfsDHT
	low  int // the connection manager never trims below this number of connections
}

func (d *dialer) connected(id peer.ID) bool {
	return d.host.Network().Connectedness(id) != network.NotConnected
}

// watch selects members of the routing table, so that dead peers leave the table before the next query fails.
// Where the connection manager trims, a lost connection is normal and a new dial would undo the trim.
func (d *dialer) watch(id peer.ID) bool {
	return len(d.host.Network().Peers()) < d.low && d.dht.RoutingTable().Find(id) != ""
}

func (d *dialer) gone(id peer.ID) { d.dht.RoutingTable().RemovePeer(id) }

func (d *dialer) check(ctx context.Context, p probe) outcome {
	ctx = network.WithAllowLimitedConn(ctx, "probe")
	if d.connected(p.id) && !p.fresh {
		return d.ping(network.WithNoDial(ctx, "probe"), p.id, false)
	}
	began := time.Now()
	if err := d.dial(ctx, p); err != nil {
		return outcome{result: d.resultOf(p.id, err), dialed: true}
	}
	defer d.release(p.id, began)
	return d.ping(network.WithNoDial(ctx, "probe"), p.id, true)
}

// release closes the connections to a peer that a probe opened, unless they have another use by now: a crowded
// peer needs its room.
func (d *dialer) release(id peer.ID, began time.Time) {
	if d.dht.RoutingTable().Find(id) != "" || d.host.ConnManager().IsProtected(id, "") {
		return
	}
	for _, c := range d.host.Network().ConnsToPeer(id) {
		if s := c.Stat(); s.Direction == network.DirOutbound && !s.Opened.Before(began) && !slices.ContainsFunc(c.GetStreams(), inUse) {
			_ = c.CloseWithError(network.ConnNoError) // an error means that it is closed
		}
	}
}

// inUse reports whether a stream serves more than the connection itself. GossipSub opens its streams with every
// peer.
func inUse(s network.Stream) bool {
	switch id := s.Protocol(); {
	case id == "", id == ping.ID, id == identify.ID, id == identify.IDPush:
		return false
	default:
		return !strings.HasPrefix(string(id), "/meshsub/") && !strings.HasPrefix(string(id), "/floodsub/")
	}
}

// dial opens a new connection, regardless of the swarm's cached state.
func (d *dialer) dial(ctx context.Context, p probe) error {
	net := d.host.Network()
	if p.fresh {
		_ = net.ClosePeer(p.id) // an error adds nothing: the peer did not answer
	}
	known := d.host.Peerstore().Addrs(p.id)
	if len(known) == 0 || p.search {
		found, err := d.find(ctx, p.id)
		if err != nil && len(known) == 0 {
			return err
		}
		known = append(known, found.Addrs...)
	}
	clearBackoff(net, p.id) // after the lookup, which may dial the peer
	err := d.host.Connect(ctx, peer.AddrInfo{ID: p.id, Addrs: known})
	if errors.Is(err, swarm.ErrDialBackoff) { // a concurrent dial failed after the clearing
		clearBackoff(net, p.id)
		err = d.host.Connect(ctx, peer.AddrInfo{ID: p.id, Addrs: known})
	}
	return err
}

// find looks up a peer's addresses, for at most half of the remaining time.
func (d *dialer) find(ctx context.Context, id peer.ID) (peer.AddrInfo, error) {
	if deadline, ok := ctx.Deadline(); ok {
		half, cancel := context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
		ctx = half
	}
	info, err := d.dht.FindPeer(ctx, id)
	// FindPeer returns ErrNotFound if an early dial failed, although it learned the address later.
	cached := d.host.Peerstore().PeerInfo(id)
	switch {
	case errors.Is(err, routing.ErrNotFound) && len(cached.Addrs) > 0:
		return cached, nil
	case errors.Is(err, routing.ErrNotFound):
		return info, errAddressUnknown
	case err != nil:
		return info, errors.Join(errNoAddress, err)
	}
	return info, nil
}

// ping waits for one answer over the current connection. dialed: this probe opened the connection.
func (d *dialer) ping(ctx context.Context, id peer.ID, dialed bool) outcome {
	ctx, cancel := context.WithCancel(ctx) // ends the stream after one answer
	defer cancel()
	var r ping.Result
	select {
	case r = <-ping.Ping(ctx, d.host, id):
	case <-ctx.Done():
		r.Error = ctx.Err()
	}
	o := outcome{result: answered, dialed: dialed, linked: dialed, roundTrip: r.RTT}
	switch {
	case r.Error != nil:
		o.result = d.resultOfPing(id, r.Error, dialed)
	case r.RTT == 0: // closed without an answer
		o.result = failed
	}
	return o
}

// resultOf interprets a failed dial.
func (d *dialer) resultOf(id peer.ID, err error) result {
	switch {
	case errors.Is(err, errAddressUnknown):
		return addressUnknown
	case errors.Is(err, errNoAddress):
		return undecided
	}
	return d.alone(id, interpret(err))
}

// alone withdraws the evidence of silence from a peer without any other connection: its own network may be down.
func (d *dialer) alone(id peer.ID, e evidence) result {
	others := slices.ContainsFunc(d.host.Network().Peers(), func(p peer.ID) bool { return p != id })
	return e.result(others)
}

// resultOfPing interprets a failed ping. The peer authenticated itself during a successful dial, so after one
// only silence speaks against it.
func (d *dialer) resultOfPing(id peer.ID, err error, dialed bool) result {
	var unsupported multistream.ErrNotSupported[protocol.ID]
	e := interpret(err)
	switch {
	case errors.As(err, &unsupported):
		return answered
	case e == local && !errors.Is(err, network.ErrNoConn):
		return undecided
	case dialed && e != silence, e == refusal:
		return busy
	case !dialed:
		return failed // the next probe dials
	}
	return d.alone(id, e)
}

// clearBackoff makes the next dial a real one. For at least 5 s after a failed dial, the swarm returns the
// cached failure.
func clearBackoff(n network.Network, id peer.ID) {
	if s, ok := n.(interface{ Backoff() *swarm.DialBackoff }); ok {
		s.Backoff().Clear(id)
	}
}
