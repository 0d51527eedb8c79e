package tour

import (
	"context"
	"fmt"

	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/testnet/market"
)

// cheapestStorage searches the ten cheapest storage offers of the country with the most.
func cheapestStorage(ctx context.Context, t *Tour) (string, error) {
	country := busiest(t.Market.Where(of("storage", always)))
	q := query.Query{Type: "storage", Sort: query.SortPrice, Limit: 10}
	q.Countries = []string{country}
	all := t.Market.Where(of("storage", func(l market.Listing) bool { return l.Country() == country }))

	a, err := t.expect(ctx, q, all.By(market.Price).First(q.Limit))
	if err != nil {
		return "", err
	}
	best := a.Results[0].Record
	return fmt.Sprintf("%s in %s costs %.4f %s %s; %d offers in %s",
		best.ID, best.Location.City, *best.Pricing.BasePrice, best.Pricing.Currency, best.Pricing.PriceUnit, len(all), country), nil
}

// busiest returns the country with the most listings; the first code wins a tie.
func busiest(all market.Selection) string {
	counts := map[string]int{}
	for _, l := range all {
		counts[l.Country()]++
	}
	best := ""
	for country, n := range counts {
		if n > counts[best] || n == counts[best] && country < best {
			best = country
		}
	}
	return best
}
