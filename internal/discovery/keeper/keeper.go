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

	"github.com/libp2p/go-libp2p/core/peer"

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
	*wire.Life
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
	c, err := c.Checked()
	if err != nil {
		return nil, err
	}
	k := assemble(c)
	k.server.rpc = wire.Listen(c, k.server.handle)
	k.Go(func(ctx context.Context) { wire.Every(ctx, wire.SyncEvery, k.client.TellLacking) })
	if c.Limits.Sync > 0 {
		k.Go(k.sync.Run)
		k.Go(k.authority.Run)
	}
	return k, nil
}

// assemble makes the parts of a keeper by a checked configuration. Each part gets what it uses.
func assemble(c wire.Config) *Keeper {
	l := wire.NewLife(c)
	closest := route.NewClosest(l, route.ClosestConfig{
		Router: c.Router, Draw: c.Draw, Lookup: c.Limits.Lookup,
		Connected: func(id peer.ID) bool { return len(c.Host.Network().ConnsToPeer(id)) > 0 },
	})
	client := wire.NewClient(l, c, closest.Suspect)
	authority := route.NewAuthority(closest, route.AuthorityConfig{
		Router: c.Router, Crowded: c.Index.Crowded, ClockFault: client.WrongClock, Compares: c.Limits.Sync >= 0, Conditions: c.Signals.Conditions,
	})
	small := func() bool { return c.Router.Size() < route.AcceptWithin }
	cells := place.NewCells(c.Index, c.Now, c.Limits.Cell, small, authority.Renew)
	authority.Lacks = cells.Lacks
	in := place.NewIntake(c.Index, c.Now, l.Refused, c.Logger)
	s := place.NewStore(authority, client, cells, in, place.StoreConfig{
		Index: c.Index, Verifier: c.Verifier, Nearby: c.Router.Nearby, Wanted: c.Wanted, Limits: c.Limits,
	})
	k := &Keeper{
		Life: l, closest: closest, client: client, authority: authority, cells: cells, store: s,
		Asker: ask.NewAsker(closest, authority, client, cells, in, ask.AskerConfig{
			Index: c.Index, Verifier: c.Verifier, Draw: c.Draw, QueryTime: c.Limits.Query, AskTime: c.Limits.Ask,
		}),
		Publisher: place.NewPublisher(closest, authority, client, s, c.Limits.Deliver),
		sync: compare.NewSyncer(authority, client, s, cells, in, compare.SyncerConfig{
			Index: c.Index, Verifier: c.Verifier, Every: c.Limits.Sync, Ask: c.Limits.Ask, Lookup: c.Limits.Lookup,
		}),
		Findings: ask.NewFindings(closest, client, s.Allow, ask.FindingsConfig{Network: c.Network, Router: c.Router, Heard: c.Heard, Asked: c.Asked}),
	}
	k.server = &server{
		Life: l, source: c.Limits.SourceOf,
		asker: k.Asker, authority: authority, store: s, sync: k.sync, findings: k.Findings,
		turns: newTurns(c.Limits.Working, authority.Knows), bulk: newTurns(1, authority.Knows),
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
