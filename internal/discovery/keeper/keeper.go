// Package keeper is one peer's part in the distributed index. It puts the rooms around it together (protocol, keep, ask),
// and serves the requests of other peers in turns.
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
	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/clock"
	"github.com/blackhole/blackhole/pkg/records"
)

// Keeper is one peer's part in the distributed index. Its methods are safe for concurrent use.
type Keeper struct {
	*protocol.Life
	*ask.Asker      // questions to other keepers
	*ask.Findings   // measurements exchanged with other keepers
	*keep.Publisher // records to other keepers

	closest   *keep.Closest
	client    *protocol.Client
	authority *keep.Authority
	cells     *keep.Cells
	store     *keep.Store  // records of other peers
	sync      *keep.Syncer // anti-entropy
	server    *server      // requests of other peers
}

// New starts to serve the protocol on c.Host. It returns Invalid without a required part.
func New(c protocol.Config) (*Keeper, error) {
	c, err := c.Checked()
	if err != nil {
		return nil, err
	}
	k := assemble(c)
	k.server.rpc = protocol.Listen(c, k.server.handle)
	k.Go(func(ctx context.Context) { protocol.Every(ctx, protocol.SyncEvery, k.client.TellLacking) })
	if c.Limits.Sync > 0 {
		k.Go(k.sync.Run)
		k.Go(k.sync.Meet)
		k.Go(k.authority.Run)
	}
	return k, nil
}

// assemble makes the parts of a keeper by a checked configuration. Each part gets what it uses.
func assemble(c protocol.Config) *Keeper {
	l := protocol.NewLife(c)
	closest := keep.NewClosest(l, keep.ClosestConfig{
		Router: c.Router, Draw: c.Draw, Lookup: c.Limits.Lookup,
		Connected: func(id peer.ID) bool { return len(c.Host.Network().ConnsToPeer(id)) > 0 },
	})
	client := protocol.NewClient(l, c, closest.Suspect)
	authority := keep.NewAuthority(closest, keep.AuthorityConfig{
		Router: c.Router, Crowded: c.Index.Crowded, ClockFault: client.WrongClock, Compares: c.Limits.Sync >= 0, Conditions: c.Signals.Conditions,
	})
	small := func() bool { return c.Router.Size() < keep.AcceptWithin }
	cells := keep.NewCells(c.Index, c.Now, c.Limits.Cell, small, authority.Renew)
	authority.Lacks = cells.Lacks
	in := keep.NewIntake(c.Index, c.Now, l.Refused, c.Logger)
	s := keep.NewStore(authority, client, cells, in, keep.StoreConfig{
		Index: c.Index, Verifier: c.Verifier, Nearby: c.Router.Nearby, Wanted: c.Wanted, Limits: c.Limits,
	})
	k := &Keeper{
		Life: l, closest: closest, client: client, authority: authority, cells: cells, store: s,
		Asker: ask.NewAsker(closest, authority, client, cells, in, ask.AskerConfig{
			Index: c.Index, Verifier: c.Verifier, Draw: c.Draw, QueryTime: c.Limits.Query, AskTime: c.Limits.Ask,
		}),
		Publisher: keep.NewPublisher(closest, authority, client, s, c.Limits.Deliver),
		sync: keep.NewSyncer(authority, client, s, cells, in, keep.SyncerConfig{
			Index: c.Index, Verifier: c.Verifier, Every: c.Limits.Sync, Ask: c.Limits.Ask, Lookup: c.Limits.Lookup,
			Conditions: c.Signals.Conditions,
		}),
		Findings: ask.NewFindings(closest, client, s.Allow, ask.FindingsConfig{Network: c.Network, Router: c.Router, Heard: c.Heard, Asked: c.Asked}),
	}
	k.server = &server{
		Life: l, source: c.Limits.SourceOf,
		asker: k.Asker, authority: authority, store: s, sync: k.sync, findings: k.Findings,
		turns: newTurns(c.Limits.Working, authority.Knows), bulk: newTurns(1, authority.Knows),
		comparing: protocol.PeerLimit{PerPeer: peerComparisons},
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

// Refetch asks other keepers for newer versions of this peer's own records: see keep.Syncer.Refetch.
func (k *Keeper) Refetch(ctx context.Context, own []*records.Record) (answered bool) {
	return k.sync.Refetch(ctx, own)
}

// Epoch grows when earlier answers may be out of date: see keep.Authority.Epoch.
func (k *Keeper) Epoch() uint64 { return k.authority.Epoch() }

// Clock returns the estimated offset of this peer's clock from the clocks of the keepers.
func (k *Keeper) Clock() clock.Estimate { return k.client.Clock() }
