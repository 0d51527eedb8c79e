package query

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/pkg/query"
)

// Describe explains the query with its defaults, one part per line, for Query.Explain.
func (p *Plan) Describe() []string {
	q := &p.query
	lines := []string{"type " + q.Type}
	if q.Subtype != "" {
		lines[0] += ", subtype " + q.Subtype
	}
	if n := q.Near; n != nil && n.RadiusKM != nil {
		lines = append(lines, fmt.Sprintf("within %v km of %v,%v", *n.RadiusKM, n.Latitude, n.Longitude))
	} else if n != nil {
		lines = append(lines, fmt.Sprintf("near %v,%v at any distance", n.Latitude, n.Longitude))
	}
	if checks := describeFilters(q); len(checks) > 0 {
		lines = append(lines, "only with "+strings.Join(checks, ", "))
	}
	if usesPrices(q) {
		volume := ""
		if q.Volume != nil {
			volume = fmt.Sprintf(", for a purchase of %v units", *q.Volume)
		}
		lines = append(lines, fmt.Sprintf("prices compared in %s only%s", priceTerms(q.Currency, q.PriceUnit), volume))
	}
	lines = append(lines, "health "+string(q.Health))
	order := fmt.Sprintf("by %s, at most %d", q.Sort, p.Shown())
	if q.Sort == query.SortRandom {
		order += fmt.Sprintf(", seed %d", q.Seed)
	}
	if q.After != "" {
		order += ", after " + q.After
	}
	if q.ExactTotal {
		order += ", all matches counted"
	}
	return append(lines, order)
}

// describeFilters names each filter in use.
func describeFilters(q *query.Query) []string {
	var list []string
	add := func(set bool, format string, args ...any) {
		if set {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	add(len(q.Countries) > 0, "country of %s", oneOf(q.Countries))
	add(len(q.Regions) > 0, "region of %s", oneOf(q.Regions))
	add(q.MinCPUCores > 0, "min_cpu_cores %d", q.MinCPUCores)
	add(q.MinMemoryMB > 0, "min_memory_mb %d", q.MinMemoryMB)
	add(q.RequireGPU, "a GPU")
	add(q.MinStorageGB > 0, "min_storage_gb %d", q.MinStorageGB)
	add(q.MinBandwidthMbps > 0, "min_bandwidth_mbps %d", q.MinBandwidthMbps)
	if q.MaxPrice != nil {
		add(true, "max_price %v", *q.MaxPrice)
	}
	if q.MinUptime != nil {
		add(true, "min_uptime %v", *q.MinUptime)
	}
	if q.MaxErrorRate != nil {
		add(true, "max_error_rate %d", *q.MaxErrorRate)
	}
	add(q.ProviderID != "", "provider_id %s", q.ProviderID)
	for _, key := range slices.Sorted(maps.Keys(q.Attributes)) {
		add(true, "attributes.%s=%s", key, q.Attributes[key])
	}
	for _, c := range allClauses(q) {
		add(true, "%s", c)
	}
	return list
}
