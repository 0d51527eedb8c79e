// Package keeper is the memory of the network: it places the cells of the index on peers,
// hands them records, and asks them.
//
// A cell is kept by the Replicas peers closest to its key, which any peer finds by a
// lookup in the DHT; while the network has at most Network peers, everybody keeps
// everything. STORE gives keepers signed records of their cells, in batches. QUERY
// carries filter, order and limit to them; each answers with its best matches and a bound
// on what it withheld, so that the merged answer can be proven complete. A keeper cannot
// forge a record, and what it omits another one shows: two are asked at once, and a
// further one when they are slow or fail.
//
// The protocol is Protocol: varint-delimited messages, requests and responses in turn on
// one libp2p stream. Here is also the point path: one record under its own key in the DHT
// (Publish, Resolve, Validator).
//
// A cell with too many records is divided (see pkg/cell): its keepers hold a sample and
// summaries of its children, publishers descend to the keepers of children below
// geo.MaxLen, and readers into the children that can have a result. SUMMARY asks how many
// and how good the records of a cell are.
//
// Keepers of the same cells compare what they hold by digests and pull what they lack
// (SYNC), so that a peer that joins is complete after one round, a withdrawal outlives the
// record wherever that was, and two halves of a network that was split agree again. What a
// peer keeps and has compared with two others it answers alone; in a small network that is
// every query.
//
// WATCH streams the changes of cells to whoever does not keep them, with a cookie to resume
// after, or a word that the keepers must be asked again.
package keeper

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// Protocol is the id of the keepers' protocol.
const Protocol protocol.ID = "/blackhole/keeper/1.0.0"

// service names the protocol's streams to the resource manager.
const service = "blackhole.keeper"

// Router finds peers and values in the DHT.
type Router interface {
	// Closest gives up to Network peers closest to a key, nearest first, this peer never
	// included: fewer when the network has no more. At its deadline it gives an error and
	// what it found so far. It is (nil, nil) when this peer is alone.
	Closest(ctx context.Context, key string) ([]peer.ID, error)
	// Nearby gives the n closest peers to a key that this peer knows, nearest first, without asking anybody.
	Nearby(key string, n int) []peer.ID
	// Size is the number of peers in the routing table.
	Size() int
	// PutValue stores a value under a key.
	PutValue(ctx context.Context, key string, value []byte) error
	// GetValue gives the best value under a key, or NotFound.
	GetValue(ctx context.Context, key string) ([]byte, error)
}

// Recorder receives what the operator's metrics count. Its methods must not block.
type Recorder interface {
	// Operation counts a finished operation: store, query, publish, resolve, lookup, ask,
	// deliver, summarise, hand_over, sync, serve_store, serve_query, serve_summary,
	// serve_sync, serve_pull, serve_unknown.
	Operation(op string, took time.Duration, err error)
	// Refused counts a request, or one record of it, that this peer refused. Reasons are a
	// closed set: the names of fault kinds, and busy, malformed, equivocation, rate, wrong_cell, not_kept, crowded.
	Refused(reason string)
	// Distrusted counts an answer that no honest keeper gives, by the kind of fault.
	Distrusted(reason string)
}

// Config are the parts and settings of a Keeper. Host, Router, Index and Verifier are required.
type Config struct {
	Host     host.Host // not closed by the Keeper
	Router   Router
	Index    *index.Index // where this peer keeps what it accepts
	Verifier *records.Verifier
	Self     peer.ID          // empty: the host's
	Now      func() time.Time // nil: time.Now
	Logger   *slog.Logger     // nil: silent
	Recorder Recorder         // nil: nothing is recorded
	Limits   Limits

	// Wanted reports whether this peer wants a record for itself, whatever it keeps for the
	// network; nil: never. It must not block.
	Wanted func(*records.Record) bool
}

// Keeper is one peer's part in the memory of the network. Its methods are safe for
// concurrent use.
type Keeper struct {
	Config
	closest  *closestCache
	stats    *statsCache
	pool     *rpc.Pool
	server   *server
	listener *rpc.Server
	sync     *syncer
	ring     *changeRing // changes, for those who watch

	following chan struct{} // one for each stream of another keeper that is followed

	splits *splits     // cells too large to be kept whole
	hints  *splitHints // keepersrent what other keepers divided

	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	inflight inflight // planOfAll that runs; Close waits for it
}

// New starts to serve the protocol on c.Host. It returns Invalid when a required part is missing.
func New(c Config) (*Keeper, error) {
	if c.Host == nil || c.Router == nil || c.Index == nil || c.Verifier == nil {
		return nil, fault.New("keeper.New", fault.Invalid, "a required part is missing")
	}
	c.setDefaults()
	k := &Keeper{Config: c}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	k.closest = newClosestCache(k)
	k.stats = newStatsCache()
	k.pool = newPool(&k.Config)
	k.server = newServer(k)
	k.splits, k.hints = newSplits(k), newSplitHints()
	k.sync = newSyncer(k)
	k.ring = newRing(c.Index, uint64(c.Now().UnixNano()))
	k.following = make(chan struct{}, maxOwnWatches)
	k.listener = k.server.listen()
	k.splits.run()
	k.spawn(k.ring.run)
	if c.Limits.Sync > 0 {
		k.spawn(k.sync.run)
	}
	return k, nil
}

func (c *Config) setDefaults() {
	if c.Self == "" {
		c.Self = c.Host.ID()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Recorder == nil {
		c.Recorder = nopRecorder{}
	}
	c.Limits = c.Limits.withDefaults()
}

// Close stops serving, ends what is under way and waits for it. Operations that begin
// later return Unavailable.
func (k *Keeper) Close() error {
	k.cancel()         // operations under way return
	k.listener.Close() // reads under way return
	k.inflight.close()
	k.pool.Close() // worst: operations that end put their streams back
	return nil
}

// spawn runs loops that end with k.ctx; Close waits for them.
func (k *Keeper) spawn(loops ...func(context.Context)) {
	for _, loop := range loops {
		if k.inflight.enter() {
			go func() {
				defer k.inflight.leave()
				loop(k.ctx)
			}()
		}
	}
}

// begin opens an operation: its context ends with ctx, after timeout, and with Close.
// The caller must call end with the operation's error, unless begin fails.
func (k *Keeper) begin(ctx context.Context, op string, timeout time.Duration) (_ context.Context, end func(error), err error) {
	if !k.inflight.enter() {
		return nil, nil, fault.New("keeper."+op, fault.Unavailable, "the keeper is closed")
	}
	start := k.Now()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	detach := context.AfterFunc(k.ctx, cancel)
	return ctx, func(err error) {
		detach()
		cancel()
		k.Recorder.Operation(op, k.Now().Sub(start), err)
		k.inflight.leave()
	}, nil
}

// inflight counts what runs, so that Close can wait for it. The zero value is open.
type inflight struct {
	mu     sync.Mutex // guards closed, and that nothing enters once shut waits
	closed bool
	inside sync.WaitGroup
}

// enter reports whether the gate is open; the caller then must leave.
func (g *inflight) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.inside.Add(1)
	return true
}

func (g *inflight) leave() { g.inside.Done() }

// close lets nobody enter any more and waits until all have left.
func (g *inflight) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.inside.Wait()
}

type nopRecorder struct{}

func (nopRecorder) Operation(string, time.Duration, error) {}
func (nopRecorder) Refused(string)                         {}
func (nopRecorder) Distrusted(string)                      {}
