package query

import (
	"math"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// Bound is a rank value that no match of a set betters (see Value), given for each of the
// values best the best one that any record of the set states, and a box that all their
// places lie in. Known in best are the values that some record states; its price is in the
// plan's currency and unit, if known. The place and text of best are not looked at.
//
// A bound is not above the Value of any match, to the last bit: a better value never
// lowers a score, and rounding keeps order. It is +Inf when all that match, if any, are
// unknown to the order asked for. No is false when nothing in the set can match.
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
	case SortRandom:
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

// Prices gives the currency and unit, both folded, that the plan compares prices in; both
// are empty where it does not.
func (p *Plan) Prices() (currency, unit string) { return p.currency, p.unit }
