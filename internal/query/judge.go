package query

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// claimsOf returns Claims with its default applied.
func claimsOf(q *query.Query) query.Claims { return cmp.Or(q.Claims, query.ClaimsTrust) }

// Evidence is what a peer knows of an offer beyond its record. The zero value is nothing.
type Evidence struct {
	RoundTrip time.Duration // measured, of its endpoint or else of its provider's peer; 0: unknown
	Checks    int           // of its endpoint, which answered or failed; 0: none
	Answered  int           // of Checks
	Failed    bool          // its last check by this peer failed
	Closed    bool          // its endpoint lives behind a gate: nobody knows how fast and how well it serves
	Doubts    []string      // claims that cannot be true: see Plan.Doubts
	CheapAs   float64       // median price of like offers that makes its price one of the doubts; 0: none
	Asks      float64       // price that its endpoint asks, which makes its price one of the doubts; 0: none
}

// AskedFor notes what the endpoint of an offer asks for one request. A price above that of the offer, in its
// currency, for the same unit, contradicts the offer. Prices in other units say nothing.
func (e *Evidence) AskedFor(r *records.Record, price float64, currency string) {
	const rounding = 1.001
	x := r.Facts()
	if price <= x.Price*rounding || !x.Has(records.KnownPrice) || !pricedIn(x, currency, "per-request") {
		return
	}
	e.Asks = price
	doubt := fmt.Sprintf("the price %v %s: its endpoint asks %v for a request", x.Price, currency, price)
	e.Doubts = append(e.Doubts, doubt)
}

// Judge returns the score of a record with the evidence of the asking peer, 0 to 100. With ClaimsTrust it is Score. Otherwise:
//
//   - health is the share of the checks that its endpoint answered, performance that of the measured time: nothing without one;
//   - with doubts a price that is impossible, or that its endpoint contradicts, earns nothing;
//   - a closed endpoint earns nothing for health and performance: anybody can close a door.
//
// Judge is equal at peers with equal evidence.
func (p *Plan) Judge(r *records.Record, e *Evidence) float64 {
	return p.judge(factsFor(p, r), e).total()
}

// judge rates a record's facts and evidence.
func (p *Plan) judge(x *records.Facts, e *Evidence) points {
	s := p.score(x)
	if p.query.Claims == query.ClaimsTrust {
		return s
	}
	if e.CheapAs > 0 || e.Asks > 0 {
		s.price = 0
	}
	if e.Closed {
		return s
	}
	if e.Checks > 0 {
		share := float64(e.Answered) / float64(e.Checks)
		s.uptime, s.errors = pointsFor(uptimePoints, share), pointsFor(errorPoints, share)
	}
	if e.RoundTrip > 0 {
		s.performance = pointsFor(performancePoints, remaining(Millis(e.RoundTrip), worstResponseMS))
	}
	return s
}

// Millis converts a duration to milliseconds, the unit of the API.
func Millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// contradicted reports whether a measured time disproves a claimed response time: it is over twice as long and 100 ms longer, about
// the way around the Earth.
func contradicted(x *records.Facts, e *Evidence) bool {
	const way = 100
	claim, measured := float64(x.ResponseMS), Millis(e.RoundTrip)
	return x.Has(records.KnownResponseTime) && e.RoundTrip > 0 && measured > 2*claim && measured > claim+way
}

// Rank is Value with the evidence of the asking peer: smaller is better. It differs in a judged plan: SortScore ranks by Judge, and
// SortUptime and SortResponseTime by the measurement; without one the value is +Inf, unknown. Rank is equal at peers with equal
// evidence, and never NaN.
func (p *Plan) Rank(r *records.Record, e *Evidence) float64 {
	switch {
	case !p.Judged():
		return p.Value(r)
	case p.query.Sort == query.SortScore:
		return 0 - p.judge(factsFor(p, r), e).total()
	case e.Closed:
	case p.query.Sort == query.SortUptime && e.Checks > 0:
		return -100 * float64(e.Answered) / float64(e.Checks)
	case p.query.Sort == query.SortResponseTime && e.RoundTrip > 0:
		return Millis(e.RoundTrip)
	}
	return math.Inf(1)
}

// Judged reports whether the order of the plan depends on evidence, so that the asking peer ranks what keepers send.
func (p *Plan) Judged() bool {
	switch p.query.Sort {
	case query.SortScore, query.SortUptime, query.SortResponseTime:
		return p.query.Claims != query.ClaimsTrust
	default:
		return false
	}
}

