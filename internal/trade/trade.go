// Package trade closes the loop of a market between two peers: a consumer takes units of an offer, and reaches what
// it took.
//
// The peer whose key signed an offer is the only one that grants it; package ledger has the rules. Its ledger is
// one value: a key of the coordination group that it is a member of, or else a value of its own disk. A grant is
// the access: the provider's peer carries the connections of its holder, the authenticated peer of the stream, to a
// local address that nobody else learns.
//
// A Desk is both sides of one peer. It implements api.TradeServiceServer, so that a request is one message from the
// application to the ledger. See docs/wire.md for the two protocols.
package trade

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	libp2p "github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"golang.org/x/time/rate"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/internal/trade/ledger"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/trade/v1"
)

// Protocol returns the protocol of requests in a network.
func Protocol(n network.Name) protocol.ID { return protocol.ID(n.Protocol("trade", "1.0.0")) }

// AccessProtocol returns the protocol of the streams to what was bought.
func AccessProtocol(n network.Name) protocol.ID { return protocol.ID(n.Protocol("access", "1.0.0")) }

// Config are the settings of a Desk. Group, Suspends, Shared and Tell may be nil, and Logger.
type Config struct {
	Network network.Name
	Key     crypto.PrivKey // of this peer: it signs grants
	Host    host.Host      // not closed by the Desk
	Dir     string         // of the database; made with the first value

	// Own returns the newest version of an own offer, and All those of all. Error: NotFound.
	Own func(id string) (*records.Record, error)
	All func() []*records.Record

	// Group returns the coordination group that this peer is a member of, and a name that no other group and no
	// other life of the group has; a nil Service without one. Error: it is not known yet.
	Group func() (coord.Service, string, error)
	// Suspends says why this peer may grant nothing now, such as a second machine with its identity; nil: nothing does.
	Suspends func() error
	// Hooks work for the grants of this peer.
	Hooks Hooks
	// Shared reports whether consumers without a relation have one address, so that addresses count for nothing:
	// where all peers are trusted, or on one machine.
	Shared bool

	// Tell hears of each grant that this peer gave or took, and of its end, by its state. It does not wait. Nil tells
	// nobody.
	Tell func(given bool, g *api.Grant)

	Logger *slog.Logger
	// Conditions tells that nothing is granted now. Nil tells nobody.
	Conditions *condition.Set
}

