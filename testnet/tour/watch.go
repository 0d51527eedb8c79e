package tour

import (
	"context"
	"fmt"
	"time"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/testnet/market"
	"github.com/blackhole/blackhole/testnet/network"
	"github.com/blackhole/blackhole/testnet/sample"
)

const (
	pace       = 50 * time.Millisecond // least time between two updates
	eventLimit = time.Minute           // from an update to its event
)

// watchUpdates changes prices of compute offers, one provider after the other, under a watch of a
// consumer at another peer. It measures from before each call of Update to the arrival of the
// event with its price, on the clock of this process.
func watchUpdates(ctx context.Context, t *Tour) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	q := query.Query{Type: "compute"}
	q.Health = query.HealthAny
	seen, err := t.watch(ctx, q)
	if err != nil {
		return "", err
	}
	services := t.Market.Where(func(l market.Listing) bool { return l.Type() == "compute" && !l.Down && l.Provider != t.consumer().ID })
	if len(services) == 0 {
		return "", fault.New("tour.watchUpdates", fault.Invalid, "nobody but the consumer offers compute: register more")
	}
	providers := map[string]bool{}
	var published, visible []time.Duration
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for i := range t.Updates {
		// A stride through the list, which is ordered by provider.
		l := services[i*len(services)/min(t.Updates, len(services))%len(services)]
		u, err := t.update(ctx, l, float64(i+1)/1e4, seen)
		if err != nil {
			return "", err
		}
		providers[l.Provider.String()] = true
		published, visible = append(published, u.published), append(visible, u.visible)
		<-tick.C
	}
	t.PublishP95, t.UpdateP99 = sample.Quantile(published, 0.95), sample.Quantile(visible, 0.99)
	q.Sort, q.Limit = query.SortPrice, query.MaxLimit
	want := t.Market.Where(func(l market.Listing) bool { return l.Type() == "compute" }).By(market.Price).First(q.Limit)
	if _, err := t.expect(ctx, q, want); err != nil {
		return "", fault.Wrap("the search after the updates", err)
	}
	return fmt.Sprintf("%d updates of %d providers, seen after %v (median), %v (p99)", t.Updates, len(providers),
		sample.Quantile(visible, 0.5).Round(10*time.Microsecond), t.UpdateP99.Round(10*time.Microsecond)), nil
}

// sighting is an event of the watch with its arrival time.
type sighting struct {
	client.Event
	at  time.Time
	err error // the watch ended
}

// watch starts a watch at the consumer and skips the initial matches. Its goroutine ends with
// ctx.
func (t *Tour) watch(ctx context.Context, q query.Query) (<-chan sighting, error) {
	w, err := t.consumer().Watch(ctx, q, "")
	if err != nil {
		return nil, err
	}
	seen := make(chan sighting, 16)
	go func() {
		for {
			ev, err := w.Next()
			select {
			case seen <- sighting{Event: ev, at: time.Now(), err: err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	for {
		s, err := nextSighting(ctx, seen)
		if err != nil {
			return nil, fault.Wrap("the watch's present matches", err)
		}
		if s.Kind == "progress" {
			return seen, nil
		}
	}
}

func nextSighting(ctx context.Context, seen <-chan sighting) (sighting, error) {
	limit := time.NewTimer(eventLimit)
	defer limit.Stop()
	select {
	case s := <-seen:
		return s, s.err
	case <-limit.C:
		return sighting{}, fault.New("tour.watch", fault.Timeout, "no event within %v", eventLimit)
	case <-ctx.Done():
		return sighting{}, fault.Wrap("tour.watch", ctx.Err())
	}
}

// timing has the durations of one update, both from before its call.
type timing struct {
	published time.Duration // to its receipt
	visible   time.Duration // to its event
}

// update sets the price of an offer and waits for its event.
func (t *Tour) update(ctx context.Context, l market.Listing, price float64, seen <-chan sighting) (timing, error) {
	o := priced(l.Offer, price)
	callCtx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	began := time.Now()
	receipt, err := t.peer(l).Update(callCtx, o)
	if err != nil {
		return timing{}, err
	}
	u := timing{published: time.Since(began)}
	t.Market.Update(l.Provider, o)
	for {
		s, err := nextSighting(ctx, seen)
		if err != nil {
			return timing{}, fault.Wrap("update of "+l.Name().String(), err)
		}
		if s.Record != nil && s.Record.ID == o.ID && s.Record.Sequence == receipt.Sequence {
			u.visible = s.at.Sub(began)
			return u, showsPrice(s, price)
		}
	}
}

func showsPrice(s sighting, price float64) error {
	if got := s.Record.Pricing.BasePrice; s.Kind != "updated" || got == nil || *got != price {
		return fault.New("tour.update", fault.Conflict, "the event is %q and does not show the price %v", s.Kind, price)
	}
	return nil
}

// priced copies an offer with another price, without sharing changed parts.
func priced(o records.Offer, price float64) records.Offer {
	pricing := *o.Pricing
	pricing.BasePrice = &price
	o.Pricing = &pricing
	return o
}

// peer returns the provider of a listing.
func (t *Tour) peer(l market.Listing) *network.Peer {
	for _, p := range t.Network.Peers {
		if p.ID == l.Provider {
			return p
		}
	}
	panic("tour: a listing without its provider: " + l.Name().String()) // impossible: peers registered all listings
}
