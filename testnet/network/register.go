package network

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/testnet/app"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/market"
)

const (
	// They catch what never ends: a busy machine breaks no promise.
	registerLimit = 10 * time.Minute
	spreadLimit   = 10 * time.Minute
	settled       = time.Minute // for a commit
)

// Register announces the offers through their providers, spread evenly: all providers at once,
// each with its whole share in one call.
func (n *Network) Register(ctx context.Context, m *market.Market, offers []records.Offer) error {
	shares := make([][]records.Offer, len(n.Peers))
	for i, o := range offers {
		at := (i + i/len(shares)) % len(shares) // a different order in each round, so that each provider gets several types
		shares[at] = append(shares[at], o)
	}
	group, ctx := errgroup.WithContext(ctx)
	for i, p := range n.Peers {
		if len(shares[i]) > 0 {
			group.Go(func() error { return fault.Wrap(p.Name, p.register(ctx, m, shares[i])) })
		}
	}
	return group.Wait()
}

func (p *Peer) register(ctx context.Context, m *market.Market, offers []records.Offer) error {
	ctx, cancel := context.WithTimeout(ctx, registerLimit)
	defer cancel()
	if p.Shop != nil {
		for i := range offers {
			if err := p.Shelve(ctx, &offers[i]); err != nil {
				return err
			}
		}
	}
	outcomes, err := p.Offers().RegisterBatch(ctx, offers)
	if err != nil {
		return err
	}
	for i, o := range outcomes {
		if o.Err != nil {
			return fault.Wrap(offers[i].ID, o.Err)
		}
		m.Add(market.Listing{Offer: offers[i], Provider: p.ID, Key: o.Receipt.Key})
	}
	return nil
}

// Shelve has the server of the peer stand behind an offer: GPUs are reached through the peer, all else at the server's own address.
func (p *Peer) Shelve(ctx context.Context, o *records.Offer) error {
	m := &o.Metadata
	if c := o.Capabilities.Compute; c == nil || len(c.GPUs) == 0 {
		m.Endpoints = []string{"http://" + p.Shop.Address()}
		return nil
	}
	m.Endpoints, m.Protocols, m.Access, m.Stock = nil, []string{"http"}, records.AccessPeer, &records.Stock{Unit: "machine", Total: 1}
	return p.Offers().Serve(ctx, o.ID, p.Shop.Address())
}

// Demo is a service for visitors, with an instance at each peer: the server of the peer.
const Demo = "demo"

// DemoAt is the id of the instance of Demo at a peer.
func DemoAt(p *Peer) string { return Demo + "-" + p.Name }

// OpenDemo registers the instances of Demo with all living peers, which check them each second.
func (n *Network) OpenDemo(ctx context.Context) error {
	for _, p := range n.Living() {
		err := await.Until(ctx, settled, p.Name+" registers an instance of "+Demo, func(ctx context.Context) error {
			_, err := p.API.Register(ctx, Demo, app.Registration{
				ID: DemoAt(p), Host: p.Shop.Host, Port: p.Shop.Port,
				HealthCheck: &app.Check{Type: "HTTP", Endpoint: app.Health, Interval: "1s", Timeout: "1s", UnhealthyThreshold: 3},
			}, true)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// AwaitSpread waits until all keepers took all records. In a network of at most 20 peers every peer keeps them
// all, in larger networks its part.
func (n *Network) AwaitSpread(ctx context.Context, records int) error {
	const op = "network.AwaitSpread"
	for _, p := range n.Peers {
		err := await.Until(ctx, spreadLimit, p.Name+" and its keepers have every record", func(ctx context.Context) error {
			v, err := p.Look(ctx)
			switch {
			case err != nil:
				return p.excuse(err)
			case len(n.Peers) <= enough && v.Kept < records:
				return fault.New(op, fault.Unavailable, "keeps %d of %d", v.Kept, records)
			case v.Announcing > 0:
				return fault.New(op, fault.Unavailable, "some keeper has not taken %d of its records", v.Announcing)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
