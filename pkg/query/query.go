// Package query says what is asked for and in which order: filters, ranking, the cut to
// the best k, and the one canonical key of a question.
//
// A Query is what people and programs write. Compile validates it into a Plan, which
// judges single records. Whoever holds many records (an index, a keeper, a merger of
// answers) applies the same Plan, so that the same data gives the same answer on every
// peer. The package is pure.
package query

import (
	"github.com/libp2p/go-libp2p/core/peer"
)

// Query selects, orders and cuts records. Its JSON form is the API's. The zero value of a
// filter does not filter; a record whose value is unknown does not pass a filter on it.
type Query struct {
	Type    string `json:"type"` // required
	Subtype string `json:"subtype,omitempty"`
	Near    *Near  `json:"near,omitempty"`
	Region
	Capacity
	Price
	Quality
	ProviderID string            `json:"provider_id,omitempty"` // peer id, base58 or CID
	Attributes map[string]string `json:"attributes,omitempty"`  // all of these, at most 32; compared with case
	Sort       Sort              `json:"sort,omitempty"`
	Limit      int               `json:"limit,omitempty"` // most results, 1 to MaxLimit; 0 is the default
	Explain    bool              `json:"explain,omitempty"`
	ExactTotal bool              `json:"exact_total,omitempty"` // count all matches, which may take longer than to find the best
	Seed       uint64            `json:"seed,omitempty"`        // permutation of SortRandom and nothing to other orders; the asking peer draws one for 0

	// Exclude are providers found unreachable by whoever asks: at most MaxExclude.
	Exclude []peer.ID `json:"-"`
}

// Near is a place and how far around it to search.
type Near struct {
	Latitude  float64  `json:"latitude"`            // degrees, -90 to 90
	Longitude float64  `json:"longitude"`           // degrees, -180 to 180
	RadiusKM  *float64 `json:"radius_km,omitempty"` // great-circle kilometres, 0.001 to 20015; nil is without bound
}

// Region are filters on the stated place, compared without case.
type Region struct {
	Countries []string `json:"countries,omitempty"` // any of these, ISO 3166-1 alpha-2, at most 64
	Regions   []string `json:"regions,omitempty"`   // any of these, at most 64
}

// Capacity are lower bounds on capabilities.
type Capacity struct {
	MinCPUCores      uint32 `json:"min_cpu_cores,omitempty"`
	MinMemoryMB      uint64 `json:"min_memory_mb,omitempty"` // 10^6 bytes
	RequireGPU       bool   `json:"require_gpu,omitempty"`
	MinStorageGB     uint64 `json:"min_storage_gb,omitempty"`     // available, 10^9 bytes
	MinBandwidthMbps uint64 `json:"min_bandwidth_mbps,omitempty"` // of a bandwidth service the lesser of up and down
}

// Price is an upper bound on the base price. Prices compare only within one currency and
// unit: MaxPrice and SortPrice look only at records that state both of those given here,
// and a record in another currency or unit counts as unknown.
//
// Where MaxPrice or SortPrice is used, an empty Currency is DefaultCurrency and an empty
// PriceUnit is that of the type: storage per-gb-month, compute per-hour, cdn and bandwidth
// per-gb. Other types have none, so there PriceUnit is required. Plan.Query and
// Plan.Describe show what applies. Where neither is used, Currency and PriceUnit have
// nothing to say and are refused, rather than taken for filters that they are not.
type Price struct {
	MaxPrice  *float64 `json:"max_price,omitempty"`  // at least 0
	Currency  string   `json:"currency,omitempty"`   // compared without case, at most 16 bytes
	PriceUnit string   `json:"price_unit,omitempty"` // compared without case, at most 32 bytes
}

// Quality are filters on health.
type Quality struct {
	MinUptime    *float64 `json:"min_uptime,omitempty"`     // percent, 0 to 100
	MaxErrorRate *uint32  `json:"max_error_rate,omitempty"` // per 10000 requests
	Health       Health   `json:"health,omitempty"`
}

// Health selects by the provider's claim and the answering peer's own measurement.
type Health string

// The health filters.
const (
	HealthDefault Health = ""        // HealthUsable
	HealthAny     Health = "any"     // no filter
	HealthUsable  Health = "usable"  // not claimed UNHEALTHY, and not found unreachable
	HealthHealthy Health = "healthy" // claimed HEALTHY, and not found unreachable
)

// Sort is an order of results. Ties are broken by record name.
type Sort string

// The orders.
const (
	SortDefault      Sort = "" // SortDistance where the query has a place, otherwise SortScore
	SortScore        Sort = "score"
	SortDistance     Sort = "distance"
	SortPrice        Sort = "price"
	SortUptime       Sort = "uptime"
	SortResponseTime Sort = "response_time"
	SortRandom       Sort = "random"
)

// Bounds of a query.
const (
	DefaultLimit = 100
	MaxLimit     = 1000
	MaxExclude   = 256
)

// DefaultCurrency is compared in where a query uses prices and names no currency.
const DefaultCurrency = "USDC"

// order is Sort with its default applied.
func (q *Query) order() Sort {
	switch {
	case q.Sort != SortDefault:
		return q.Sort
	case q.Near != nil:
		return SortDistance
	default:
		return SortScore
	}
}

// health is Health with its default applied.
func (q *Query) health() Health {
	if q.Health == HealthDefault {
		return HealthUsable
	}
	return q.Health
}

// pricing is the currency and unit that prices are compared in, as given where the query
// does not use prices. The unit is "" where the type has no usual one.
func (q *Query) pricing() (currency, unit string) {
	currency, unit = q.Currency, q.PriceUnit
	if !q.usesPrices() {
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
func (q *Query) usesPrices() bool { return q.MaxPrice != nil || q.Sort == SortPrice }

// permutation is Seed where it has a meaning, and otherwise 0.
func (q *Query) permutation() uint64 {
	if q.Sort != SortRandom {
		return 0
	}
	return q.Seed
}

// usualUnit is the price unit of a service type, or "".
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
