package discovery_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	engine "github.com/blackhole/blackhole/internal/discovery"
	"github.com/blackhole/blackhole/internal/platform/probe"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// sells keeps n offers of a new provider at a price. With a host each has an endpoint there.
func (f *fixture) sells(n int, price float64, host string, edit func(*records.Offer)) {
	f.other = newKey(f.t)
	for i := range n {
		o := offer(fmt.Sprintf("o%03d", i), price)
		if host != "" {
			o.Metadata.Endpoints = []string{fmt.Sprintf("https://o%d.%s", i, host)}
		}
		edit(&o)
		now := time.Now()
		r, err := records.Sign("test", f.other, o, records.Stamp{Sequence: 1, Issued: now, Expires: now.Add(time.Hour)})
		require.NoError(f.t, err)
		f.keep(r)
	}
}

// claimsAll lies in all fields.
func claimsAll(o *records.Offer) {
	up, errors, ms := 100.0, uint32(0), uint64(1)
	o.Health = &records.Health{Status: "HEALTHY", UptimePercent: &up, ErrorRate: &errors, ResponseTimeMs: &ms}
	o.Capabilities.Storage.TotalSpace, o.Capabilities.Storage.AvailableSpace = 9e18, 9e18
}

// Twenty offers of two providers answer, and claim nothing. Whoever floods the market with cheaper ones that claim everything has none of
// the first ten: neither without an endpoint, at once, nor with endpoints that answer nobody, once they are checked.
func TestNoLiarAmongTheBest(t *testing.T) {
	for name, flood := range map[string]struct {
		keys, offers int
		host         string
	}{
		"one key": {1, 100, ""}, "three keys": {3, 100, ""}, "fifty keys": {50, 100, ""}, "dead endpoints": {50, 2, "liar.net"},
	} {
		for _, sort := range []query.Sort{query.SortScore, query.SortPrice, query.SortUptime, query.SortResponseTime} {
			t.Run(fmt.Sprintf("%s, %s", name, sort), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFixture(t, func(s *engine.Settings) { s.Defaults.Claims = query.ClaimsCheck })
					defer f.close()
					f.net.limited.Store(true)
					for i := range flood.keys {
						host := ""
						if flood.host != "" {
							host = fmt.Sprintf("k%d.%s", i, flood.host)
							for n := range flood.offers {
								f.speaks.set(fmt.Sprintf("o%d.%s", n, host), probe.Refuses)
							}
						}
						f.sells(flood.offers, 0.4, host, claimsAll)
					}
					for _, host := range []string{"a.net", "b.net"} {
						for n := range 10 {
							f.speaks.set(fmt.Sprintf("o%d.%s", n, host), probe.Answers)
						}
						f.sells(10, 0.45, host, func(*records.Offer) {})
					}
					limit := 3.0
					q := query.Query{Type: "storage", Sort: sort, Limit: 10}
					if sort == query.SortScore || sort == query.SortPrice {
						q.Price = query.Price{MaxPrice: &limit, Currency: "USDC", PriceUnit: "per-gb-month"}
					}
					ask := func() (honest, callable int) {
						a := f.ask(q)
						require.True(t, a.Complete, a.Reason)
						for _, r := range a.Results {
							if r.Record.Service().GetHealth() == nil {
								honest++
								require.Contains(t, []records.Reachability{records.Answers, records.Unmeasured}, r.Endpoint.State)
							}
							if r.Record.Facts().Has(records.KnownCallable) {
								callable++
							}
						}
						return honest, callable
					}
					_, callable := ask()
					require.GreaterOrEqual(t, callable, 8, "of the first ten, before any measurement")
					measured, honest := 0, 0
					for range 40 {
						time.Sleep(3 * time.Second)
						honest, _ = ask()
						if measured++; honest == 10 {
							break
						}
					}
					t.Logf("ten of ten after %d s", 3*measured)
					require.Equal(t, 10, honest)
					require.True(t, flood.host != "" || measured == 1, "without an endpoint they are never first")
					if flood.host == "" {
						q.Claims = query.ClaimsTrust
						honest, _ = ask()
						require.Zero(t, honest, "the formula of the specification believes them")
					}
				})
			})
		}
	}
}

// A claim that cannot be true is named, and hides nothing.
func TestImpossibleClaimsAreFlagged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, func(s *engine.Settings) { s.Defaults.Claims = query.ClaimsCheck })
		defer f.close()
		f.sells(20, 1, "", func(*records.Offer) {})
		f.sells(5, 0.001, "", claimsAll)
		a := f.ask(query.Query{Type: "storage", Limit: 100})
		require.Len(t, a.Results, 25)
		require.Equal(t, 5, len(slices.DeleteFunc(a.Results, func(r query.Result) bool { return len(r.Doubts) == 0 })))
	})
}
