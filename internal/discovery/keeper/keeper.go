// Package keeper stores the records of the network. It places the cells of the index on peers,
// delivers records to them, and queries them.
//
// The keepers of a cell are the Replicas peers closest to its key; every peer finds them by a
// lookup in the DHT. In a network of at most Network peers every peer keeps every cell. STORE
// sends batches of signed records to keepers. QUERY sends a filter, an order and a limit; each
// keeper answers with its best matches and a bound on the withheld ones, so that a merged
// answer can be proven complete. A keeper cannot forge a record, and a second keeper reveals
// omissions: a query asks two at once, and more after failures and delays.
//
// A cell with too many records is split (package cell): its keepers hold a sample, and
// summaries of its children. Publishers continue at the keepers of children below geo.MaxLen,
// readers at the children that can have a result. SUMMARY asks for the number and the best
// values of a cell's records.
//
// SYNC is the anti-entropy between keepers of the same cells: they compare digests and pull
// missing records. So a new peer is complete after one round, a withdrawal reaches every copy of
// the record, and two halves of a partitioned network converge. For a cell compared with two
// others a peer answers alone; in a small network this covers every query.
//
// WATCH streams the changes of cells to other peers. A cookie resumes a broken stream; without
// a usable cookie the watcher queries again.
//
// FINDINGS exchanges signed measurements of providers (package witness) among the peers that ask for the same
// cell.
//
// RESOLVE returns the newest version of one record by its name. Each record also belongs to the
// cell of its provider, so its key alone leads to the keepers that have it.
//
// Messages travel over package rpc. DESIGN.md explains the design.
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
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/trace"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
)

// Protocol returns the keepers' protocol of a network.
func Protocol(n network.Name) protocol.ID { return protocol.ID(n.Protocol("keeper", "1.0.0")) }

// service names the streams of the protocol to the resource manager.
const service = "blackhole.keeper"

// Router finds peers in the DHT.
type Router interface {
	// Closest returns up to Network peers closest to a key, nearest first, without this peer:
	// fewer in a smaller network. At its deadline it returns an error and the peers found so far.
	// It returns (nil, nil) if this peer is alone. It calls likely, unless that is nil, with its probable result as soon
	// as it only waits for new connections to some of these peers; at most once, and never after its end.
	Closest(ctx context.Context, key string, likely func([]peer.ID)) ([]peer.ID, error)
	// Nearby returns the n closest known peers to a key, nearest first, without a request.
	Nearby(key string, n int) []peer.ID
	// Size returns the number of peers in the routing table.
	Size() int
	// Serving reports whether this peer is a server of the DHT. Only servers are keepers.
	Serving() bool
}

// Recorder counts for the operator's metrics. Its methods must not block.
type Recorder interface {
	// Operation counts a finished operation: store, query, resolve, lookup, ask, deliver,
	// summarise, hand_over, sync, findings, forward, serve_store, serve_query, serve_summary, serve_sync,
	// serve_pull, serve_resolve, serve_findings, serve_forward, serve_unknown.
	Operation(op string, took time.Duration, err error)
	// Refused counts a refused request, or one refused record of it. The reasons are a closed
	// set: the names of fault kinds, and busy, malformed, equivocation, rate, wrong_cell,
	// not_kept, near_full, untimely (expired or from the future by this peer's
	// clock), other_network.
	Refused(reason string)
	// Distrusted counts a message that violates the protocol, by the kind of fault.
	Distrusted(reason string)
	// Lacking counts a refusal of a keeper that does not know a field of a request. Fields are paths of this
	// version's messages.
	Lacking(field string)
}

// Signals tell the operator about a Keeper.
type Signals struct {
	Conditions *condition.Set // nil keeps none
	Tracer     *trace.Tracer  // nil traces nothing
}

// Config configures a Keeper. Network, Host, Router, Index and Verifier are required.
type Config struct {
	Network  network.Name
	Host     host.Host // not closed by the Keeper
	Router   Router
	Index    *index.Index // stores the accepted records
	Verifier *records.Verifier
	Self     peer.ID          // empty means the host's id
	Now      func() time.Time // nil means time.Now
	Logger   *slog.Logger     // nil logs nothing
	Recorder Recorder         // nil counts nothing
	Limits   Limits

	Signals Signals

	// Wanted reports whether this peer needs a record for itself, for example as a result of a
	// subscription. Such a record stays in the index. It must not block. Nil means never.
	Wanted func(*records.Record) bool
}

// Keeper is one peer's part in the distributed index. Its methods are safe for concurrent use.
type Keeper struct {
	Config
	closest   *closestCache
	asker     *asker     // requests to other keepers
	publisher *publisher // records to other keepers
	server    *server    // requests of other peers
	sync      *syncer    // anti-entropy
	splits    *splits

	ctx      context.Context // ends with Close
	inflight inflight        // all goroutines and operations; Close waits for them
}

// New starts to serve the protocol on c.Host. It returns Invalid without a required part.
func New(c Config) (*Keeper, error) {
	if c.Host == nil || c.Router == nil || c.Index == nil || c.Verifier == nil {
		return nil, fault.New("keeper.New", fault.Invalid, "the host, the router, the index and the verifier are required")
	}
	if err := c.Network.Validate(); err != nil {
		return nil, fault.In("network", fault.Wrap("keeper.New", err))
	}
	c.setDefaults()
	k := &Keeper{Config: c}
	k.ctx, k.inflight.cancel = context.WithCancel(context.Background())
	k.closest = newClosestCache(k)
	k.asker = newAsker(k)
	k.publisher = &publisher{k: k, hints: newSplitHints(), acks: newAcks()}
	k.splits = newSplits(k)
	k.sync = newSyncer(k)
	k.server = newServer(k)
	k.server.listen()
	k.spawn(k.server.ring.run, (&splitMaintainer{splits: k.splits}).run)
	if c.Limits.Sync > 0 {
		k.spawn(k.sync.run, func(ctx context.Context) { beats(ctx, func() { k.sync.know.alive(k.sync.clock()) }) })
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

// Close stops the service, ends the operations under way and waits for them. Later operations
// return Unavailable.
func (k *Keeper) Close() error {
	k.inflight.cancel()  // operations under way return
	k.server.rpc.Close() // reads under way return
	k.inflight.close()
	k.asker.pool.Close() // last: operations put their streams back when they end
	return nil
}

// spawn starts loops that end with k.ctx. Close waits for them.
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

// begin starts an operation. Its context ends with ctx, after timeout, and with Close. Unless
// begin fails, the caller must call end with the operation's error.
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

// inflight counts goroutines and operations, so that Close can wait for them. The zero value is
// open.
type inflight struct {
	cancel context.CancelFunc // ends their context

	mu     sync.Mutex // guards closed, and additions to inside
	closed bool
	inside sync.WaitGroup
}

// enter reports whether the counter is open. Then the caller must call leave.
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

// close refuses new entries and waits until all have left.
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
func (nopRecorder) Lacking(string)                         {}
