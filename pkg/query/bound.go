package query

import (
	"math"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// Bound returns a lower bound on the Value of every match in a set of records. best holds, for
// each value separately, the best value that any record of the set states. within contains all
// their places. best.Known marks the values stated by some record. Its price, if known, is in
// the plan's currency and unit. Bound ignores the place and the texts of best.
//
// The bound is exact to the last bit, because a better value never lowers a score, and rounding
// keeps order. +Inf means that the order's value is unknown for every match. some is false if
// the set cannot contain a match.
func (p *Plan) Bound(best *records.Facts, within geo.Box) (value float64, some bool) {
	f := &p.filter
	need := records.KnownPrice | records.KnownUptime | records.KnownErrorRate
	switch {
	case p.bounded && !geo.Disc{Center: p.center, Radius: p.radius}.Intersects(within),
		f.Need&need&^best.Known != 0,
		f.Need&records.KnownPrice != 0 && best.Price > f.MaxPrice,
		f.Need&records.KnownUptime != 0 && best.Uptime < f.MinUptime,
		f.Need&records.KnownErrorRate != 0 && best.ErrorRate > f.MaxErrorRate:
		return math.Inf(1), false
	}
	return p.bound(best, within), true
}

func (p *Plan) bound(best *records.Facts, within geo.Box) float64 {
	switch p.query.Sort {
	case SortDistance:
		return geo.MinDistance(p.center, within)
	case SortPrice:
		return rankOrInf(best.Price, best.Has(records.KnownPrice))
	case SortUptime:
		return rankOrInf(-best.Uptime, best.Has(records.KnownUptime))
	case SortResponseTime:
		return rankOrInf(float64(best.ResponseMS), best.Has(records.KnownResponseTime))
	case SortRandom, SortStable:
		return 0
	default:
		x := *best
		x.Known &^= records.KnownPlace
		x.Currency, x.PriceUnit = p.currency, p.unit
		s := p.score(&x)
		if p.placed {
			s.location = pointsFor(locationPoints, remaining(geo.MinDistance(p.center, within), p.reach()))
		}
		return 0 - s.total()
	}
}

// Prices returns the currency and unit of the plan's price comparisons, both folded, or empty
// strings without any.
func (p *Plan) Prices() (currency, unit string) { return p.currency, p.unit }
