package network

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/market"
)

const (
	registerBatch = 10 // offers in one call
	registerLimit = 30 * time.Second
	spreadLimit   = 60 * time.Second
)

// Register announces the offers, spread evenly over the peers, each through its provider's
// own API: all providers at once, each one call after the other. It gives how long each
// call took.
func (n *Network) Register(ctx context.Context, m *market.Market, offers []records.Offer) ([]time.Duration, error) {
	shares := make([][]records.Offer, len(n.Peers))
	for i, o := range offers {
		at := (i + i/len(shares)) % len(shares) // another order in each round, so that nobody gets one type only
		shares[at] = append(shares[at], o)
	}
	took := make([][]time.Duration, len(n.Peers))
	group, ctx := errgroup.WithContext(ctx)
	for i, p := range n.Peers {
		group.Go(func() (err error) {
			took[i], err = p.register(ctx, m, shares[i])
			return fault.Wrap(p.Name, err)
		})
	}
	err := group.Wait()
	return slices.Concat(took...), err
}

func (p *Peer) register(ctx context.Context, m *market.Market, offers []records.Offer) ([]time.Duration, error) {
	var took []time.Duration
	for batch := range slices.Chunk(offers, registerBatch) {
		callCtx, cancel := context.WithTimeout(ctx, registerLimit)
		began := time.Now()
		outcomes, err := p.RegisterBatch(callCtx, batch)
		cancel()
		if err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
		for i, o := range outcomes {
			if o.Err != nil {
				return nil, fault.Wrap(batch[i].ID, o.Err)
			}
			m.Add(market.Listing{Offer: batch[i], Provider: p.ID, Key: o.Receipt.Key})
		}
	}
	return took, nil
}

// AwaitSpread waits until every peer keeps all records, which it does in a network of at
// most 20 peers. In a larger one each keeps its part, and there is nothing to wait for.
func (n *Network) AwaitSpread(ctx context.Context, records int) error {
	if len(n.Peers) > enough {
		return nil
	}
	for _, p := range n.Peers {
		err := await.Until(ctx, spreadLimit, p.Name+" keeps every record", func(ctx context.Context) error {
			v, err := p.Look(ctx)
			switch {
			case err != nil:
				return p.excuse(err)
			case v.Kept < records:
				return fault.New("network.AwaitSpread", fault.Unavailable, "keeps %d of %d", v.Kept, records)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
