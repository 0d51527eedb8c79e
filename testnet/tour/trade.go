package tour

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/testnet/app"
	"github.com/blackhole/blackhole/testnet/market"
)

// trade takes the only unit of an offer that its provider serves on its loopback. The buyer reaches the service through
// both peers, and gives the unit back, which ends the way to it.
func trade(ctx context.Context, t *Tour) (string, error) {
	const op = "tour.trade"
	all := t.Market.Where(func(l market.Listing) bool {
		return l.Offer.Metadata.Access == records.AccessPeer && l.Usable() && l.Provider != t.consumer().ID
	})
	if len(all) == 0 {
		return "", fault.New(op, fault.Invalid, "nobody but the consumer sells through its peer: register more")
	}
	seller, buyer, id := t.peer(all[0]), t.consumer(), all[0].Offer.ID
	free := func(want uint32) error {
		grants, err := seller.Offers().Grants(ctx)
		if err == nil && !slices.ContainsFunc(grants.Stocks, func(s client.Stock) bool { return s.ID == id && s.Free == want }) {
			err = fault.New(op, fault.Conflict, "not %d of %s free: %v", want, id, grants.Stocks)
		}
		return err
	}
	began := time.Now()
	g, err := buyer.Offers().Reserve(ctx, client.Reservation{Key: all[0].Key, For: time.Minute})
	if err != nil {
		return "", err
	}
	_, state, err := buyer.Offers().Connect(ctx, g, "127.0.0.1:0")
	if err == nil {
		err = healthy(ctx, state.Listen)
	}
	took := time.Since(began)
	if err == nil {
		err = free(0)
	}
	if err != nil {
		return "", err
	}
	if _, err := buyer.Offers().Release(ctx, g); err != nil {
		return "", err
	}
	if err := free(1); err != nil {
		return "", err
	}
	if err := healthy(ctx, state.Listen); err == nil {
		return "", fault.New(op, fault.Conflict, "the service is reached after the end of the grant")
	}
	return fmt.Sprintf("%s took the only unit of %s of %s and had the first byte of its loopback %v after it asked; free again, and closed",
		buyer.Name, id, seller.Name, took.Round(time.Millisecond)), nil
}

// healthy asks a service for its health.
func healthy(ctx context.Context, address string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+app.Health, nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return fault.As("tour.healthy", fault.Unavailable, err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode >= http.StatusBadRequest {
		return fault.New("tour.healthy", fault.Conflict, "%s: %w", resp.Status, err)
	}
	return nil
}
