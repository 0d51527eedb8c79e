package offer

import (
	"context"
	"fmt"
	"strings"

	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/query"
)

// relaxation is a filter of a query for offers, with the name of its flag.
type relaxation struct {
	flag string
	set  bool
	keep func(q *query.Query) // adds the filter of the query to one without filters
}

// relaxations lists the filters of a query.
func relaxations(q query.Query) []relaxation {
	return []relaxation{
		{"--radius", q.Near != nil && q.Near.RadiusKM != nil, func(to *query.Query) { to.Near = q.Near }},
		{"--subtype", q.Subtype != "", func(to *query.Query) { to.Subtype = q.Subtype }},
		{"--country", len(q.Countries) > 0, func(to *query.Query) { to.Countries = q.Countries }},
		{"--region", len(q.Regions) > 0, func(to *query.Query) { to.Regions = q.Regions }},
		{"--gpu, --min-...", q.Capacity != query.Capacity{}, func(to *query.Query) { to.Capacity = q.Capacity }},
		{"--max-price", q.MaxPrice != nil, func(to *query.Query) { to.Price = q.Price; to.GroupPrices = false }},
		{"--min-uptime, --max-error-rate", q.MinUptime != nil || q.MaxErrorRate != nil, func(to *query.Query) {
			to.MinUptime, to.MaxErrorRate = q.MinUptime, q.MaxErrorRate
		}},
		{"--health (usable without the flag)", q.Health != query.HealthAny, func(to *query.Query) { to.Health = q.Health }},
		{"--provider", q.ProviderID != "", func(to *query.Query) { to.ProviderID = q.ProviderID }},
		{"--attr", len(q.Attributes) > 0, func(to *query.Query) { to.Attributes = q.Attributes }},
		{"--gpu-..., --where", len(q.Where) > 0, func(to *query.Query) { to.Where = q.Where }},
	}
}

// explainNoOffer tells on standard error why a query found no offer: how many each filter leaves out, and how far the nearest one
// is, or which types have offers. What cannot be found out is left out: the answer itself stands.
func explainNoOffer(ctx context.Context, r *remote.Peer, c *client.Client, q query.Query) {
	types := q.Types
	if q.Type != "" {
		types = []string{q.Type}
	}
	bare := query.Query{Type: q.Type, Types: q.Types, Quality: query.Quality{Health: query.HealthAny}, ExactTotal: true, Limit: 1}
	all, err := c.Query(ctx, bare)
	if err != nil {
		return
	}
	kind := strings.Join(types, " or ")
	if all.Total == 0 {
		r.Say("no offer of type %s%s", kind, otherTypes(ctx, c, bare))
		return
	}
	var left []string
	for _, f := range relaxations(q) {
		if !f.set {
			continue
		}
		only := bare
		f.keep(&only)
		a, err := c.Query(ctx, only)
		if err != nil || a.Total >= all.Total {
			continue
		}
		text := fmt.Sprintf("%d by %s", all.Total-a.Total, f.flag)
		if f.flag == "--radius" && a.Total == 0 {
			text += nearestOffer(ctx, c, bare, *q.Near)
		}
		left = append(left, text)
	}
	if len(left) == 0 {
		return // it came meanwhile
	}
	r.Say("%s of type %s, none passes; left out: %s", term.Counted(all.Total, "offer"), kind, strings.Join(left, ", "))
}

// nearestOffer says how far the nearest offer is, whatever its other properties.
func nearestOffer(ctx context.Context, c *client.Client, bare query.Query, near query.Near) string {
	near.RadiusKM = nil
	bare.Near, bare.Sort, bare.ExactTotal = &near, query.SortDistance, false
	a, err := c.Query(ctx, bare)
	if err != nil || len(a.Results) == 0 {
		return ""
	}
	return " (the nearest is " + distanceOf(a.Results[0].DistanceKM) + " away)"
}

// otherTypes says which of the usual types have offers.
func otherTypes(ctx context.Context, c *client.Client, bare query.Query) string {
	var found []string
	for _, t := range []string{"storage", "compute", "cdn", "bandwidth"} {
		bare.Type, bare.Types = t, nil
		if a, err := c.Query(ctx, bare); err == nil && a.Total > 0 {
			found = append(found, fmt.Sprintf("%s (%d)", t, a.Total))
		}
	}
	if len(found) == 0 {
		return ""
	}
	return "; there are offers of " + strings.Join(found, ", ")
}
