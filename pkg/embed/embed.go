// Package embed runs the discovery plane of a peer inside a program that has a libp2p host and a Kademlia DHT of its own. The program's
// peer then offers, keeps and finds services as a daemon does. Leases, locks and instances need a daemon: see package client.
//
// The order of the steps matters: the host must have no connection before New.
//
//	h, err := libp2p.New(libp2p.Identity(key), libp2p.NoListenAddrs, libp2p.ProtocolVersion(embed.Version("lan")))
//	d, err := dht.New(h, embed.DHTOptions("lan")...)
//	p, err := embed.New(ctx, h, d, embed.Settings{Network: "lan", Dir: "offers"})
//	err = h.Network().Listen(addresses...)
//	err = h.Connect(ctx, seed)
//	err = p.Joined(ctx)
package embed

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	record "github.com/libp2p/go-libp2p-record"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/protocol"

	engine "github.com/blackhole/blackhole/internal/discovery"
	"github.com/blackhole/blackhole/internal/platform/p2p"
	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/query"
)

// Settings of a Peer. Network and Dir are required.
type Settings struct {
	// Network is the name of the network, as its daemons show it in "status". A closed network needs its key in the host too:
	// libp2p.PrivateNetwork.
	Network string
	// Profile says what kind of network it is: "dev" (one machine), "lan" or "public". Empty: "lan".
	Profile string
	// Dir is a folder of this peer alone. It keeps the offers and their versions over a restart.
	Dir string
	// First: this peer begins a new network. Otherwise an empty routing table means that the network cannot be reached, and answers
	// fail or are not complete.
	First bool
	// TTL is the lifetime of a record without a renewal, Refresh the time between renewals. Zero: 24 and 6 hours.
	TTL, Refresh time.Duration
	Logger       *slog.Logger // nil: silent
}

// Peer offers and finds services. It is safe for concurrent use.
type Peer struct {
	discovery.Registrar
	discovery.Finder
	service *engine.Service
	plane   *engine.Plane
	net     *p2p.Attached
}

// Version is the protocol version by which a host names its network in identify. Daemons part from hosts that name another network.
func Version(name string) string { return network.Name(name).Version() }

// DHTOptions are the options of the DHT of a network. The program may add its own ones.
func DHTOptions(name string) []dht.Option {
	return []dht.Option{
		dht.ProtocolPrefix(protocol.ID(network.Name(name).Prefix())),
		dht.DisableProviders(),
		dht.Validator(record.NamespacedValidator{}), // the peers of the coordination group keep their values at daemons
	}
}

// New starts the discovery plane on a host without a connection and on its DHT. The host's key must be Ed25519: it signs the offers.
// The caller closes the Peer before the DHT and the host. ctx bounds the construction only.
//
// Errors: Invalid with the field "network", "profile", "dir", "host" or "dht"; Unavailable if Dir is in use.
func New(ctx context.Context, h host.Host, d *dht.IpfsDHT, s Settings) (*Peer, error) {
	const op = "embed.New"
	s.Profile = cmp.Or(s.Profile, string(p2p.LAN))
	profile, err := p2p.ParseProfile(s.Profile)
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	n := network.Name(s.Network)
	if err := n.Validate(); err != nil {
		return nil, fault.Wrap(op, fault.In("network", err))
	}
	key := h.Peerstore().PrivKey(h.ID())
	switch {
	case s.Dir == "":
		return nil, fault.Invalidf("dir", nil, "is required")
	case key == nil || key.Type() != crypto.Ed25519:
		return nil, fault.Invalidf("host", h.ID().String(), "must have an Ed25519 key")
	case len(h.Network().Conns()) > 0:
		return nil, fault.Invalidf("host", h.ID().String(), "has connections: call New before the host listens or dials")
	}
	plane, err := engine.New(engine.Config{
		Network: n, Dir: s.Dir, Key: key, TTL: s.TTL, Refresh: s.Refresh, Logger: s.Logger,
		Loopback: profile != p2p.Public, OneMachine: profile == p2p.Dev, Closed: profile != p2p.Public, Settings: engine.Settings{Defaults: query.Defaults{Claims: query.ClaimsCheck}},
	})
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	net, err := p2p.Attach(ctx, h, d, plane.Network(p2p.Config{Profile: profile, Network: n}), s.First)
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	service, err := plane.Start(net)
	if err != nil {
		err = errors.Join(err, plane.Close())
		net.Close()
		return nil, fault.Wrap(op, err)
	}
	return &Peer{Registrar: service, Finder: service, service: service, plane: plane, net: net}, nil
}

// Joined waits until the routing table of the DHT has another peer of the network. Error: ctx's.
func (p *Peer) Joined(ctx context.Context) error {
	for {
		changed := p.net.Routing().Changed()
		if p.net.Routing().Size() > 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fault.Wrap("embed.Joined", ctx.Err())
		}
	}
}

// Close tells other peers within 3 seconds that the offers of this peer stop, and ends the parts that New started. The offers in Dir
// come back with the next New.
func (p *Peer) Close() error {
	p.service.Leave(context.Background())
	err := p.plane.Close()
	p.net.Close()
	return fault.Wrap("embed.Close", err)
}