// Desk sells and buys for one peer. It is safe for concurrent use.
type Desk struct {
	api.UnimplementedTradeServiceServer
	Config
	granter granter
	hooks   *hooks
	disk    *disk
	server  *rpc.Server
	pool    *rpc.Pool
	limiter *rpc.Limiter // of streams of holders
	checks  *rpc.Limiter // of those that are checks
	rates   *bounded.Buckets[string]
	shares  *bounded.Buckets[string] // of checks, by offer and who checks it
	start   time.Time

	sold, bought counters // of all lines for given and held grants
	units        atomic.Uint64

	mu       sync.Mutex          // guards the fields below
	open     map[uint64]*traffic // of given grants, by token
	held     map[heldName]*held
	refusals map[[2]string]uint64

	life   context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// Open starts a Desk. Errors: those of its database.
func Open(c Config) (*Desk, error) {
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.Suspends == nil {
		c.Suspends = func() error { return nil }
	}
	if c.Tell == nil {
		c.Tell = func(bool, *api.Grant) {}
	}
	d := &Desk{
		Config: c, start: time.Now(),
		open: map[uint64]*traffic{}, held: map[heldName]*held{}, refusals: map[[2]string]uint64{},
	}
	var err error
	if d.hooks, err = newHooks(c.Hooks, &d.granter, d.signed, c.Logger); err != nil {
		return nil, fault.Wrap("trade.Open", err)
	}
	kept, err := openDisk(storeConfig(c, c.Host.ID().String()))
	if err != nil {
		return nil, fault.Wrap("trade.Open", err)
	}
	d.disk = kept
	d.life, d.cancel = context.WithCancel(context.Background())
	d.granter = granter{
		group: d.groupShelf, disk: kept, now: d.now, suspends: c.Suspends,
		told: d.news, failed: d.tellOutage, queue: make(chan *change, maxQueued),
		ended: func() {
			d.endStreams()
			d.hooks.sweep()
		},
	}
	d.rates = bounded.NewBuckets[string](maxKnown, requestRate, requestBurst)
	d.checks = rpc.NewLimiter(maxChecks, checksPerPeer, nil)
	d.shares = bounded.NewBuckets[string](maxKnown, rate.Every(checkEvery), checkBurst)
	d.granter.current.Store(ledger.New())
	d.work.Go(func() { d.granter.run(d.life) })
	d.pool = rpc.NewPool(rpc.PoolConfig{
		Host: c.Host, Protocol: Protocol(c.Network), Service: service, Format: rpc.Format{MaxSize: maxMessage},
		CallsPerPeer: 8, IdlePerPeer: 1, Idle: 64, IdleFor: idle / 2,
	})
	d.limiter = rpc.NewLimiter(maxOpen, maxOpenPerPeer, nil)
	d.server = rpc.NewServer(rpc.ServerConfig{
		Host: c.Host, Protocol: Protocol(c.Network), Service: service, Request: new(pb.Request), Format: rpc.Format{MaxSize: maxMessage}, Handler: d.handle,
		Streams: maxStreams, StreamsPerPeer: peerStreams, IdleTimeout: idle, FrameTimeout: frameTime, Logger: c.Logger,
	})
	c.Host.SetStreamHandlerMatch(AccessProtocol(c.Network), rpc.Compatible(AccessProtocol(c.Network)), d.accept)
	return d, nil
}

// Close ends all streams and commands, and waits. Grants stay, and have their full time again after the next start.
func (d *Desk) Close() error {
	d.Host.RemoveStreamHandler(AccessProtocol(d.Network))
	d.hooks.cancel()
	d.server.Close()
	d.cancel()
	d.limiter.Close()
	d.pool.Close()
	d.work.Wait()
	d.hooks.work.Wait()
	d.mu.Lock()
	for _, t := range d.open {
		if t.timer != nil {
			t.timer.Stop()
		}
	}
	d.mu.Unlock()
	return d.disk.close()
}

// now is the monotonic clock of the ledger.
func (d *Desk) now() time.Duration { return time.Since(d.start) }

func (d *Desk) groupShelf() (shelf, string, error) {
	if d.Group == nil {
		return nil, "", nil
	}
	service, name, err := d.Group()
	if err != nil || service == nil {
		return nil, "", err
	}
	return groupShelf{service, d.Host.ID().String()}, name, nil
}

// tellOutage keeps the condition of a ledger that cannot be changed.
func (d *Desk) tellOutage(err error) {
	if err == nil {
		d.Conditions.Clear(condition.NoGrants)
		return
	}
	is := fault.ProblemOf(err)
	is.What = "the ledger of this peer is out of reach: " + is.What
	is.Effect = "it grants no units of its offers: buyers get nothing, and holders keep what they have"
	d.Conditions.Raise(condition.NoGrants, is)
}

// news counts the grants that this peer gave, and tells of them and of those that ended.
func (d *Desk) news(began, ended []*pb.Entry) {
	for _, e := range began {
		d.units.Add(uint64(e.Units))
		g := d.grantOf(e)
		if !ledger.Live(g.State) { // it has ended in the same moment
			g.State, g.Reason = api.Grant_STATE_ACTIVE, ""
		}
		d.Tell(true, g)
	}
	for _, e := range ended {
		d.Tell(true, d.grantOf(e))
	}
}

// refused counts a refusal.
func (d *Desk) refused(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refusals[[2]string{fault.KindOf(err).String(), fault.FieldOf(err)}]++
}

// Stats is what a desk has now, and did since its start.
type Stats struct {
	Given, Held  int                  // live grants
	Units        uint64               // granted
	Refused      map[[2]string]uint64 // requests and connections of consumers, by kind of error and field
	Sold, Bought carried
}

// carried is what the connections of holders carry, in bytes.
type carried = struct{ Open, Sent, Received uint64 }

func (c *counters) carried() carried { return carried{c.open.Load(), c.sent.Load(), c.received.Load()} }

// Stats returns the figures of this peer.
func (d *Desk) Stats() Stats {
	s := Stats{Held: len(d.heldGrants()), Units: d.units.Load(), Sold: d.sold.carried(), Bought: d.bought.carried()}
	for _, e := range d.granter.current.Load().Entries() {
		if ledger.Live(e.State) {
			s.Given++
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s.Refused = maps.Clone(d.refusals)
	return s
}

// consumerOf says who is at the other end of a stream.
func (d *Desk) consumerOf(c libp2p.Conn) ledger.Consumer {
	by := ledger.Consumer{ID: c.RemotePeer().String()}
	if from := rpc.PrefixOf(c.RemoteMultiaddr()); !d.Shared && from != (netip.Prefix{}) {
		by.Prefix = from.String()
	}
	return by
}

// termsOf returns the terms of an own offer now. Errors: NotFound; Unavailable for one that is paused; Unsupported
// for one without stock.
func (d *Desk) termsOf(id string) (t ledger.Terms, err error) {
	r, err := d.Own(id)
	if err != nil {
		return t, err
	}
	s := r.Service()
	stock := s.GetMetadata().GetStock()
	switch {
	case stock == nil:
		return t, fault.Refused(fault.Unsupported, "key", "names an offer without stock: its provider grants nothing")
	case r.Paused() != nil:
		return t, fault.Refused(fault.Unavailable, "key", "names an offer that is paused")
	}
	t = ledger.Terms{
		Key: r.Key().String(), Offer: id, Sequence: r.Sequence(), Unit: stock.GetUnit(), Total: stock.GetTotal(), PerOne: stock.GetMaxPerConsumer(),
		MaxTime: cmp.Or(time.Duration(stock.GetMaxTtl())*time.Second, records.DefaultGrantTTL),
	}
	if p := s.GetPricing(); p != nil {
		t.Price, t.Currency, t.PriceUnit = p.BasePrice, p.GetCurrency(), p.GetPriceUnit()
	}
	return t, nil
}

// served is the private setting of an offer.
type served struct {
	Address     string `json:"address"`
	Connections uint32 `json:"connections"`
}

const (
	defaultConnections = 64 // of one grant at a time
	maxConnections     = 256

	maxServed = records.MaxPerProvider // addresses of one peer
)

func (d *Desk) servedOf(id string) (s served, err error) {
	text := d.disk.get(servePrefix + id)
	if text == nil {
		return s, fault.New("", fault.Unavailable, "the provider serves no address for %s", id)
	}
	return s, fault.As("", fault.Internal, json.Unmarshal(text, &s))
}

// Serve implements api.TradeServiceServer.
func (d *Desk) Serve(_ context.Context, r *api.ServeRequest) (*api.ServeResponse, error) {
	const op = "trade.Serve"
	if err := records.CheckID("id", r.GetId()); err != nil { // an offer may be registered after its address
		return nil, fault.Wrap(op, err)
	}
	if r.GetAddress() == "" {
		return &api.ServeResponse{}, fault.Wrap(op, d.disk.put(servePrefix+r.GetId(), nil))
	}
	if d.disk.get(servePrefix+r.GetId()) == nil && d.disk.len() >= maxServed {
		return nil, fault.Wrap(op, fault.Refused(fault.LimitReached, "id", "has no room: this peer serves %d addresses; clear some, with an empty address", maxServed))
	}
	host, port, err := net.SplitHostPort(r.GetAddress())
	switch {
	case err != nil || host == "" || port == "" || port == "0":
		return nil, fault.Wrap(op, fault.Invalidf("address", r.GetAddress(), "must be HOST:PORT of a TCP service, such as 127.0.0.1:11434"))
	case r.GetConnections() > maxConnections:
		return nil, fault.Wrap(op, fault.Invalidf("connections", r.GetConnections(), "must be at most %d", maxConnections))
	}
	text, err := json.Marshal(served{r.GetAddress(), cmp.Or(r.GetConnections(), defaultConnections)})
	if err == nil {
		err = d.disk.put(servePrefix+r.GetId(), text)
	}
	return &api.ServeResponse{}, fault.Wrap(op, err)
}

// Revoke implements api.TradeServiceServer.
func (d *Desk) Revoke(ctx context.Context, r *api.RevokeRequest) (*api.RevokeResponse, error) {
	const op = "trade.Revoke"
	if err := fault.Text("reason", r.GetReason(), maxReason); err != nil {
		return nil, fault.Wrap(op, err)
	}
	e, err := d.granter.do(ctx, false, func(l *ledger.Ledger, now time.Duration) (*pb.Entry, error) {
		return l.Revoke(r.GetToken(), r.GetReason(), now)
	})
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	d.Logger.Info("a grant was revoked", "token", e.Token, "offer", e.OfferId, "consumer", e.ConsumerId, "reason", e.Reason)
	return &api.RevokeResponse{Grant: d.grantOf(e)}, nil
}

// ListGrants implements api.TradeServiceServer.
func (d *Desk) ListGrants(context.Context, *api.ListGrantsRequest) (*api.ListGrantsResponse, error) {
	resp := &api.ListGrantsResponse{Held: d.heldGrants()}
	l, now := d.granter.current.Load(), d.now()
	for _, e := range l.Entries() {
		g := d.grantOf(e)
		left := uint64(l.Left(e.Token, now).Milliseconds())
		g.LeftMs, g.Handover = &left, ""
		d.mu.Lock()
		if t := d.open[e.Token]; t != nil {
			g.SentBytes, g.ReceivedBytes = t.sent.Load(), t.received.Load()
		}
		d.mu.Unlock()
		resp.Given = append(resp.Given, g)
	}
	for _, r := range d.All() {
		stock := r.Service().GetMetadata().GetStock()
		if stock == nil {
			continue
		}
		id := r.Name().ID
		s, _ := d.servedOf(id) // none: it stays empty
		resp.Stocks = append(resp.Stocks, &api.StockState{
			Id: id, Unit: stock.GetUnit(), Total: stock.GetTotal(), Serve: s.Address, Free: l.Free(ledger.Terms{Offer: id, Total: stock.GetTotal()}),
		})
	}
	slices.SortFunc(resp.Stocks, func(a, b *api.StockState) int { return strings.Compare(a.Id, b.Id) })
	return resp, nil
}

// maxReason bounds the reason of a revocation, in bytes.
const maxReason = 200

// errEnded is the cause of a stream that this side ends.
var errEnded = errors.New("the grant has ended")

// peerOf reads a peer id in a field.
func peerOf(field, text string) (peer.ID, error) {
	id, err := peer.Decode(text)
	if err != nil {
		return "", fault.Invalidf(field, text, "must be a peer id")
	}
	return id, nil
}
