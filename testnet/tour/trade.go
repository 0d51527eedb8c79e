package tour

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/testnet/app"
	"github.com/blackhole/blackhole/testnet/market"
	"github.com/blackhole/blackhole/testnet/network"
)

// trade has a provider sell a service on its loopback. The consumer takes the only unit, reaches the service through
// both peers, and gives the unit back, which ends the way to it.
func trade(ctx context.Context, t *Tour) (string, error) {
	const op, id = "tour.trade", "tour-trade"
	service, err := app.Serve()
	if err != nil {
		return "", err
	}
	defer service.Die()
	offers, err := market.Offers(t.Cities, market.MinOffers, 1)
	if err != nil {
		return "", err
	}
	seller, buyer, o := t.Network.Peers[0], t.consumer(), offers[0]
	o.ID, o.Metadata.Endpoints, o.Metadata.Access, o.Metadata.Stock = id, nil, records.AccessPeer, &records.Stock{Unit: "slot", Total: 1}
	if err := seller.Offers().Serve(ctx, id, service.Address()); err != nil {
		return "", err
	}
	receipt, err := seller.Offers().Register(ctx, o)
	if err != nil {
		return "", err
	}
	q := query.Query{Type: o.Metadata.Type, ProviderID: seller.ID.String()}
	if err := at(ctx, []*network.Peer{buyer}, q, id+" is found at ", func(a query.AnswerView) bool { return lists(a, id) }); err != nil {
		return "", err
	}
	free := func(want uint32) error {
		all, err := seller.Offers().Grants(ctx)
		if err == nil && (len(all.Stocks) != 1 || all.Stocks[0].Free != want) {
			err = fault.New(op, fault.Conflict, "not %d free: %v", want, all.Stocks)
		}
		return err
	}
	began := time.Now()
	g, err := buyer.Offers().Reserve(ctx, client.Reservation{Key: receipt.Key, For: time.Minute})
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
	if _, err := seller.Offers().Withdraw(ctx, id); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s took the only unit of %s and had the first byte of its loopback %v after it asked; free again, and closed", buyer.Name,
			seller.Name, took.Round(time.Millisecond)),
		at(ctx, t.Network.Living(), q, id+" is gone from ", func(a query.AnswerView) bool { return !lists(a, id) })
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
