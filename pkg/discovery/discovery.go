// Package discovery runs the discovery plane of a peer inside a program: the program's peer offers, keeps and finds
// services as a daemon does. Leases, locks and instances need a daemon: see package client.
//
//	plane, err := discovery.Start(ctx, discovery.Settings{Network: "lan", Dir: "offers", Peers: []string{seed}})
//	receipt, err := plane.Register(ctx, offer)
//	answer, err := plane.Query(ctx, query.Query{Type: "compute"})
//
// A program with a libp2p host of its own names it in Settings.Host.
package discovery

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	record "github.com/libp2p/go-libp2p-record"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	engine "github.com/blackhole/blackhole/internal/discovery"
	"github.com/blackhole/blackhole/internal/platform/identity"
	"github.com/blackhole/blackhole/internal/platform/p2p"
	"github.com/blackhole/blackhole/internal/platform/p2p/address"
	"github.com/blackhole/blackhole/internal/platform/p2p/routing"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// Settings of a Plane. Dir is required.
type Settings struct {
	// Network is the name of the network, as its daemons show it in "status". Empty: the one of the profile.
	Network string
	// Profile says what kind of network it is: "dev" (one machine), "lan" or "public". Empty: "lan".
	Profile string
	// Dir is a folder of this peer alone. It keeps the offers and their versions over a restart, and the peer's own
	// key if the program has no host.
	Dir string
	// Peers lead into the network: multiaddrs with /p2p/ID. They may start later. Empty: this peer begins a new
	// network, or others find it.
	Peers []string

	// Host is the program's own host, without a connection and with an Ed25519 key: it signs the offers. The
	// program makes it with libp2p.ProtocolVersion(Version(name)), and with libp2p.PrivateNetwork for a closed
	// network. Nil: Start makes one.
	Host host.Host
	// DHT is the program's own DHT on Host, made with DHTOptions. Nil: Start makes one.
	DHT *dht.IpfsDHT
	// Listen are the multiaddrs to listen on. Empty: with a Host none more, otherwise those of the profile.
	Listen []string
	// NetworkKey is the key of a closed network, as the file of the key has it, for a host that Start makes. Empty:
	// an open network.
	NetworkKey string

	// TTL is the lifetime of a record without a renewal, Refresh the time between renewals. Zero: 24 and 6 hours.
	TTL, Refresh time.Duration
	Logger       *slog.Logger // nil: silent
}

// Version is the protocol version by which a host names its network in identify. Daemons part from hosts that name
// another network.
func Version(name string) string { return network.Name(name).Version() }

// DHTOptions are the options of the DHT of a network. The program may add its own ones. A DHT of the program does not tell
// sellers to other programs of libp2p: one that Start makes does.
func DHTOptions(name string) []dht.Option { return dhtOptions(name, nil) }

func dhtOptions(name string, sellers routing.Providers) []dht.Option {
	return append(sellers.Options(),
		dht.ProtocolPrefix(protocol.ID(network.Name(name).Prefix())),
		// The peers of the coordination group keep their values at daemons.
		dht.Validator(record.NamespacedValidator{}))
}

// Plane offers and finds services. It is safe for concurrent use.
type Plane struct {
	service *engine.Service
	net     engine.Node // the peer in its network: on a host of Start, or on the program's
	cancel  context.CancelFunc
	work    sync.WaitGroup
	undo    []func() error // stops what Start began, in order of its begin
}

