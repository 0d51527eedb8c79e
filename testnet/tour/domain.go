package tour

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/testnet/app"
	"github.com/blackhole/blackhole/testnet/market"
	"github.com/blackhole/blackhole/testnet/process"
)

// domainChecked has a provider claim two domains, of which one names its peer. A question for checked domains finds that one alone.
func domainChecked(ctx context.Context, t *Tour) (string, error) {
	const its, foreign = "shop.nowhere.net", "bank.nowhere.net"
	home := t.Network.Peers[0]
	names, err := app.ServeNames(map[string]string{"_blackhole." + its + ".": "peer=" + home.ID.String()})
	if err != nil {
		return "", err
	}
	defer names.Die()
	for _, p := range t.Network.Living() {
		if err := process.SetResolver(p.Data, names.Address); err != nil {
			return "", err
		}
	}
	offers, err := market.Offers(t.Cities, market.MinOffers, 1)
	if err != nil {
		return "", err
	}
	const shop, bank = "cdn-shop", "cdn-bank"
	ids := map[string]string{shop: its, bank: foreign}
	for id, domain := range ids {
		o := offers[0]
		o.ID, o.Metadata.Domain, o.Metadata.Endpoints = id, domain, []string{"http://" + home.Shop.Address()}
		if _, err := home.Offers().Register(ctx, o); err != nil {
			return "", err
		}
	}
	began := time.Now()
	var said string
	q := query.Query{Type: offers[0].Metadata.Type, ProviderID: home.ID.String(), Domain: queries.AnyDomain, Limit: queries.MaxLimit}
	err = at(ctx, t.Network.Living(), q, its+" is checked by ", func(a query.AnswerView) bool {
		named := len(a.Results) == 1 && a.Results[0].Record.ID == shop && a.Results[0].Domain.State == records.Checked
		return named && slices.ContainsFunc(a.Excluded, func(e query.Excluded) bool {
			said = e.Reason
			return e.ID == bank && strings.HasPrefix(said, "domain: claimed; refuses")
		})
	})
	took := time.Since(began)
	for id := range ids {
		if _, failed := home.Offers().Withdraw(ctx, id); failed != nil {
			return "", errors.Join(err, failed)
		}
	}
	if err != nil && !names.Asked() {
		return "", skipped("no peer asks the name server of this step: the program is built without the tag lab")
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d peers checked %s after %v, and leave out %s (%s)", len(t.Network.Living()), its, took.Round(time.Millisecond), foreign, said), nil
}
