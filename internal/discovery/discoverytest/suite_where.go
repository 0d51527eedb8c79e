package discoverytest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// gpus is an edit of Offer.
func gpus(model string, memory uint32, n int) func(*records.Offer) {
	return func(o *records.Offer) {
		for range n {
			o.Capabilities.Compute.GPUs = append(o.Capabilities.Compute.GPUs, records.GPU{Model: model, MemoryMB: memory})
		}
	}
}

// in is an edit of Offer.
func in(currency, unit string) func(*records.Offer) {
	return func(o *records.Offer) { o.Pricing.Currency, o.Pricing.PriceUnit = currency, unit }
}

// relay is an edit of Offer: a service of another type.
func relay(o *records.Offer) {
	o.Metadata.Type, o.Metadata.Subtype, o.Capabilities = "relay", "", nil
}

// where parses clauses in text form.
func where(t *testing.T, texts ...string) (list []query.Clause) {
	for _, text := range texts {
		c, err := queries.ParseClause(text)
		require.NoError(t, err)
		list = append(list, c)
	}
	return list
}

func testQueryWhere(t *testing.T, api API, h *Harness) {
	h.Foreign(t, Offer("big", gpus("H100", 80_000, 8)))
	h.Foreign(t, Offer("mixed", gpus("H100", 40_000, 1), gpus("T4", 80_000, 8)))
	h.Foreign(t, Offer("none"))
	ask := func(texts ...string) []string {
		a, err := api.Query(t.Context(), compute(func(q *query.Query) { q.Where = where(t, texts...) }))
		require.NoError(t, err)
		require.True(t, a.Complete)
		require.Equal(t, len(a.Results), a.Total)
		return names(a)
	}
	require.ElementsMatch(t, []string{"big", "mixed"}, ask("compute.gpus.model^=h,a"))
	require.Equal(t, []string{"big"}, ask("compute.gpus.model=H100", "compute.gpus.memory_mb>=80000"))
	require.Equal(t, []string{"mixed"}, ask("compute.gpus.memory_mb>=40000<=50000", "compute.gpus.count<=3"))
	require.Equal(t, []string{"big"}, ask("compute.gpus.model!=T4"), "no GPU is stated by the other")
	require.ElementsMatch(t, []string{"big", "none"}, ask("compute.gpus.model?!=T4"))
	require.Empty(t, ask("location.country!=DE"))
	_, err := api.Query(t.Context(), compute(func(q *query.Query) { q.Where = where(t, "compute.cpu_cores>=1", "compute.cpus>=2") }))
	refused(t, err, fault.Invalid, "where[1].field", discovery.ErrInvalidQuery)
	require.ErrorContains(t, err, "did you mean compute.cpu_cores?")
}

// testPages reads all records of several types in pages while others come.
func testPages(t *testing.T, api API, h *Harness) {
	first := make(map[string]int)
	for _, id := range []string{"a", "b", "c", "d"} {
		h.Foreign(t, Offer(id))
		h.Foreign(t, Offer(id+"-relay", relay))
		first[id], first[id+"-relay"] = 0, 0
	}
	q := query.Query{Types: []string{"compute", "relay"}, Sort: query.SortStable, Limit: 3}
	var last peer.ID
	for pages := 0; ; pages++ {
		a, err := api.Query(t.Context(), q)
		require.NoError(t, err)
		require.True(t, a.Complete, a.Reason)
		for _, r := range a.Results {
			provider, err := peer.Decode(r.Record.ProviderID)
			require.NoError(t, err)
			require.Greater(t, provider, last, "each provider has one record here")
			last = provider
			first[r.Record.ID]++
		}
		if a.Next == "" {
			require.GreaterOrEqual(t, pages, 2)
			break
		}
		require.Len(t, a.Results, q.Limit)
		q.After = a.Next
		h.Foreign(t, Offer(fmt.Sprint("late-", pages)))
	}
	for id, seen := range first {
		if !strings.HasPrefix(id, "late-") {
			require.Equal(t, 1, seen, id)
		}
	}
	q.After = "a"
	_, err := api.Query(t.Context(), q)
	refused(t, err, fault.Invalid, "after", discovery.ErrInvalidQuery)
	q.After, q.Sort, q.PriceUnit = last.String()+"/a", query.SortPrice, "per-hour"
	_, err = api.Query(t.Context(), q)
	refused(t, err, fault.Invalid, "after", discovery.ErrInvalidQuery)
}

func testQueryOfTypes(t *testing.T, api API, h *Harness) {
	h.Foreign(t, Offer("dear", Priced(3)))
	h.Foreign(t, Offer("relay", relay, Priced(2)))
	h.Foreign(t, Offer("cheap", Priced(1)))
	q := query.Query{Types: []string{"relay", "compute", "none-of-it"}, Sort: query.SortPrice, Price: query.Price{PriceUnit: "per-hour"}, Limit: 2}
	a, err := api.Query(t.Context(), q)
	require.NoError(t, err)
	require.Equal(t, []string{"cheap", "relay"}, names(a))
	require.Equal(t, 3, a.Total)
	require.True(t, a.Complete, a.Reason)
	q.PriceUnit = ""
	_, err = api.Query(t.Context(), q)
	refused(t, err, fault.Invalid, "price_unit", discovery.ErrInvalidQuery)

	next, err := api.Watch(t.Context(), query.Query{Types: []string{"relay", "compute"}}, "")
	require.NoError(t, err)
	for range 3 {
		ev, err := next()
		require.NoError(t, err)
		require.Equal(t, query.Added, ev.Kind)
	}
	expect(t, next, query.Progress, "")
	_, err = api.Register(t.Context(), Offer("new", relay))
	require.NoError(t, err)
	expect(t, next, query.Added, "new")
	_, err = api.Watch(t.Context(), compute(func(q *query.Query) { q.GroupPrices = true }), "")
	refused(t, err, fault.Invalid, "group_prices", discovery.ErrInvalidQuery)
}

