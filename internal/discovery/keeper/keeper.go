// Package keeper is one peer's part in the distributed index. It puts the rooms around it together (route, place, ask,
// compare), and serves the requests of other peers in turns.
//
// STORE sends batches of signed records to keepers, FORWARD those of a silent keeper by way of another one. QUERY sends a filter,
// an order and a limit, RESOLVE a name. SYNC and PULL
// compare and fetch, FINDINGS exchanges signed measurements of providers (package witness).
//
// DESIGN.md explains the design.
package keeper

import (
	"context"

	"github.com/blackhole/blackhole/internal/discovery/ask"
	"github.com/blackhole/blackhole/internal/discovery/clock"
	"github.com/blackhole/blackhole/internal/discovery/compare"
	"github.com/blackhole/blackhole/internal/discovery/place"
	"github.com/blackhole/blackhole/internal/discovery/route"
	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/pkg/records"
)

// Keeper is one peer's part in the distributed index. Its methods are safe for concurrent use.
type Keeper struct {
	*wire.Env
	*ask.Asker       // questions to other keepers
	*ask.Findings    // measurements exchanged with other keepers
	*place.Publisher // records to other keepers

	closest   *route.Closest
	client    *wire.Client
	authority *route.Authority
	cells     *place.Cells
	store     *place.Store    // records of other peers
	sync      *compare.Syncer // anti-entropy
	server    *server         // requests of other peers
}

// New starts to serve the protocol on c.Host. It returns Invalid without a required part.
func New(c wire.Config) (*Keeper, error) {
	e, err := wire.NewEnv(c)
	if err != nil {
		return nil, err
	}
	k := assemble(e)
	k.server.listen()
	e.Go(func(ctx context.Context) { wire.Every(ctx, wire.SyncEvery, k.client.TellLacking) })
	if e.Limits.Sync > 0 {
		e.Go(k.sync.Run)
		e.Go(k.authority.Run)
	}
	return k, nil
}

// assemble makes the parts of a keeper. Each part gets the parts that it uses.
func assemble(e *wire.Env) *Keeper {
	closest := route.NewClosest(e)
	c := wire.NewClient(e, closest.Suspect)
	authority := route.NewAuthority(closest, c.WrongClock)
	small := func() bool { return e.Router.Size() < route.AcceptWithin }
	cells := place.NewCells(e.Index, e.Now, e.Limits.Cell, small, authority.Renew)
	authority.Lacks = cells.Lacks
	in := place.NewIntake(e.Index, e.Now, e.Signals.Metrics.Refused, e.Logger)
	s := place.NewStore(authority, c, cells, in)
	k := &Keeper{
		Env: e, closest: closest, client: c, authority: authority, cells: cells, store: s,
		Asker:     ask.NewAsker(closest, authority, c, cells, in),
		Publisher: place.NewPublisher(closest, authority, c, s),
		sync:      compare.NewSyncer(authority, c, s, cells, in),
	}
	k.Findings = ask.NewFindings(closest, c, s.Allow)
	k.server = &server{
		Env: e, asker: k.Asker, authority: authority, store: s, sync: k.sync,
		findings: k.Findings,
		turns:    newTurns(e.Limits.Working, authority.Knows), bulk: newTurns(1, authority.Knows),
		comparing: wire.PeerLimit{PerPeer: peerComparisons},
	}
	return k
}

// Close stops the service, ends the operations under way and waits for them. Later operations
// return Unavailable.
func (k *Keeper) Close() error {
	k.Stop()             // operations under way return
	k.server.rpc.Close() // reads under way return
	k.Wait()
	k.client.Pool.Close() // last: operations put their streams back when they end
	return nil
}

// Refetch asks other keepers for newer versions of this peer's own records: see compare.Syncer.Refetch.
func (k *Keeper) Refetch(ctx context.Context, own []*records.Record) (answered bool) {
	return k.sync.Refetch(ctx, own)
}

// Epoch grows when earlier answers may be out of date: see route.Authority.Epoch.
func (k *Keeper) Epoch() uint64 { return k.authority.Epoch() }

// Clock returns the estimated offset of this peer's clock from the clocks of the keepers.
func (k *Keeper) Clock() clock.Estimate { return k.client.Clock() }