// Start runs the discovery plane, until Close. It returns as soon as the peer listens; Joined waits for another
// peer. ctx bounds the start only.
//
// Errors: Invalid with the field "network", "profile", "dir", "peers", "host", "dht", "listen" or "network_key";
// Unavailable if Dir is in use or an address does not open.
func Start(ctx context.Context, s Settings) (*Plane, error) {
	const op = "discovery.Start"
	s.Profile, s.Logger = cmp.Or(s.Profile, string(p2p.LAN)), cmp.Or(s.Logger, slog.New(slog.DiscardHandler))
	profile, err := p2p.ParseProfile(s.Profile)
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	name := cmp.Or(network.Name(s.Network), network.Default(s.Profile))
	if err := name.Validate(); err != nil {
		return nil, fault.Wrap(op, fault.In("network", err))
	}
	peers, err := address.ParsePeers("peers", s.Peers)
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	if s.Dir == "" {
		return nil, fault.Wrap(op, fault.Invalidf("dir", nil, "is required"))
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &Plane{cancel: cancel}
	c := p2p.Config{Profile: profile, Network: name, Bootstrap: peers, Logger: s.Logger}
	if err := p.start(ctx, life, s, c); err != nil {
		return nil, fault.Wrap(op, errors.Join(err, p.stop()))
	}
	return p, nil
}

func (p *Plane) start(ctx, life context.Context, s Settings, c p2p.Config) error {
	key, err := s.key()
	if err != nil {
		return err
	}
	plane, err := engine.New(engine.Config{
		Network: c.Network, Dir: s.Dir, Key: key, TTL: s.TTL, Refresh: s.Refresh, Logger: s.Logger,
		Loopback: c.Profile != p2p.Public, OneMachine: c.Profile == p2p.Dev, Closed: c.Profile != p2p.Public,
		Settings: engine.Settings{Defaults: queries.Defaults{Claims: query.ClaimsCheck}},
	})
	if err != nil {
		return err
	}
	c.Identity = key
	c = plane.Network(c)
	if s.Host == nil {
		err = p.own(ctx, s, c)
	} else {
		err = p.attach(ctx, life, s, c)
	}
	if err != nil {
		return err
	}
	p.undo = append(p.undo, plane.Close)
	if p.service, err = plane.Start(p.net); err != nil {
		return err
	}
	if s.Host == nil {
		return nil
	}
	listen, err := address.Parse("listen", s.Listen)
	if err == nil && len(listen) > 0 {
		err = fault.As("discovery.Start", fault.Unavailable, s.Host.Network().Listen(listen...))
	}
	if err == nil && len(c.Bootstrap) > 0 {
		p.work.Go(func() { p.enter(life, s.Host, c.Bootstrap) })
	}
	return err
}

// key is the key of the program's host, or the one in Dir.
func (s *Settings) key() (crypto.PrivKey, error) {
	if s.Host == nil {
		if s.DHT != nil {
			return nil, fault.Invalidf("dht", nil, "needs the host that it runs on")
		}
		return p2p.LoadIdentity(filepath.Join(s.Dir, "identity.key"))
	}
	key := s.Host.Peerstore().PrivKey(s.Host.ID())
	switch {
	case key == nil || key.Type() != crypto.Ed25519:
		return nil, fault.Invalidf("host", s.Host.ID().String(), "must have an Ed25519 key")
	case len(s.Host.Network().Conns()) > 0:
		const early = "has connections: call Start before the host listens or dials"
		return nil, fault.Invalidf("host", s.Host.ID().String(), early)
	case s.NetworkKey != "":
		return nil, fault.Invalidf("network_key", nil, "belongs to the host: make it with libp2p.PrivateNetwork")
	}
	return key, nil
}

// own starts a host of this peer's own.
func (p *Plane) own(ctx context.Context, s Settings, c p2p.Config) (err error) {
	if c.Listen, err = address.Parse("listen", s.Listen); err != nil {
		return err
	}
	if s.NetworkKey != "" {
		key, err := identity.ParseKey(s.NetworkKey)
		if err != nil {
			return fault.In("network_key", err)
		}
		if c.PrivateKey, err = key.Private(c.Network); err != nil {
			return err
		}
	}
	values, err := p2p.OpenValues(filepath.Join(s.Dir, "peers"), s.Logger)
	if err != nil {
		return err
	}
	p.undo = append(p.undo, values.Close)
	c.Datastore = values
	n, err := p2p.New(ctx, c)
	if err != nil {
		return err
	}
	p.net, p.undo = n, append(p.undo, n.Close)
	return nil
}

// attach starts the parts beside those of the program.
func (p *Plane) attach(ctx, life context.Context, s Settings, c p2p.Config) error {
	d := s.DHT
	if d == nil {
		mode := dht.ModeServer
		if c.Profile == p2p.Public {
			mode = dht.ModeAuto
		}
		var err error
		if d, err = dht.New(s.Host, append(dhtOptions(string(c.Network), c.Providers), dht.Mode(mode))...); err != nil {
			return fault.As("discovery.Start", fault.Invalid, err)
		}
		p.undo = append(p.undo, d.Close)
	}
	a, err := p2p.Attach(ctx, s.Host, d, c, len(s.Peers) == 0)
	if err != nil {
		return err
	}
	p.net, p.undo = a, append(p.undo, func() error { a.Close(); return nil })
	return nil
}

// enter connects the program's host to peers of the network whenever it knows none, until life ends.
func (p *Plane) enter(life context.Context, h host.Host, peers []peer.AddrInfo) {
	const first, last, dial = time.Second, time.Minute, 10 * time.Second
	for rest := first; ; {
		changed, known := p.net.Routing().Changed(), p.net.Routing().Size() > 0
		for _, other := range peers {
			if !known && other.ID != h.ID() {
				limited, cancel := context.WithTimeout(life, dial)
				_ = h.Connect(limited, other) // tried again until one of them is in the routing table
				cancel()
			}
		}
		again := time.After(rest)
		if rest = min(2*rest, last); known {
			again, rest = nil, first
		}
		select {
		case <-changed:
		case <-again:
		case <-life.Done():
			return
		}
	}
}

// Joined waits until the peer knows another one of its network. Error: ctx's.
func (p *Plane) Joined(ctx context.Context) error {
	for {
		changed := p.net.Routing().Changed()
		if p.net.Routing().Size() > 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fault.Wrap("discovery.Joined", ctx.Err())
		}
	}
}