func testQueryGroupsPrices(t *testing.T, api API, h *Harness) {
	h.Foreign(t, Offer("a", Priced(3)))
	h.Foreign(t, Offer("b", Priced(2)))
	h.Foreign(t, Offer("c", Priced(0.1), in("EUR", "per-request")))
	h.Foreign(t, Offer("d", Priced(9), in("eur", "Per-Request")))
	h.Foreign(t, Offer("e", Priced(5), in("EUR", "per-hour")))
	h.Foreign(t, Offer("f", func(o *records.Offer) { o.Pricing = nil }))
	a, err := api.Query(t.Context(), compute(func(q *query.Query) { q.GroupPrices, q.Limit = true, 1 }))
	require.NoError(t, err)
	require.True(t, a.Complete, a.Reason)
	require.Equal(t, []string{"e", "c", "b"}, names(a))
	require.Equal(t, []query.PriceGroup{
		{Terms: query.Terms{Currency: "EUR", PriceUnit: "per-hour"}, First: 0, Results: 1, Total: 1},
		{Terms: query.Terms{Currency: "EUR", PriceUnit: "per-request"}, First: 1, Results: 1, Total: 2},
		{Terms: query.Terms{Currency: "USDC", PriceUnit: "per-hour"}, First: 2, Results: 1, Total: 2},
	}, a.Groups)
	none, err := api.Query(t.Context(), query.Query{Type: "nothing-of-the-kind", Price: query.Price{GroupPrices: true}})
	require.NoError(t, err)
	require.Empty(t, none.Results)
	require.True(t, none.Complete)
	_, err = api.Query(t.Context(), compute(func(q *query.Query) { q.GroupPrices, q.Sort = true, query.SortUptime }))
	refused(t, err, fault.Invalid, "sort", discovery.ErrInvalidQuery)
}

func testQueryCountsCells(t *testing.T, api API, h *Harness) {
	h.Foreign(t, Offer("elsewhere"))
	for _, o := range []records.Offer{
		Offer("berlin"), Offer("dear", Priced(9)), Offer("cape", At(-33.9, 18.4)), Offer("nowhere", func(o *records.Offer) { o.Location = nil }),
	} {
		_, err := api.Register(t.Context(), o)
		require.NoError(t, err)
	}
	q := compute(func(q *query.Query) { q.Cells = 3 })
	a, err := api.Query(t.Context(), q)
	require.NoError(t, err)
	most := query.Capacities{CPUCores: 8, MemoryMB: 16_000}
	germany := func(n int) query.Menu { return query.Menu{Countries: map[string]int{"DE": n}, Most: most} }
	want := &query.Cells{Length: 3, Counts: []query.CellCount{{Cell: "k3v", Count: 1, Menu: germany(1)}, {Cell: "u33", Count: 3, Menu: germany(3)}}, Unplaced: 1, Menu: germany(4)}
	require.Equal(t, want, a.Cells)
	require.Empty(t, a.Results)
	require.Equal(t, 5, a.Total)
	require.True(t, a.Complete, a.Reason)
	price, least := 5.0, 1.0
	q.MaxPrice, q.Cells, q.Sort = &price, 1, query.SortPrice
	a, err = api.Query(t.Context(), q)
	require.NoError(t, err)
	require.Equal(t, &query.Cells{Length: 1, Counts: []query.CellCount{{Cell: "k", Count: 1, Least: &least, Menu: germany(1)}, {Cell: "u", Count: 2, Least: &least, Menu: germany(2)}}, Unplaced: 1, Menu: germany(3)}, a.Cells)
	q = compute(func(q *query.Query) { q.Cells, q.Type, q.Types = 1, "", []string{"compute", "storage"} })
	a, err = api.Query(t.Context(), q)
	require.NoError(t, err)
	require.Equal(t, map[string]int{"compute": 5}, a.Cells.Types)
	for field, edit := range map[string]func(*query.Query){
		"cells": func(q *query.Query) { q.Cells = 7 }, "limit": func(q *query.Query) { q.Limit = 1 }, "sort": func(q *query.Query) { q.Sort = query.SortScore },
		"type": func(q *query.Query) { q.Type = "" },
	} {
		q := compute(func(q *query.Query) { q.Cells = 2 })
		edit(&q)
		_, err := api.Query(t.Context(), q)
		refused(t, err, fault.Invalid, field, discovery.ErrInvalidQuery)
	}
	_, err = api.Watch(t.Context(), compute(func(q *query.Query) { q.Cells = 2 }), "")
	refused(t, err, fault.Invalid, "cells", discovery.ErrInvalidQuery)
}

func testQueryVolume(t *testing.T, api API, h *Harness) {
	h.Foreign(t, Offer("flat", Priced(2)))
	h.Foreign(t, Offer("tiers", Priced(3), func(o *records.Offer) { o.Pricing.TierPricing = map[string]float64{"100-1000": 1.5, "1000+": 1} }))
	commitment := 1000.0
	h.Foreign(t, Offer("bound", Priced(0.5), func(o *records.Offer) { o.Pricing.MinimumCommitment = &commitment }))
	for volume, want := range map[float64][]string{
		10: {"flat", "tiers", "bound"}, 200: {"tiers", "flat", "bound"}, 10_000: {"bound", "tiers", "flat"},
	} {
		a, err := api.Query(t.Context(), compute(func(q *query.Query) { q.Sort, q.Volume = query.SortPrice, &volume }))
		require.NoError(t, err)
		require.Equal(t, want, names(a), volume)
	}
}