// Window returns a plan that asks for some more matches than it shows.
func (p *Plan) Window(more int) *Plan {
	if p.shown > 0 || more <= 0 {
		return p
	}
	w := *p
	w.shown = p.query.Limit
	w.query.Limit = min(w.shown+more, MaxLimit)
	return &w
}

// Shown returns the number of results to show, at most Limit.
func (p *Plan) Shown() int { return cmp.Or(p.shown, p.query.Limit) }

// explainHealth and explainPerformance say what the points are for.
func (p *Plan) explainHealth(x *records.Facts, e *Evidence) string {
	claim := stated(x, records.KnownUptime, "uptime %v %%", x.Uptime) + ", " + stated(x, records.KnownErrorRate, "errors %d of 10000", x.ErrorRate)
	switch {
	case p.query.Claims == query.ClaimsTrust:
		return claim
	case e.Closed:
		return "its endpoint is closed, which earns nothing"
	case e.Checks == 0:
		return claim + believed(e, x.Known&(records.KnownUptime|records.KnownErrorRate) != 0)
	}
	return fmt.Sprintf("its endpoint answered %d of %d checks", e.Answered, e.Checks)
}

func (p *Plan) explainPerformance(x *records.Facts, e *Evidence) string {
	claim := stated(x, records.KnownResponseTime, "response time %d ms", x.ResponseMS)
	switch {
	case p.query.Claims == query.ClaimsTrust:
		return claim
	case e.Closed:
		return "its endpoint is closed, which earns nothing"
	case e.RoundTrip == 0:
		return claim + believed(e, x.Has(records.KnownResponseTime))
	case contradicted(x, e):
		return fmt.Sprintf("measured %.0f ms contradicts the claimed %d ms, which earns nothing", Millis(e.RoundTrip), x.ResponseMS)
	default:
		return fmt.Sprintf("measured %.0f ms", Millis(e.RoundTrip))
	}
}

// believed says why a claim does not count.
func believed(e *Evidence, claimed bool) string {
	switch {
	case !claimed:
		return ""
	case len(e.Doubts) > 0:
		return " (claimed, and not believed: " + e.Doubts[0] + ")"
	default:
		return " (claimed, not measured: earns nothing)"
	}
}

// What no single offer has today.
const (
	mostCores     = 4096
	mostMemoryMB  = 64_000_000                // 64 TB: the largest shared memory of one machine
	mostStorage   = 1_000_000_000_000_000_000 // bytes: an exabyte
	mostBandwidth = 10_000_000                // Mbit/s
	cheapest      = 100                       // part of the median price of like offers
	likeAtLeast   = 5                         // offers, for a median
)

// Doubts returns the evidence of each of some matches that follows from the claims themselves: capacities beyond what exists, and a
// price below a hundredth of the median of the other matches with the same currency and unit, 4 at least.
func (p *Plan) Doubts(matches []*records.Record) []Evidence {
	prices := make(map[query.Terms][]float64)
	for _, r := range matches {
		if x := factsFor(p, r); x.Has(records.KnownPrice) {
			t, _ := TermsOf(r)
			prices[t] = append(prices[t], x.Price)
		}
	}
	for _, list := range prices {
		slices.Sort(list)
	}
	out := make([]Evidence, len(matches))
	for i, r := range matches {
		x := factsFor(p, r)
		out[i].Doubts = impossible(x)
		t, _ := TermsOf(r)
		list := prices[t]
		if !x.Has(records.KnownPrice) || len(list) < likeAtLeast {
			continue
		}
		if median := list[len(list)/2]; x.Price < median/cheapest {
			out[i].CheapAs = median
			out[i].Doubts = append(out[i].Doubts, fmt.Sprintf("the price %v is below a hundredth of the median %v of %d like offers", x.Price, median, len(list)))
		}
	}
	return out
}

// impossible names the capacities that no offer has.
func impossible(x *records.Facts) (doubts []string) {
	for _, c := range []struct {
		name        string
		claim, most uint64
		unit        string
	}{
		{"cpu_cores", uint64(x.CPUCores), mostCores, ""},
		{"memory_mb", x.MemoryMB, mostMemoryMB, " MB"},
		{"available_space", x.StorageBytes, mostStorage, " bytes"},
		{"bandwidth", x.Bandwidth, mostBandwidth, " Mbit/s"},
	} {
		if c.claim > c.most {
			doubts = append(doubts, fmt.Sprintf("%s: %d%s claimed, no offer has more than %d", c.name, c.claim, c.unit, c.most))
		}
	}
	return doubts
}
