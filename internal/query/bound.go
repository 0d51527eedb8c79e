package query

import (
	"math"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// Bound returns a lower bound on the Value of every match in a cell: -Inf in an order that does not go by place. Some is false
// for a cell without a match.
func (p *Plan) Bound(c geo.Cell) (value float64, some bool) {
	first, last := c.Codes()
	switch {
	case p.bounded && !geo.Disc{Center: p.center, Radius: p.radius}.Intersects(c.Box()),
		p.query.After != "" && placeNumber(last) < p.after.place:
		return math.Inf(1), false
	case p.query.Sort == query.SortDistance:
		return geo.MinDistance(p.center, c.Box()), true
	case p.query.Sort == query.SortStable:
		return position{place: placeNumber(first)}.value(), true
	default:
		return math.Inf(-1), true
	}
}

// ScoreBound returns a lower bound on the Value in SortScore of a match with these facts, wherever it is. The price is in the
// plan's currency and unit. It is exact to the last bit, because a better value never lowers a score, and rounding keeps order.
func (p *Plan) ScoreBound(best records.Facts) float64 {
	best.Known &^= records.KnownPlace
	best.Currency, best.PriceUnit = p.currency, p.unit
	s := p.score(&best)
	if p.placed {
		s.location = locationPoints
	}
	return 0 - s.total()
}
