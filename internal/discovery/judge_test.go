package discovery_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	engine "github.com/blackhole/blackhole/internal/discovery"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// liars keeps n offers of one provider each. Every fourth provider lies in all fields: it is at the asked place for a thousandth of the
// price, never fails, and answers in a millisecond. The others claim nothing of their quality.
func (f *fixture) liars(n int) (liars []records.Name) {
	for i := range n {
		f.other = newKey(f.t)
		o := offer(fmt.Sprintf("o%03d", i), 1+float64(i)/float64(n))
		if i%4 == 0 {
			up, errors, ms, price := 100.0, uint32(0), uint64(1), 0.001
			o.Health = &records.Health{Status: "HEALTHY", UptimePercent: &up, ErrorRate: &errors, ResponseTimeMs: &ms}
			o.Pricing.BasePrice = &price
			o.Capabilities.Storage.TotalSpace, o.Capabilities.Storage.AvailableSpace = 9e18, 9e18
		}
		now := time.Now()
		r, err := records.Sign("test", f.other, o, records.Stamp{Sequence: 1, Issued: now, Expires: now.Add(time.Hour)})
		require.NoError(f.t, err)
		f.keep(r)
		if i%4 == 0 {
			liars = append(liars, r.Name())
		} else {
			f.prober.mu.Lock()
			f.prober.found[r.Name().Provider] = records.Measured{State: records.Reachable, RoundTrip: 40 * time.Millisecond}
			f.prober.mu.Unlock()
		}
	}
	return liars
}

// Of 200 offers 50 lie in all fields. The formula of the specification shows liars alone; checked scores show none.
func TestNoLiarAmongTheBest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, func(s *engine.Settings) { s.Defaults.Claims = query.ClaimsCheck })
		defer f.close()
		f.net.limited.Store(true)
		liars := f.liars(200)
		limit := 3.0
		q := query.Query{Type: "storage", Sort: query.SortScore, Limit: 10, Explain: true, Price: query.Price{MaxPrice: &limit, Currency: "USDC", PriceUnit: "per-gb-month"}}
		among := func(a *query.Answer) (n int) {
			require.Len(t, a.Results, 10)
			require.True(t, a.Complete, a.Reason)
			for _, r := range a.Results {
				if slices.Contains(liars, r.Record.Name()) {
					n++
					require.NotEmpty(t, r.Doubts, "flagged")
				}
			}
			return n
		}
		require.Zero(t, among(f.ask(q)))
		q.Sort = query.SortResponseTime
		require.Zero(t, among(f.ask(q)), "a measured time comes before a doubted claim")
		q.Claims = query.ClaimsTrust
		require.Equal(t, 10, among(f.ask(q)))
		q.Sort = query.SortScore
		for _, claims := range []query.Claims{query.ClaimsTrust, query.ClaimsIgnore} {
			q.Claims = claims
			a := f.ask(q)
			require.Equal(t, map[query.Claims]int{query.ClaimsTrust: 10}[claims], among(a), "%s", claims)
		}
		q.Claims, q.Limit = query.ClaimsCheck, 200
		require.Len(t, f.ask(q).Results, 200, "flagged, not hidden")
	})
}
