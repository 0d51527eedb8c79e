package tour

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/market"
	"github.com/blackhole/blackhole/testnet/network"
)

// withdraw ends one offer at its provider. No living peer may find it afterwards, by search or by
// key; other offers of the provider stay.
func withdraw(ctx context.Context, t *Tour) (string, error) {
	provider := t.Network.Peers[0]
	owned := func(l market.Listing) bool { return l.Provider == provider.ID }
	all := t.Market.Where(owned)
	if len(all) == 0 {
		return "", fault.New("tour.withdraw", fault.Invalid, "%s offers nothing: register more", provider.Name)
	}
	gone := all[0]
	if _, err := resolve(ctx, t.consumer(), gone.Key); err != nil {
		return "", fault.Wrap("before the withdrawal", err)
	}
	q := query.Query{Type: gone.Type(), ProviderID: provider.ID.String(), Sort: query.SortPrice, Limit: query.MaxLimit}
	q.Health = query.HealthAny

	began := time.Now()
	if _, err := provider.Withdraw(ctx, gone.Offer.ID); err != nil {
		return "", err
	}
	t.Market.Withdraw(gone.Name())
	want := t.Market.Where(func(l market.Listing) bool { return owned(l) && l.Type() == gone.Type() }).By(market.Price)
	for _, p := range t.Network.Living() {
		err := await.Until(ctx, soon, gone.Offer.ID+" is gone from "+p.Name, func(ctx context.Context) error {
			return lacks(ctx, p, q, want, gone.Key)
		})
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%s of %s gone from %d peers after %v", gone.Offer.ID, provider.Name,
		len(t.Network.Living()), time.Since(began).Round(time.Millisecond)), nil
}

// lacks reports a withdrawn offer that a peer still finds, or an expected offer that it lacks.
func lacks(ctx context.Context, p *network.Peer, q query.Query, want market.Selection, key string) error {
	a, err := ask(ctx, p, q)
	if err != nil {
		return err
	}
	if err := want.Compare(a); err != nil {
		return err
	}
	switch found, err := resolve(ctx, p, key); {
	case err == nil:
		return fault.New("tour.withdraw", fault.Conflict, "%s resolves %s to sequence %d", p.Name, key, found)
	case !errors.Is(err, fault.NotFound):
		return err
	}
	return nil
}

// resolve returns the sequence of the record under a key.
func resolve(ctx context.Context, p *network.Peer, key string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	r, err := p.Resolve(ctx, key)
	return r.Sequence, fault.Wrap(p.Name, err)
}
