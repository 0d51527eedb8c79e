package discovery_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// market keeps random offers of three types in five currencies and units.
func (f *fixture) market(rng *rand.Rand, n int) (all []*records.Record) {
	for i := range n {
		o := offer(fmt.Sprint("s", i), float64(rng.IntN(20))/4)
		if kind := rng.IntN(3); kind > 0 {
			o.Metadata.Type, o.Capabilities = fmt.Sprint("kind-", kind), nil
		}
		switch rng.IntN(7) {
		case 0:
			o.Pricing = nil
		case 1:
			o.Pricing.BasePrice, o.Pricing.TierPricing = nil, map[string]float64{"10+": 2}
		case 2: // no price, or none for the volume
			o.Pricing.BasePrice, o.Pricing.TierPricing = nil, []map[string]float64{nil, {"30+": 2}}[rng.IntN(2)]
			o.Pricing.MinimumCommitment = ptr(1e308)
		default:
			o.Pricing.Currency = []string{"USDC", "usdc", "EUR"}[rng.IntN(3)]
			o.Pricing.PriceUnit = []string{"per-gb-month", "per-hour", "Per-Hour"}[rng.IntN(3)]
		}
		now := time.Now()
		r, err := records.Sign("test", f.other, o, records.Stamp{Sequence: 1, Created: now, Issued: now, Expires: now.Add(time.Hour)})
		require.NoError(f.t, err)
		f.keep(r)
		all = append(all, r)
	}
	return all
}

// best ranks the records of any of the plans by brute force.
func best(all []*records.Record, limit int, plans ...*queries.Plan) (names []records.Name, total int) {
	var hits []queries.Hit
	for _, r := range all {
		for _, p := range plans {
			if p.Match(r) {
				hits = append(hits, p.Hit(r))
			}
		}
	}
	plans[0].Arrange(hits)
	for _, h := range hits[:min(limit, len(hits))] {
		names = append(names, h.Record.Name())
	}
	return names, len(hits)
}

func namesOf(a *query.Answer) (names []records.Name) {
	for _, r := range a.Results {
		names = append(names, r.Record.Name())
	}
	return names
}

func plan(t *testing.T, q query.Query) *queries.Plan {
	p, err := queries.Compile(q, queries.Defaults{})
	require.NoError(t, err)
	return p
}

func TestTypesAndGroupsAgainstBruteForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		rng := rand.New(rand.NewPCG(1, 2))
		all := f.market(rng, 80)
		for range 60 {
			limit := 1 + rng.IntN(20)
			types := []string{"storage", "kind-1", "kind-2"}[:1+rng.IntN(3)]
			q := query.Query{Types: types, Limit: limit, Sort: []query.Sort{query.SortScore, query.SortUptime, query.SortRandom}[rng.IntN(3)], Seed: 3}
			var plans []*queries.Plan
			for _, kind := range types {
				one := q
				one.Type, one.Types = kind, nil
				plans = append(plans, plan(t, one))
			}
			a := f.ask(q)
			want, total := best(all, limit, plans...)
			require.Equal(t, want, namesOf(a))
			require.Equal(t, total, a.Total)
			require.True(t, a.Complete)

			var volume *float64
			if rng.IntN(2) == 0 {
				volume = ptr(20.0)
			}
			q = query.Query{Types: types, Limit: limit, Price: query.Price{GroupPrices: true, Volume: volume}}
			a, want = f.ask(q), nil
			for _, terms := range []query.Terms{{Currency: "EUR", PriceUnit: "per-gb-month"}, {Currency: "EUR", PriceUnit: "per-hour"}, {Currency: "USDC", PriceUnit: "per-gb-month"}, {Currency: "USDC", PriceUnit: "per-hour"}} {
				var plans []*queries.Plan
				for _, kind := range types {
					plans = append(plans, plan(t, query.Query{
						Type: kind, Sort: query.SortPrice, Price: query.Price{Currency: terms.Currency, PriceUnit: terms.PriceUnit, Volume: volume},
					}))
				}
				var priced []*records.Record
				for _, r := range all {
					if got, ok := queries.TermsOf(r); ok && got == terms && (r.Facts().Has(records.KnownPrice) || volume != nil && r.Service().Pricing.TierPricing["10+"] != 0) {
						priced = append(priced, r)
					}
				}
				names, total := best(priced, limit, plans...)
				if total > 0 {
					at := slices.IndexFunc(a.Groups, func(g query.PriceGroup) bool { return g.Terms == terms })
					require.GreaterOrEqual(t, at, 0, "%v", terms)
					require.Equal(t, query.PriceGroup{Terms: terms, First: len(want), Results: len(names), Total: total}, a.Groups[at])
				}
				want = append(want, names...)
			}
			require.Equal(t, want, namesOf(a))
		}
	})
}

// More groups than an answer has room for are not hidden.
func TestManyPriceGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		for i := range queries.MaxGroups + 1 {
			o := offer(fmt.Sprint("s", i), 1)
			o.Pricing.Currency = fmt.Sprint("C", i)
			now := time.Now()
			r, err := records.Sign("test", f.other, o, records.Stamp{Sequence: 1, Created: now, Issued: now, Expires: now.Add(time.Hour)})
			require.NoError(t, err)
			f.keep(r)
		}
		a := f.ask(query.Query{Type: "storage", Price: query.Price{GroupPrices: true}})
		require.Len(t, a.Groups, queries.MaxGroups)
		require.False(t, a.Complete)
		require.Contains(t, a.Reason, "more than 8 currencies and units")
	})
}

// One type without an answer makes the whole answer incomplete; all of them make it fail.
func TestTypesOfAFailingNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.keep(f.foreign("a", 1, 1, 24*time.Hour))
		f.ask(storage())
		synctest.Wait()
		f.net.down.Store(true)
		a := f.ask(query.Query{Types: []string{"storage", "cdn"}})
		require.Len(t, a.Results, 1)
		require.False(t, a.Complete)
		require.Contains(t, a.Reason, "cdn: ")
		_, err := f.Query(t.Context(), query.Query{Types: []string{"cdn", "compute"}})
		require.Equal(t, fault.Unavailable, fault.KindOf(err))
	})
}
