package tour

import (
	"context"
	"fmt"
	"time"

	"github.com/blackhole/blackhole/pkg/geo/cities"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/testnet/market"
)

// nearestGPU searches the five GPUs nearest to a city.
func nearestGPU(ctx context.Context, t *Tour) (string, error) {
	here, err := cities.Find(t.Cities, "Berlin")
	if err != nil {
		return "", err
	}
	q := query.Query{Type: "compute", Near: near(here, 0), Sort: query.SortDistance, Limit: 5}
	q.RequireGPU = true
	want := t.Market.Where(of("compute", market.Listing.GPU)).By(market.DistanceKM(here.Point)).First(q.Limit)

	began := time.Now()
	a, err := t.expect(ctx, q, want)
	t.FirstQuery = time.Since(began)
	if err != nil {
		return "", err
	}
	best := a.Results[0]
	return fmt.Sprintf("%s in %s is %.0f km from %s", best.Record.ID, best.Record.Location.City, *best.DistanceKM, here.Name), nil
}
