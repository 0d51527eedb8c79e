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
	"github.com/blackhole/blackhole/pkg/records"
)

var (
	errNoAddress      = errors.New("no known address")               // the lookup itself failed
	errAddressUnknown = errors.New("address unknown to the network") // the lookup succeeded without a result
)

// dialer is the prober's real libp2p.
type dialer struct {
	host host.Host // without routing: dial bounds its own lookups
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

// ping waits for one answer over the open connection.
func (d *dialer) ping(ctx context.Context, id peer.ID) Outcome {
	return d.exchange(libp2p.WithNoDial(libp2p.WithAllowLimitedConn(ctx, "probe"), "probe"), id, false)
}

// dial opens a new connection, regardless of the swarm's cached state, pings over it, and closes it.
func (d *dialer) dial(ctx context.Context, id peer.ID, fresh, search bool) Outcome {
	ctx = libp2p.WithAllowLimitedConn(ctx, "probe")
	if fresh {
		_ = d.host.Network().ClosePeer(id) // an error adds nothing: the peer did not answer
	}
	began := time.Now()
	known := d.host.Peerstore().Addrs(id)
	if len(known) == 0 || search {
		found, err := d.find(ctx, id)
		if err != nil && len(known) == 0 {
			return Outcome{Unknown: errors.Is(err, errAddressUnknown), Dialed: true}
		}
		known = append(known, found.Addrs...)
	}
	if err := dial.Peer(ctx, d.host, peer.AddrInfo{ID: id, Addrs: known}); err != nil { // after the lookup, which may dial the peer
		if dial.Everywhere(err) {
			return Outcome{State: records.Unreachable, Refused: true, Dialed: true}
		}
		return Outcome{State: d.conclude(id, dial.Interpret(err)), Dialed: true}
	}
	defer d.release(id, began)
	return d.exchange(libp2p.WithNoDial(ctx, "probe"), id, true)
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

// exchange waits for one answer over the current connection. dialed: this check opened the connection.
func (d *dialer) exchange(ctx context.Context, id peer.ID, dialed bool) Outcome {
	ctx, cancel := context.WithCancel(ctx) // ends the stream after one answer
	defer cancel()
	var r ping.Result
	select {
	case r = <-ping.Ping(ctx, d.host, id):
	case <-ctx.Done():
		r.Error = ctx.Err()
	}
	o := Outcome{State: records.Reachable, RoundTrip: r.RTT, Dialed: dialed}
	switch {
	case r.Error != nil:
		o.State = d.resultOfPing(id, r.Error, dialed)
	case r.RTT == 0: // closed without an answer
		o.State = records.Unreachable
	}
	return o
}

// conclude converts evidence to the result of a check. Silence says nothing without any other connection: this peer's
// own network may be down.
func (d *dialer) conclude(id peer.ID, e dial.Evidence) records.Reachability {
	others := slices.ContainsFunc(d.host.Network().Peers(), func(p peer.ID) bool { return p != id })
	switch {
	case e == dial.Refusal:
		return records.Busy
	case e == dial.Local, e == dial.Silence && !others:
		return ""
	}
	return records.Unreachable
}

// resultOfPing interprets a failed ping. The peer authenticated itself during a successful dial, so after one
// only silence speaks against it.
func (d *dialer) resultOfPing(id peer.ID, err error, dialed bool) records.Reachability {
	var unsupported multistream.ErrNotSupported[protocol.ID]
	e := dial.Interpret(err)
	switch {
	case errors.As(err, &unsupported):
		return records.Reachable
	case e == dial.Local && !errors.Is(err, libp2p.ErrNoConn):
		return ""
	case dialed && e != dial.Silence, e == dial.Refusal:
		return records.Busy
	case !dialed:
		return records.Unreachable // a new connection decides
	}
	return d.conclude(id, e)
}
