// Package query names questions about offers and their answers. A Query selects, orders and cuts records; its clauses
// (Query.Where) test any field. An Answer lists results in rank order and says what it lacks; an Event is a change of
// the matches of a watch. The peer that is asked checks a query.
package query

// Query selects, orders and cuts records. Its JSON form is the API's. The zero value of a filter
// means no filter. A record with an unknown value fails a filter on that value.
type Query struct {
	Type      string   `json:"type,omitempty"`  // required, except with Types
	Types     []string `json:"types,omitempty"` // several types in place of Type, at most 8
	Subtype   string   `json:"subtype,omitempty"`
	Near      *Near    `json:"near,omitempty"`
	Countries []string `json:"countries,omitempty"` // any of these stated places, without case, ISO 3166-1 alpha-2; at most 64
	Regions   []string `json:"regions,omitempty"`   // any of these stated places, without case; at most 64
	Capacity
	Price
	Quality
	ProviderID string            `json:"provider_id,omitempty"` // peer id, base58 or CID
	Attributes map[string]string `json:"attributes,omitempty"`  // all must match with case; at most 32
	Where      []Clause          `json:"where,omitempty"`       // all must pass; at most 16
	Domain     string            `json:"domain,omitempty"`      // claims this domain, or any one for "*", and the asked peer checked the claim itself
	Sort       Sort              `json:"sort,omitempty"`
	Limit      int               `json:"limit,omitempty"` // largest number of results, 1 to 1000; 0 means the default of the peer
	Explain    bool              `json:"explain,omitempty"`
	ExactTotal bool              `json:"exact_total,omitempty"` // count all matches, which may take longer than the search
	After      string            `json:"after,omitempty"`       // with SortStable: only records after this one, the Next of an answer
	Cells      int               `json:"cells,omitempty"`       // count the matches of each cell with a geohash of this length, 1 to 6, in place of results
	Claims     Claims            `json:"claims,omitempty"`      // how much scores believe claims; empty: the peer's default
	Seed       uint64            `json:"seed,omitempty"`        // permutation of SortRandom, ignored by other orders; the asking peer draws one for 0
}

// Near is a place with an optional search radius.
type Near struct {
	Latitude  float64  `json:"latitude"`            // degrees, -90 to 90
	Longitude float64  `json:"longitude"`           // degrees, -180 to 180
	RadiusKM  *float64 `json:"radius_km,omitempty"` // great-circle kilometres, 0.001 to 20015.115; nil means no limit
}

// Capacity sets lower bounds on capabilities.
type Capacity struct {
	MinCPUCores      uint32 `json:"min_cpu_cores,omitempty"`
	MinMemoryMB      uint64 `json:"min_memory_mb,omitempty"` // 10^6 bytes
	RequireGPU       bool   `json:"require_gpu,omitempty"`
	MinStorageGB     uint64 `json:"min_storage_gb,omitempty"`     // available space, 10^9 bytes
	MinBandwidthMbps uint64 `json:"min_bandwidth_mbps,omitempty"` // for a bandwidth service the lesser of up and down
}

// Price sets an upper bound on the base price. Prices compare only within one currency and unit:
// for MaxPrice and SortPrice, a record in another currency or unit counts as a record without a
// price.
//
// With MaxPrice or SortPrice, an empty Currency means USDC. An empty PriceUnit means
// the unit of the type: storage per-gb-month, compute per-hour, cdn and bandwidth per-gb. Other
// types require a PriceUnit. With Explain the answer says which. Without MaxPrice and
// SortPrice, a peer refuses Currency and PriceUnit, because they would not filter.
type Price struct {
	MaxPrice  *float64 `json:"max_price,omitempty"`  // at least 0
	Currency  string   `json:"currency,omitempty"`   // compared without case, at most 16 bytes
	PriceUnit string   `json:"price_unit,omitempty"` // compared without case, at most 32 bytes

	// Volume is the number of price units to buy in one purchase. With it, a price is that of the
	// tier with the volume, or the base price without one, and at least the minimum commitment
	// divided by the volume. It needs MaxPrice, SortPrice or GroupPrices.
	Volume *float64 `json:"volume,omitempty"`

	// GroupPrices asks for the cheapest matches of each currency and unit in turn, in place of one
	// order. Limit then bounds each group. Only matches with a price belong to a group.
	GroupPrices bool `json:"group_prices,omitempty"`
}

// Quality filters by claimed health.
type Quality struct {
	MinUptime    *float64 `json:"min_uptime,omitempty"`     // percent, 0 to 100
	MaxErrorRate *uint32  `json:"max_error_rate,omitempty"` // per 10000 requests
	Health       Health   `json:"health,omitempty"`
}

// Health selects by the provider's claim and the answering peer's measurement.
type Health string

// The health filters.
const (
	HealthDefault Health = ""        // HealthUsable
	HealthAny     Health = "any"     // no filter
	HealthUsable  Health = "usable"  // neither claimed UNHEALTHY nor measured unreachable
	HealthHealthy Health = "healthy" // claimed HEALTHY and not measured unreachable
)

// Sort is an order of results. Record names break ties.
type Sort string

// The orders.
const (
	SortDefault      Sort = "" // SortDistance for a query with a place, otherwise SortScore
	SortScore        Sort = "score"
	SortDistance     Sort = "distance"
	SortPrice        Sort = "price"
	SortUptime       Sort = "uptime"
	SortResponseTime Sort = "response_time"
	SortRandom       Sort = "random"
	SortStable       Sort = "stable" // by place, then by provider and id: the order to page in, see Query.After
)
