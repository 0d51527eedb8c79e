package query

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// Hit is one match with its position among others.
type Hit struct {
	Record  *records.Record
	Value   float64      // Plan.Value, or Plan.Rank at the asking peer; smaller is better; never NaN
	Class   Class        // a greater one stands behind, whatever else
	Turn    int          // of its provider and its network, within the class: see Plan.Arrange
	Network netip.Prefix // address prefix of the endpoint as the asking peer knows it; zero: unknown
}

// Class says what a match offers to call. Facts of the record decide at keepers; the asking peer knows more.
type Class uint8

// The classes.
const (
	Serves   Class = iota // its endpoint answered; for keepers the same as Callable
	Callable              // it has an endpoint that peers can measure, or access by its provider's peer
	Nameless              // nothing to call, or the last check of the asking peer failed
)

// Compare is negative if a ranks before b: by class, turn, value, then record name. Only versions of one
// service are equal.
func (a Hit) Compare(b Hit) int {
	if c := cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(a.Turn, b.Turn), cmp.Compare(a.Value, b.Value)); c != 0 {
		return c
	}
	return a.Record.Name().Compare(b.Record.Name())
}

// TurnOf returns the turn of a match behind n better ones of its provider: it has two before all others had one.
func TurnOf(n int) int { return n / 2 }

// Spreads reports whether the order of the plan puts offers with something to call first, and spreads providers. It does so without
// ClaimsTrust, in the orders in which a provider can choose to be first.
func (p *Plan) Spreads() bool {
	return p.query.Claims != query.ClaimsTrust && p.query.Sort != query.SortRandom && p.query.Sort != query.SortStable
}

// Hit returns a match as facts of the record alone place it, in the first turn.
func (p *Plan) Hit(r *records.Record) Hit {
	h := Hit{Record: r, Value: p.Value(r)}
	if p.Spreads() {
		h.Class = Callable
		if !r.Facts().Has(records.KnownCallable) {
			h.Class = Nameless
		}
	}
	return h
}

// Arrange sorts hits in the order of the plan, whose first Limit are its results. A plan that spreads takes the hits of each class in turns:
// in each turn every provider has its two best that had none yet. Then the hits whose network is known wait in the same way for
// others of other networks. Inside a turn the value decides.
//
// Without networks the order of some hits among more never improves: the first k of a union are among the first k of its parts. So
// keepers send their first ones, and the asking peer, which alone knows networks, arranges what they send.
func (p *Plan) Arrange(hits []Hit) {
	for i := range hits {
		hits[i].Turn = 0
	}
	slices.SortFunc(hits, Hit.Compare)
	if !p.Spreads() {
		return
	}
	type of[T any] struct {
		class Class
		whose T
	}
	providers, networks := make(map[of[peer.ID]]int), make(map[of[netip.Prefix]]int)
	for i := range hits {
		k := of[peer.ID]{hits[i].Class, hits[i].Record.Name().Provider}
		hits[i].Turn = TurnOf(providers[k])
		providers[k]++
	}
	slices.SortFunc(hits, Hit.Compare)
	for i := range hits {
		if k := (of[netip.Prefix]{hits[i].Class, hits[i].Network}); k.whose.IsValid() {
			hits[i].Turn = max(hits[i].Turn, TurnOf(networks[k]))
			networks[k]++
		}
	}
	slices.SortFunc(hits, Hit.Compare)
}

// Worst returns a value with which no further match can be a result: that of the last result, of those in the first turn if the plan
// spreads. It is +Inf for too few of them.
func (p *Plan) Worst(recs []*records.Record) float64 {
	if len(recs) < p.Limit() {
		return math.Inf(1)
	}
	hits := make([]Hit, len(recs))
	for i, r := range recs {
		hits[i] = p.Hit(r)
	}
	p.Arrange(hits)
	return hits[p.Limit()-1].Bound()
}

// Bound returns a value with which no match behind the hit is a result where the hit is none; +Inf if turns decide.
func (a Hit) Bound() float64 {
	if a.Class > Callable || a.Turn > 0 {
		return math.Inf(1)
	}
	return a.Value
}

// Before reports whether a match would stand before the last of some listed ones, so that somebody who lists them has to list it.
func (p *Plan) Before(r *records.Record, listed []*records.Record) bool {
	hits := make([]Hit, 0, len(listed)+1)
	for _, l := range listed {
		hits = append(hits, p.Hit(l))
	}
	hits = append(hits, p.Hit(r))
	p.Arrange(hits)
	return hits[len(hits)-1].Record != r
}
