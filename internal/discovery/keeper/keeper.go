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

	"github.com/blackhole/blackhole/internal/discovery/clock"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// Keeper is one peer's part in the distributed index. Its methods are safe for concurrent use.
type Keeper struct {
	*Env
	closest   *closestCache
	client    *client
	authority *Authority
	splits    *splits
	store     *store     // records of other peers
	asker     *asker     // questions to other keepers
	publisher *publisher // records to other keepers
	sync      *syncer    // anti-entropy
	server    *server    // requests of other peers
}

// New starts to serve the protocol on c.Host. It returns Invalid without a required part.
func New(c Config) (*Keeper, error) {
	e, err := NewEnv(c)
	if err != nil {
		return nil, err
	}
	k := assemble(e)
	k.server.listen()
	m := &maintainer{splits: k.splits, ask: k.asker}
	e.Go(k.server.watches.ring.run)
	e.Go(func(ctx context.Context) {
		every(ctx, maintainEvery, func() {
			m.maintain(ctx)
			k.client.lacking.tell(e.Now())
		})
	})
	if e.Limits.Sync > 0 {
		e.Go(k.sync.run)
		e.Go(k.authority.run)
	}
	return k, nil
}

// assemble makes the parts of a keeper. Each part gets the parts that it uses.
func assemble(e *Env) *Keeper {
	closest := newClosestCache(e)
	c := newClient(e, closest.Suspect)
	authority := newAuthority(closest, c.wrongClock)
	splits := newSplits(closest, authority)
	in := newIntake(e)
	s := newStore(authority, c, splits, in)
	k := &Keeper{
		Env: e, closest: closest, client: c, authority: authority, splits: splits, store: s,
		asker:     newAsker(closest, authority, c, splits, in),
		publisher: newPublisher(closest, authority, c, s),
		sync:      newSyncer(authority, c, s),
	}
	splits.storeAt = k.publisher.storeAt
	k.server = newServer(k)
	return k
}

// Close stops the service, ends the operations under way and waits for them. Later operations
// return Unavailable.
func (k *Keeper) Close() error {
	k.Stop()             // operations under way return
	k.server.rpc.Close() // reads under way return
	k.Wait()
	k.client.pool.Close() // last: operations put their streams back when they end
	return nil
}

// Store sends records to the keepers of their cells: see publisher.Store.
func (k *Keeper) Store(ctx context.Context, recs []*records.Record) []records.Outcome {
	return k.publisher.Store(ctx, recs)
}

// Query asks the keepers of a plan: see asker.Query.
func (k *Keeper) Query(ctx context.Context, p *query.Plan) (query.Found, error) {
	return k.asker.Query(ctx, p)
}

// Local answers a plan from this peer's own index, if Holds: see asker.Local.
func (k *Keeper) Local(p *query.Plan) (query.Found, bool) { return k.asker.Local(p) }

// Holds reports whether this peer answers a plan alone: see asker.Holds.
func (k *Keeper) Holds(p *query.Plan) bool { return k.asker.Holds(p) }

// Watch adds the changes of a plan's matches to the index: see asker.Watch.
func (k *Keeper) Watch(ctx context.Context, p *query.Plan, resync func()) (stop func()) {
	return k.asker.Watch(ctx, p, resync)
}

// Resolve returns the newest live record under a key: see asker.Resolve.
func (k *Keeper) Resolve(ctx context.Context, key records.Key) (*records.Record, error) {
	return k.asker.Resolve(ctx, key)
}

// Refetch asks other keepers for newer versions of this peer's own records: see syncer.Refetch.
func (k *Keeper) Refetch(ctx context.Context, own []*records.Record) (answered bool) {
	return k.sync.Refetch(ctx, own)
}

// Epoch grows when earlier answers may be out of date: see Authority.Epoch.
func (k *Keeper) Epoch() uint64 { return k.authority.Epoch() }

// Clock returns the estimated offset of this peer's clock from the clocks of the keepers.
func (k *Keeper) Clock() clock.Estimate { return k.client.clock.current() }
