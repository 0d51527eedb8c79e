package query

import (
	"fmt"
	"math"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// Largest number of points for each part of a score: the weights of the U06 Service Discovery
// Protocol. The specification gives health 40 points, but its formula reaches only 30; the other
// ten cover its deduction for errors.
const (
	uptimePoints      = 30
	errorPoints       = 10
	healthPoints      = uptimePoints + errorPoints
	pricePoints       = 30
	performancePoints = 20
	locationPoints    = 10
)

// Values that earn no points.
const (
	worstErrorRate  = 1000 // of 10000 requests
	worstResponseMS = 1000
)

// points are the parts of a score.
type points struct {
	uptime, errors, price, performance, location float64
}

func (s points) health() float64 { return s.uptime + s.errors }

func (s points) total() float64 {
	return s.health() + s.price + s.performance + s.location
}

// Score returns the composite score of a record under this query, 0 to 100, higher is better:
//
//   - health, 40: 30 in proportion to uptime, plus 10 minus one per percent of errors;
//   - price, 30: in proportion to the margin below max_price; 0 without max_price;
//   - performance, 20: in proportion to the margin of the response time below one second;
//   - location, 10: in proportion to the margin of the distance below the radius, or below half
//     the Earth's circumference without a radius; 0 without a place.
//
// Unknown values earn no points. A better value never lowers the score. The score is equal on
// every peer. Without ClaimsTrust health and performance earn nothing here: see Judge.
func (p *Plan) Score(r *records.Record) float64 {
	return p.score(factsFor(p, r)).total()
}

// ExplainScore explains what Judge says of a record, one sentence per part.
func (p *Plan) ExplainScore(r *records.Record, e *Evidence) []string {
	x := factsFor(p, r)
	s := p.judge(x, e)
	price := p.explainPrice(x)
	if e.Asks > 0 && p.query.Claims != query.ClaimsTrust {
		price += fmt.Sprintf(", its endpoint asks %v", e.Asks)
	}
	if e.CheapAs > 0 && p.query.Claims != query.ClaimsTrust {
		price += fmt.Sprintf(", below a hundredth of the median %v of like offers", e.CheapAs)
	}
	return []string{
		fmt.Sprintf("health %.2f of %d: %s", s.health(), healthPoints, p.explainHealth(x, e)),
		fmt.Sprintf("price %.2f of %d: %s", s.price, pricePoints, price),
		fmt.Sprintf("performance %.2f of %d: %s", s.performance, performancePoints, p.explainPerformance(x, e)),
		fmt.Sprintf("location %.2f of %d: %s", s.location, locationPoints, p.explainLocation(x)),
	}
}

// score rates a record's facts, as keepers do: claims count with ClaimsTrust alone.
func (p *Plan) score(x *records.Facts) points {
	var s points
	if p.query.Claims == query.ClaimsTrust {
		if x.Has(records.KnownUptime) {
			s.uptime = pointsFor(uptimePoints, x.Uptime/100)
		}
		if x.Has(records.KnownErrorRate) {
			s.errors = pointsFor(errorPoints, 1-float64(x.ErrorRate)/worstErrorRate)
		}
		if x.Has(records.KnownResponseTime) {
			s.performance = pointsFor(performancePoints, remaining(float64(x.ResponseMS), worstResponseMS))
		}
	}
	if limit := p.query.MaxPrice; limit != nil && pricedIn(x, p.currency, p.unit) {
		s.price = pointsFor(pricePoints, remaining(x.Price, *limit))
	}
	if metres, ok := p.distance(x); ok {
		s.location = pointsFor(locationPoints, remaining(metres, p.reach()))
	}
	return s
}

// reach is the distance without points, in metres.
func (p *Plan) reach() float64 {
	if p.bounded {
		return p.radius
	}
	return geo.MaxRadius
}

// remaining returns the margin of value below worst as a part of worst: 1 for 0, 0 for worst.
// With a worst of 0 only the value 0 has a margin.
func remaining(value, worst float64) float64 {
	if value <= 0 {
		return 1
	}
	return 1 - value/worst
}

// pointsFor returns a part of most. The part is limited to 0 to 1, and NaN counts as 0.
func pointsFor(most, part float64) float64 {
	if !(part > 0) {
		return 0
	}
	// The conversion prevents fusing the product with the sum over the parts, which would round
	// differently on other processors.
	return float64(most * math.Min(part, 1))
}

// stated formats one value, or reports it as unknown.
func stated(x *records.Facts, k records.Known, format string, value any) string {
	if !x.Has(k) {
		switch k {
		case records.KnownUptime:
			return "uptime unknown"
		case records.KnownErrorRate:
			return "errors unknown"
		default:
			return "response time unknown"
		}
	}
	return fmt.Sprintf(format, value)
}

func (p *Plan) explainPrice(x *records.Facts) string {
	limit := p.query.MaxPrice
	switch {
	case limit == nil:
		return "no max_price to compare with"
	case !x.Has(records.KnownPrice):
		return "unknown"
	case !pricedIn(x, p.currency, p.unit):
		return fmt.Sprintf("in %s, does not compare with %s", priceTerms(x.Currency, x.PriceUnit), priceTerms(p.currency, p.unit))
	default:
		return fmt.Sprintf("%v of at most %v %s", x.Price, *limit, priceTerms(p.currency, p.unit))
	}
}

func (p *Plan) explainLocation(x *records.Facts) string {
	metres, ok := p.distance(x)
	switch {
	case !p.placed:
		return "no place to compare with"
	case !ok:
		return "unknown"
	default:
		return fmt.Sprintf("%.3f km of %.3f km", metres/1000, p.reach()/1000)
	}
}
