package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Purchase is what a buyer may rely on after an answer: it holds units of an offer from the return of a request until
// the end that it counts from before that request.
type Purchase struct {
	Offer, Request string
	Provider       string
	Token          uint64
	Units          uint32
	Call, Return   time.Duration // of its first attempt, and of the answer
	Until          time.Duration
}

// Trades counts the requests of a run for units of offers.
type Trades struct {
	Granted int `json:"granted"`
	Refused int `json:"refused"`
	Unknown int `json:"unknown"` // requests without an answer
}

// Grants knows what buyers may believe to hold, and judges it at the end: rule T1. Methods are safe for concurrent
// use.
//
// The rule is a counter with timers: at no instant do all buyers of an offer believe in more units than its stock.
// A request without an answer is no purchase, so what it took only makes others wait.
type Grants struct {
	stock uint32 // of each offer

	mu        sync.Mutex // guards what follows
	purchases []Purchase
	counts    Trades
}

// NewGrants returns an empty list for offers with a stock.
func NewGrants(stock uint32) *Grants { return &Grants{stock: stock} }

// Count counts a request.
func (g *Grants) Count(o Outcome) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch o {
	case OK:
		g.counts.Granted++
	case Refused:
		g.counts.Refused++
	default:
		g.counts.Unknown++
	}
}

// Note adds a purchase at its end: when its buyer gave the units back, or at its Until.
func (g *Grants) Note(b Purchase) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.purchases = append(g.purchases, b)
}

// Counts returns the counted requests.
func (g *Grants) Counts() Trades {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.counts
}

// Result returns the number of purchases and what no ledger allows.
func (g *Grants) Result() Result {
	g.mu.Lock()
	defer g.mu.Unlock()
	v := Result{Rule: "T1", Checked: len(g.purchases)}
	note := func(format string, args ...any) {
		if len(v.Violations) < perRule {
			v.Violations = append(v.Violations, Violation{Rule: v.Rule, Detail: fmt.Sprintf(format, args...)})
		}
	}
	g.oversold(note)
	g.tokens(note)
	return v
}

// oversold sweeps over the ends of purchases in time. A grant counts once, however often its request was repeated.
func (g *Grants) oversold(note func(string, ...any)) {
	type edge struct {
		at    time.Duration
		begin bool
		of    Purchase
	}
	var edges []edge
	for _, b := range g.purchases {
		if b.Return < b.Until {
			edges = append(edges, edge{b.Return, true, b}, edge{b.Until, false, b})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int {
		if a.at == b.at && a.begin != b.begin { // an end comes first
			if a.begin {
				return 1
			}
			return -1
		}
		return cmp.Compare(a.at, b.at)
	})
	type grant struct {
		provider string
		token    uint64
	}
	believers, sold := map[grant]int{}, map[string]uint32{}
	for _, e := range edges {
		of := grant{e.of.Provider, e.of.Token}
		if !e.begin {
			if believers[of]--; believers[of] == 0 {
				delete(believers, of)
				sold[e.of.Offer] -= e.of.Units
			}
			continue
		}
		if believers[of]++; believers[of] > 1 {
			continue
		}
		if sold[e.of.Offer] += e.of.Units; sold[e.of.Offer] > g.stock {
			note("%d units of %s are held at %v, and it has %d; the last grant is %+v", sold[e.of.Offer], e.of.Offer, e.at, g.stock, e.of)
		}
	}
}

// tokens checks that the repetition of a request returns its grant, and that a later grant has a higher token.
func (g *Grants) tokens(note func(string, ...any)) {
	requests, first := map[string]Purchase{}, map[string][]Purchase{}
	for _, b := range g.purchases {
		switch old, known := requests[b.Request]; {
		case !known:
			requests[b.Request] = b
			first[b.Provider] = append(first[b.Provider], b)
		case old.Token != b.Token:
			note("one request has two grants:\n  %+v\n  %+v", old, b)
		}
	}
	for _, provider := range slices.Sorted(maps.Keys(first)) {
		calls := first[provider]
		returns := slices.Clone(calls)
		slices.SortFunc(calls, func(a, b Purchase) int { return cmp.Compare(a.Call, b.Call) })
		slices.SortFunc(returns, func(a, b Purchase) int { return cmp.Compare(a.Return, b.Return) })
		next, latest := 0, Purchase{}
		for _, b := range calls {
			for ; next < len(returns) && returns[next].Return < b.Call; next++ {
				if returns[next].Token > latest.Token {
					latest = returns[next]
				}
			}
			if b.Token <= latest.Token {
				note("a later grant has no higher token:\n  %+v\n  %+v", latest, b)
			}
		}
	}
}
