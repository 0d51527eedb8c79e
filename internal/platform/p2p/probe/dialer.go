package probe

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/host"
	libp2p "github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/core/routing"
	"github.com/libp2p/go-libp2p/p2p/protocol/identify"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	"github.com/multiformats/go-multistream"

	"github.com/blackhole/blackhole/internal/platform/p2p/dial"
)

var (
	errNoAddress      = errors.New("no known address")               // the lookup itself failed
	errAddressUnknown = errors.New("address unknown to the network") // the lookup succeeded without a result
)

// dialer is the prober's real libp2p.
type dialer struct {
	host host.Host // without routing: check bounds its own lookups
	dht  *dht.IpfsDHT
	low  int // the connection manager never trims below this number of connections
}

func (d *dialer) connected(id peer.ID) bool {
	return d.host.Network().Connectedness(id) != libp2p.NotConnected
}

// watch selects members of the routing table, so that dead peers leave the table before the next query fails.
// Where the connection manager trims, a lost connection is normal and a new dial would undo the trim.
func (d *dialer) watch(id peer.ID) bool {
	return len(d.host.Network().Peers()) < d.low && d.dht.RoutingTable().Find(id) != ""
}

func (d *dialer) gone(id peer.ID) { d.dht.RoutingTable().RemovePeer(id) }

func (d *dialer) check(ctx context.Context, p probe) outcome {
	ctx = libp2p.WithAllowLimitedConn(ctx, "probe")
	if d.connected(p.id) && !p.fresh {
		return d.ping(libp2p.WithNoDial(ctx, "probe"), p.id, false)
	}
	began := time.Now()
	if err := d.connect(ctx, p); err != nil {
		return outcome{result: d.resultOf(p.id, err), dialed: true}
	}
	defer d.release(p.id, began)
	return d.ping(libp2p.WithNoDial(ctx, "probe"), p.id, true)
}

// release closes the connections to a peer that a probe opened, unless they have another use by now: a crowded
// peer needs its room.
func (d *dialer) release(id peer.ID, began time.Time) {
	if d.dht.RoutingTable().Find(id) != "" || d.host.ConnManager().IsProtected(id, "") {
		return
	}
	for _, c := range d.host.Network().ConnsToPeer(id) {
		if s := c.Stat(); s.Direction == libp2p.DirOutbound && !s.Opened.Before(began) && !slices.ContainsFunc(c.GetStreams(), inUse) {
			_ = c.CloseWithError(libp2p.ConnNoError) // an error means that it is closed
		}
	}
}

// inUse reports whether a stream serves more than the connection itself. GossipSub opens its streams with every
// peer.
func inUse(s libp2p.Stream) bool {
	switch id := s.Protocol(); {
	case id == "", id == ping.ID, id == identify.ID, id == identify.IDPush:
		return false
	default:
		return !strings.HasPrefix(string(id), "/meshsub/") && !strings.HasPrefix(string(id), "/floodsub/")
	}
}

// connect opens a new connection, regardless of the swarm's cached state.
func (d *dialer) connect(ctx context.Context, p probe) error {
	if p.fresh {
		_ = d.host.Network().ClosePeer(p.id) // an error adds nothing: the peer did not answer
	}
	known := d.host.Peerstore().Addrs(p.id)
	if len(known) == 0 || p.search {
		found, err := d.find(ctx, p.id)
		if err != nil && len(known) == 0 {
			return err
		}
		known = append(known, found.Addrs...)
	}
	return dial.Peer(ctx, d.host, peer.AddrInfo{ID: p.id, Addrs: known}) // after the lookup, which may dial the peer
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
	if dial.Everywhere(err) {
		return refused
	}
	return d.conclude(id, dial.Interpret(err))
}

// conclude converts evidence to the result of a probe. Silence says nothing without any other connection: this peer's own
// network may be down.
func (d *dialer) conclude(id peer.ID, e dial.Evidence) result {
	others := slices.ContainsFunc(d.host.Network().Peers(), func(p peer.ID) bool { return p != id })
	switch {
	case e == dial.Refusal:
		return busy
	case e == dial.Local, e == dial.Silence && !others:
		return undecided
	}
	return failed
}

// resultOfPing interprets a failed ping. The peer authenticated itself during a successful dial, so after one
// only silence speaks against it.
func (d *dialer) resultOfPing(id peer.ID, err error, dialed bool) result {
	var unsupported multistream.ErrNotSupported[protocol.ID]
	e := dial.Interpret(err)
	switch {
	case errors.As(err, &unsupported):
		return answered
	case e == dial.Local && !errors.Is(err, libp2p.ErrNoConn):
		return undecided
	case dialed && e != dial.Silence, e == dial.Refusal:
		return busy
	case !dialed:
		return failed // the next probe dials
	}
	return d.conclude(id, e)
}
