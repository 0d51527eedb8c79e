package query

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

func TestJudgeReplacesClaims(t *testing.T) {
	q := scored()
	q.Claims = query.ClaimsCheck
	p, r := compile(t, q), seal(t, 1, rich()) // 100 ms claimed
	require.InDelta(t, 22.5+10, p.Score(r), 1e-9, "what keepers rank by: no claim")
	require.InDelta(t, 22.5+10, p.Judge(r, &Evidence{}), 1e-9)
	require.Equal(t, []string{
		"health 0.00 of 40: uptime 99.5 %, errors 50 of 10000 (claimed, not measured: earns nothing)",
		"price 22.50 of 30: 0.5 of at most 2 USDC per-hour",
		"performance 0.00 of 20: response time 100 ms (claimed, not measured: earns nothing)",
		"location 10.00 of 10: 0.000 km of 100.000 km",
	}, p.ExplainScore(r, &Evidence{}))

	measured := &Evidence{RoundTrip: 250 * time.Millisecond, Checks: 4, Answered: 3}
	require.InDelta(t, 30+22.5+15+10, p.Judge(r, measured), 1e-9)
	require.Equal(t, "health 30.00 of 40: its endpoint answered 3 of 4 checks", p.ExplainScore(r, measured)[0])
	require.Equal(t, "performance 15.00 of 20: measured 250 ms contradicts the claimed 100 ms, which earns nothing", p.ExplainScore(r, measured)[2])
	measured.RoundTrip = 200 * time.Millisecond
	require.Equal(t, "performance 16.00 of 20: measured 200 ms", p.ExplainScore(r, measured)[2], "the way around the Earth takes as long")

	doubted := &Evidence{Doubts: []string{"no"}, CheapAs: 70}
	require.InDelta(t, 10, p.Judge(r, doubted), 1e-9, "the place alone")
	require.Contains(t, p.ExplainScore(r, doubted)[2], "(claimed, and not believed: no)")

	closed := &Evidence{Closed: true, Checks: 4, Answered: 4, RoundTrip: time.Millisecond}
	require.InDelta(t, 22.5+10, p.Judge(r, closed), 1e-9, "price and place alone: anybody can close a door")
	require.Equal(t, "health 0.00 of 40: its endpoint is closed, which earns nothing", p.ExplainScore(r, closed)[0])
	closed.AskedFor(r, 9, "USDC")
	require.Zero(t, closed.Asks, "another unit")
	require.Empty(t, closed.Doubts)

	q.Claims = query.ClaimsTrust
	require.InDelta(t, 99.5*.3+9.5+22.5+18+10, compile(t, q).Judge(r, measured), 1e-9)
}

// The orders of uptime and response time rank by measurements, without a claim.
func TestRankIsByMeasurement(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		q := queryGen(t).Draw(rt, "query")
		q.After = ""
		q.Sort = rapid.SampledFrom([]query.Sort{query.SortUptime, query.SortResponseTime}).Draw(rt, "order")
		q.Claims = rapid.SampledFrom(weights()).Draw(rt, "weight")
		if q.MaxPrice == nil {
			q.Currency, q.PriceUnit, q.Volume = "", "", nil
		}
		p := compile(t, q)
		for _, s := range recordsGen(t, 4).Draw(rt, "world") {
			seen := Evidence{Checks: rapid.IntRange(1, 9).Draw(rt, "checks"), RoundTrip: time.Duration(rapid.Int64Range(1, 2e9).Draw(rt, "ns"))}
			seen.Answered = rapid.IntRange(0, seen.Checks).Draw(rt, "answered")
			measured := -100 * float64(seen.Answered) / float64(seen.Checks)
			if q.Sort == query.SortResponseTime {
				measured = float64(seen.RoundTrip) / 1e6
			}
			value := p.Value(s.record)
			want := map[query.Claims][2]float64{query.ClaimsTrust: {value, value}, query.ClaimsCheck: {math.Inf(1), measured}}[q.Claims]
			for i, e := range []*Evidence{{}, &seen} {
				require.Equal(rt, want[i], p.Rank(s.record, e))
				require.Equal(rt, want[i], compile(t, p.Query()).Rank(s.record, e), "equal knowledge, equal rank")
			}
			require.True(rt, q.Claims == query.ClaimsTrust || value >= 0 && value < 1, "keepers know no claim")
			require.Equal(rt, value, p.Window(9).Value(s.record))
		}
	})
}

func TestDoubts(t *testing.T) {
	p := compile(t, query.Query{Type: "compute"})
	var matches []*records.Record
	for i := range 6 {
		s := rich()
		s.Id = fmt.Sprint("offer", i)
		s.Pricing.BasePrice = ptr(0.5)
		matches = append(matches, seal(t, 1, s))
	}
	for _, e := range p.Doubts(matches) {
		require.Empty(t, e.Doubts)
	}
	liar := rich()
	liar.Id, liar.Pricing.BasePrice = "liar", ptr(0.001)
	liar.Capabilities.GetCompute().MemoryMb = 100_000_000
	found := p.Doubts(append(matches, seal(t, 2, liar)))
	require.Equal(t, []string{
		"memory_mb: 100000000 MB claimed, no offer has more than 64000000",
		"the price 0.001 is below a hundredth of the median 0.5 of 7 like offers",
	}, found[6].Doubts)
	require.Empty(t, found[0].Doubts)
	few := p.Doubts(append(matches[:3:3], seal(t, 2, liar)))
	require.Len(t, few[3].Doubts, 1, "four offers have no median")
}

// A judged score is never below what evidence alone gives, never above 100, and no record that a window leaves out ranks better by what
// keepers rank by.
func TestWindowHoldsTheBest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		q := queryGen(t).Draw(rt, "query")
		p := compile(t, q)
		w := p.Window(rapid.IntRange(0, 2000).Draw(rt, "more"))
		require.Equal(rt, p.Limit(), w.Shown())
		require.Equal(rt, p.Key(), w.Key())
		require.True(rt, w.Limit() >= w.Shown() && w.Limit() <= MaxLimit)
		if w.Limit() > w.Shown() {
			require.Equal(rt, w.Limit(), w.Window(9).Limit(), "once")
		}
		for _, s := range recordsGen(t, 4).Draw(rt, "world") {
			require.Equal(rt, p.Value(s.record), w.Value(s.record))
			e := Evidence{Checks: rapid.IntRange(0, 9).Draw(rt, "checks"), RoundTrip: time.Duration(rapid.Int64Range(0, 2e9).Draw(rt, "ns"))}
			e.Answered = rapid.IntRange(0, e.Checks).Draw(rt, "answered")
			judged := p.Judge(s.record, &e)
			require.True(rt, judged >= 0 && judged <= 100)
			require.Equal(rt, judged, compile(t, p.Query()).Judge(s.record, &e), "equal knowledge, equal score")
			if p.query.Claims != query.ClaimsTrust && e.Checks == 0 && e.RoundTrip == 0 {
				require.LessOrEqual(rt, judged, p.Score(s.record))
			}
		}
	})
}