// Host is the libp2p host of the peer: its id is the provider of the offers, and its addresses lead others into the
// network.
func (p *Plane) Host() host.Host { return p.net.Host() }

// Register announces a service. Errors: Invalid with the field, Exists, LimitReached.
func (p *Plane) Register(ctx context.Context, o records.Offer) (records.Receipt, error) {
	return p.service.Register(ctx, o)
}

// Update replaces the content of a service. Errors: Invalid, NotFound.
func (p *Plane) Update(ctx context.Context, o records.Offer) (records.Receipt, error) {
	return p.service.Update(ctx, o)
}

// Withdraw ends a service everywhere. Error: NotFound.
func (p *Plane) Withdraw(ctx context.Context, id string) (records.Receipt, error) {
	return p.service.Withdraw(ctx, id)
}

// Pause leaves a service out of all answers: for a time, or with 0 until Resume. Errors: NotFound, Invalid naming
// "for".
func (p *Plane) Pause(ctx context.Context, id string, length time.Duration) (records.Receipt, error) {
	return p.service.Pause(ctx, id, length)
}

// Resume ends a pause. Errors: NotFound, Conflict for a service without a pause.
func (p *Plane) Resume(ctx context.Context, id string) (records.Receipt, error) {
	return p.service.Resume(ctx, id)
}

// Get returns one record of this peer. Error: NotFound.
func (p *Plane) Get(id string) (*records.Record, error) { return p.service.Own(id) }

// List returns the records of this peer by id.
func (p *Plane) List() []*records.Record { return p.service.OwnAll() }

// Query finds services of all peers. Errors: Invalid with the field, Timeout, Unavailable.
func (p *Plane) Query(ctx context.Context, q query.Query) (*query.Answer, error) {
	return p.service.Query(ctx, q)
}

// Resolve returns the live record under a key. Errors: Invalid, NotFound, Timeout.
func (p *Plane) Resolve(ctx context.Context, key string) (*records.Record, error) {
	return p.service.Resolve(ctx, key)
}

// Watch follows a query until ctx ends or the caller leaves the loop: from the cursor of an event seen, or with ""
// from the current matches. The last pair has an error and no event: Invalid, LimitReached, ctx's, or Unavailable
// after Close.
func (p *Plane) Watch(ctx context.Context, q query.Query, after string) iter.Seq2[query.Event, error] {
	return func(yield func(query.Event, error) bool) {
		w, err := p.service.Watch(ctx, q, after)
		if err != nil {
			yield(query.Event{}, err)
			return
		}
		defer w.Close()
		for {
			e, err := w.Next(ctx)
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// Close tells other peers within 3 seconds that the offers of this peer stop, and ends what Start began; a host of
// the program goes on. The offers in Dir come back with the next Start.
func (p *Plane) Close() error {
	p.service.Leave(context.Background())
	return fault.Wrap("discovery.Close", p.stop())
}

func (p *Plane) stop() error {
	p.cancel()
	p.work.Wait()
	var errs []error
	for i := len(p.undo) - 1; i >= 0; i-- {
		errs = append(errs, p.undo[i]())
	}
	p.undo = nil
	return errors.Join(errs...)
}
