package tour

import (
	"context"
	"fmt"
	"time"

	"github.com/blackhole/blackhole/internal/platform/cities"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/market"
	"github.com/blackhole/blackhole/testnet/sample"
)

// nearestGPU searches the five GPUs nearest to a city.
func nearestGPU(ctx context.Context, t *Tour) (string, error) {
	here, err := cities.Find(t.Cities, "Berlin")
	if err != nil {
		return "", err
	}
	q := query.Query{Type: "compute", Near: near(here, 0), Sort: query.SortDistance, Limit: 5}
	q.RequireGPU = true
	began := time.Now()
	a, err := t.expect(ctx, q)
	t.FirstQuery = time.Since(began)
	if err != nil {
		return "", err
	}
	best := a.Results[0]
	return fmt.Sprintf("%s in %s is %.0f km from %s", best.Record.ID, best.Record.Location.City, *best.DistanceKM, here.Name), nil
}

// cheapestStorage searches the ten cheapest storage offers of the country with the most.
func cheapestStorage(ctx context.Context, t *Tour) (string, error) {
	storage := func(l market.Listing) bool { return l.Type() == "storage" && l.Usable() }
	country := busiest(t.Market.Where(storage))
	q := query.Query{Type: "storage", Sort: query.SortPrice, Limit: 10}
	q.Countries = []string{country}
	a, err := t.expect(ctx, q)
	if err != nil {
		return "", err
	}
	best := a.Results[0].Record
	return fmt.Sprintf("%s in %s costs %.4f %s %s; %d offers in %s",
		best.ID, best.Location.City, *best.Pricing.BasePrice, best.Pricing.Currency, best.Pricing.PriceUnit, a.Total, country), nil
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

// acrossAntimeridian searches all CDN offers within 300 km, from a place on either side of the
// 180th meridian. Each answer must have offers on both sides.
func acrossAntimeridian(ctx context.Context, t *Tour) (string, error) {
	detail := ""
	for _, name := range []string{"Waiyevo", "Lomaloma"} {
		here, err := cities.Find(t.Cities, name)
		if err != nil {
			return "", err
		}
		a, err := t.expect(ctx, query.Query{Type: "cdn", Near: near(here, 300), Sort: query.SortDistance, Limit: queries.MaxLimit})
		if err != nil {
			return "", fault.Wrap(name, err)
		}
		east, west := hemispheres(a)
		if east == 0 || west == 0 {
			return "", fault.New(name, fault.Conflict, "%d results have eastern and %d western longitude", east, west)
		}
		detail += fmt.Sprintf("around %s (%.2f): %d with eastern, %d with western longitude; ", name, here.Point.Lon, east, west)
	}
	return detail[:len(detail)-len("; ")], nil
}

func hemispheres(a query.AnswerView) (east, west int) {
	for _, r := range a.Results {
		if *r.Record.Location.Longitude > 0 {
			east++
		} else {
			west++
		}
	}
	return east, west
}

// repeats is the number of cached queries.
const repeats = 200

// cachedAnswer repeats one query. From the second time on the cache of the consumer answers,
// still correctly.
func cachedAnswer(ctx context.Context, t *Tour) (string, error) {
	here, err := cities.Find(t.Cities, "Berlin")
	if err != nil {
		return "", err
	}
	q := query.Query{Type: "compute", Near: near(here, 0), Sort: query.SortDistance, Limit: queries.MaxLimit}
	err = await.Until(ctx, soon, "the answer comes from the cache", func(ctx context.Context) error {
		a, err := t.expect(ctx, q)
		if err == nil && a.Source != query.SourceCache {
			err = fault.New("tour.cachedAnswer", fault.Conflict, "the answer is from %s", a.Source)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	var took []time.Duration
	for range repeats {
		a, err := t.expect(ctx, q)
		if err != nil {
			return "", err
		}
		if a.Source == query.SourceCache { // a new measurement of a provider may renew the answer meanwhile
			took = append(took, time.Duration(a.TookMs*float64(time.Millisecond)))
		}
	}
	if len(took) < repeats/2 {
		return "", fault.New("tour.cachedAnswer", fault.Conflict, "only %d of %d answers came from the cache", len(took), repeats)
	}
	t.CachedQuery = sample.Quantile(took, 0.5)
	return fmt.Sprintf("%d of %d answers from the cache, %v each (median)", len(took), repeats, t.CachedQuery), nil
}
