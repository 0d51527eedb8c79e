package tour

import (
	"context"
	"fmt"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo/cities"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/testnet/market"
)

// acrossAntimeridian searches all CDN offers within 300 km, from a place on either side of the
// 180th meridian. Each answer must have offers on both sides.
func acrossAntimeridian(ctx context.Context, t *Tour) (string, error) {
	detail := ""
	for _, name := range []string{"Waiyevo", "Lomaloma"} {
		here, err := cities.Find(t.Cities, name)
		if err != nil {
			return "", err
		}
		const km = 300
		distance := market.DistanceKM(here.Point)
		inside := func(l market.Listing) bool { return distance(l) <= km }
		q := query.Query{Type: "cdn", Near: near(here, km), Limit: query.MaxLimit}
		a, err := t.expect(ctx, q, t.Market.Where(of("cdn", inside)).By(distance))
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
