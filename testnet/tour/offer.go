package tour

import (
	"context"
	"fmt"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/testnet/app"
	"github.com/blackhole/blackhole/testnet/market"
)

// offerAnnounced registers a server with an offer. A consumer at another peer finds the offer
// while the server lives, and loses it after the end of the server.
func offerAnnounced(ctx context.Context, t *Tour) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := app.Serve()
	if err != nil {
		return "", err
	}
	defer s.Die()
	offers, err := market.Offers(t.Cities, market.MinOffers, 1)
	if err != nil {
		return "", err
	}
	offer, home := offers[0], t.Network.Peers[0]
	offer.ID = "tour-offer"
	q := query.Query{Type: offer.Metadata.Type, ProviderID: home.ID.String()}
	q.Health = query.HealthAny
	seen, err := t.watch(ctx, q)
	if err != nil {
		return "", err
	}
	registration := checked(s)
	registration.Offer = offer
	began := time.Now()
	if err := register(ctx, home, web, registration); err != nil {
		return "", err
	}
	if err := sighted(ctx, seen, offer.ID, "added"); err != nil {
		return "", err
	}
	announced := time.Since(began)
	died := time.Now()
	s.Die()
	if err := sighted(ctx, seen, offer.ID, "withdrawn"); err != nil {
		return "", err
	}
	withdrawn := time.Since(died)
	err = rest(ctx, home, func(ctx context.Context, api *app.REST) error { return api.Deregister(ctx, web, registration.ID) })
	if kind := fault.KindOf(err); err != nil && kind != fault.Gone && kind != fault.NotFound { // on a busy machine it may be long dead
		return "", err
	}
	return fmt.Sprintf("found at %s %v after the registration with %s, and withdrawn %v after the server's death", t.consumer().Name,
		announced.Round(time.Millisecond), home.Name, withdrawn.Round(time.Millisecond)), nil
}

// sighted waits for an event of one record. Updates from new measurements may come earlier.
func sighted(ctx context.Context, seen <-chan sighting, id, kind string) error {
	for {
		s, err := nextSighting(ctx, seen)
		if err != nil {
			return fault.New("tour.sighted", fault.KindOf(err), "%s is not %s: %w", id, kind, err)
		}
		if s.Record != nil && s.Record.ID == id && string(s.Kind) == kind {
			return nil
		}
	}
}
