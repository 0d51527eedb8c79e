package tour

import (
	"context"
	"fmt"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo/cities"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/market"
	"github.com/blackhole/blackhole/testnet/sample"
)

// repeats is the number of cached queries.
const repeats = 200

// cachedAnswer repeats one query. From the second time on the cache of the consumer answers,
// still correctly.
func cachedAnswer(ctx context.Context, t *Tour) (string, error) {
	here, err := cities.Find(t.Cities, "Berlin")
	if err != nil {
		return "", err
	}
	q := query.Query{Type: "compute", Near: near(here, 0), Limit: 10}
	want := t.Market.Where(of("compute", always)).By(market.DistanceKM(here.Point)).First(q.Limit)
	err = await.Until(ctx, soon, "the answer comes from the cache", func(ctx context.Context) error {
		a, err := t.expect(ctx, q, want)
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
		a, err := t.expect(ctx, q, want)
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
