// Package query compiles questions and judges records by them: filters, order, the cut to the best k, and the canonical
// key of a query. The language is that of pkg/query.
//
// Compile validates a query into a Plan, which judges single records. An index, a keeper and a merger of answers apply
// the same Plan, so that equal data gives equal answers on every peer.
//
// Clauses (query.Query.Where) test any field of a record. One table, Fields, has a row for each field:
// parsing, checks, matches, help and documentation follow from it, and a test compares it with the
// schema of records. A clause reads the signed bytes of a record. Clauses never loosen a filter:
// Filter holds what an index can check by columns, and other clauses only make Plan.Match
// stricter. Plan.Bound rules out cells by their place alone, so no clause prunes one.
//
// The package is pure: it depends on no index and no network.
package query

import "github.com/blackhole/blackhole/pkg/query"

// AnyDomain is a Query.Domain.
const AnyDomain = "*"

// Limits of a query.
const (
	DefaultLimit = 100
	MaxLimit     = 1000
	MaxTypes     = 8
	MaxGroups    = 8 // of currency and unit, for GroupPrices

	MaxCells      = 4096 // of one answer
	MaxCellLength = 6    // characters of the geohash of a cell
)

// DefaultCurrency is the currency of price comparisons for queries without one.
const DefaultCurrency = "USDC"

// orderOf returns Sort with its default applied.
func orderOf(q *query.Query) query.Sort {
	switch {
	case q.Sort != query.SortDefault:
		return q.Sort
	case q.Near != nil:
		return query.SortDistance
	default:
		return query.SortScore
	}
}

// healthOf returns Health with its default applied.
func healthOf(q *query.Query) query.Health {
	if q.Health == query.HealthDefault {
		return query.HealthUsable
	}
	return q.Health
}

// pricingOf returns the currency and unit of price comparisons, with defaults only for queries
// that compare prices. The unit is "" for types without a usual unit.
func pricingOf(q *query.Query) (currency, unit string) {
	currency, unit = q.Currency, q.PriceUnit
	if !usesPrices(q) {
		return currency, unit
	}
	if currency == "" {
		currency = DefaultCurrency
	}
	if unit == "" {
		unit = usualUnit(q.Type)
	}
	return currency, unit
}

// usesPrices reports whether the query compares prices.
func usesPrices(q *query.Query) bool { return q.MaxPrice != nil || q.Sort == query.SortPrice }

// permutationOf returns Seed for SortRandom, and otherwise 0.
func permutationOf(q *query.Query) uint64 {
	if q.Sort != query.SortRandom {
		return 0
	}
	return q.Seed
}

// usualUnit returns the price unit of a service type, or "".
func usualUnit(kind string) string {
	switch kind {
	case "storage":
		return "per-gb-month"
	case "compute":
		return "per-hour"
	case "cdn", "bandwidth":
		return "per-gb"
	default:
		return ""
	}
}
