package query

import (
	"fmt"
	"math"
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// Plan is a compiled query. It is immutable and safe for concurrent use.
type Plan struct {
	query     Query // normalised
	key       string
	filter    Filter
	currency  string // folded, that prices are compared in; "" without SortPrice and MaxPrice
	unit      string
	center    geo.Point
	radius    float64 // metres
	placed    bool    // center means something
	bounded   bool    // radius means something
	mixedSeed uint64
}

// Query gives the normalised query: defaults applied, lists sorted and without
// repetition. Compiling it gives the same plan. The caller owns the result, a deep copy:
// not a thing for loops.
func (p *Plan) Query() Query { return p.query.clone() }

// Key is the canonical key of the whole question with its defaults: see AppendKey.
func (p *Plan) Key() string { return p.key }

// Type is the service type asked for.
func (p *Plan) Type() string { return p.query.Type }

// Subtype is the subtype asked for, or "" for any.
func (p *Plan) Subtype() string { return p.query.Subtype }

// Sort is the order asked for, never SortDefault.
func (p *Plan) Sort() Sort { return p.query.Sort }

// Explain reports whether the asker wants to know why.
func (p *Plan) Explain() bool { return p.query.Explain }

// ExactTotal reports whether the asker wants all matches counted.
func (p *Plan) ExactTotal() bool { return p.query.ExactTotal }

// Limit is the most results asked for, at least 1.
func (p *Plan) Limit() int { return p.query.Limit }

// Center is the place asked about, if there is one.
func (p *Plan) Center() (geo.Point, bool) { return p.center, p.placed }

// Disc is the area asked about, if there is a place with a radius.
func (p *Plan) Disc() (geo.Disc, bool) {
	return geo.Disc{Center: p.center, Radius: p.radius}, p.bounded
}

// Filter gives the checks as flat values. The caller must not modify it.
func (p *Plan) Filter() *Filter { return &p.filter }

// Cells gives the cells that together hold every match: those of one geohash length that
// cover the disc, at most maxCells of them, or the global one.
func (p *Plan) Cells(maxCells int) []records.CellKey {
	subtype := p.query.Subtype
	if subtype == "" {
		subtype = records.AnySubtype
	}
	cover := []geo.Cell{geo.Global}
	if disc, ok := p.Disc(); ok {
		cover = geo.Cover(disc, maxCells)
	}
	keys := make([]records.CellKey, len(cover))
	for i, cell := range cover {
		keys[i] = records.CellKey{Type: p.query.Type, Subtype: subtype, Cell: cell}
	}
	return keys
}

// Match reports whether a record is an answer: all filters, claimed health and exclusion
// included. It does not look at expiry, nor at what this peer measured. A tombstone
// matches nothing.
func (p *Plan) Match(r *records.Record) bool {
	q, f := &p.query, &p.filter
	return r.Type() == q.Type &&
		(q.Subtype == "" || r.Subtype() == q.Subtype) &&
		!r.Withdrawn() &&
		f.passProvider(r.Name().Provider) &&
		f.Pass(r.Facts()) &&
		p.inDisc(r.Facts())
}

// Reject says why a record does not match, in one sentence that names the filter, what
// the record states and what was asked for; "" exactly when Match is true.
func (p *Plan) Reject(r *records.Record) string {
	q, f := &p.query, &p.filter
	provider := r.Name().Provider
	switch {
	case r.Type() != q.Type:
		return fmt.Sprintf("type: %s stated, %s asked for", r.Type(), q.Type)
	case q.Subtype != "" && r.Subtype() != q.Subtype:
		return fmt.Sprintf("subtype: %s stated, %s asked for", orNothing(r.Subtype()), q.Subtype)
	case r.Withdrawn():
		return "withdrawn by its provider"
	case f.Provider != "" && provider != f.Provider:
		return fmt.Sprintf("provider_id: of %s, %s asked for", provider, f.Provider)
	case !f.passProvider(provider):
		return fmt.Sprintf("exclude_providers: %s was found unreachable", provider)
	}
	if why := f.reject(r.Facts()); why != "" {
		return why
	}
	return p.rejectPlace(r.Facts())
}

func (p *Plan) rejectPlace(x *records.Facts) string {
	if p.inDisc(x) {
		return ""
	}
	place, ok := x.Place()
	if !ok {
		return fmt.Sprintf("near: no place stated, at most %v km away asked for", p.radius/1000)
	}
	return fmt.Sprintf("near: %.3f km away, at most %v asked for", geo.Distance(p.center, place)/1000, p.radius/1000)
}

// passProvider checks whose record it is.
func (f *Filter) passProvider(id peer.ID) bool {
	if f.Provider != "" && id != f.Provider {
		return false
	}
	_, excluded := slices.BinarySearch(f.Exclude, id)
	return !excluded
}

func (p *Plan) inDisc(x *records.Facts) bool {
	if !p.bounded {
		return true
	}
	place, ok := x.Place()
	return ok && geo.Distance(p.center, place) <= p.radius
}

// Distance gives the great-circle distance in metres between the place asked about and
// the record's, if both are known.
func (p *Plan) Distance(r *records.Record) (metres float64, ok bool) {
	return p.distance(r.Facts())
}

func (p *Plan) distance(x *records.Facts) (metres float64, ok bool) {
	place, ok := x.Place()
	if !ok || !p.placed {
		return 0, false
	}
	return geo.Distance(p.center, place), true
}

// Value is where a record stands in the order asked for: smaller is better, and +Inf is
// unknown. By order it is the distance in metres, the price, the uptime negated, the
// response time in milliseconds, the score negated, or a number in [0, 1) that depends on
// the seed and the record's name alone. It is never NaN, and the same on every peer.
func (p *Plan) Value(r *records.Record) float64 {
	x := r.Facts()
	switch p.query.Sort {
	case SortDistance:
		metres, ok := p.distance(x)
		return rankOrInf(metres, ok)
	case SortPrice:
		return rankOrInf(x.Price, pricedIn(x, p.currency, p.unit))
	case SortUptime:
		return rankOrInf(-x.Uptime, x.Has(records.KnownUptime))
	case SortResponseTime:
		return rankOrInf(float64(x.ResponseMS), x.Has(records.KnownResponseTime))
	case SortRandom:
		return random(r.Name(), p.mixedSeed)
	default:
		return 0 - p.score(x).total()
	}
}

// rankOrInf is a rank value, or that of the unknown.
func rankOrInf(value float64, ok bool) float64 {
	if !ok || math.IsNaN(value) {
		return math.Inf(1)
	}
	return value
}

// The parameters of FNV-1a with 64 bits (G. Fowler, L. C. Noll, P. Vo).
const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

// random places a name in the permutation of the seed: the name's FNV-1a hash, mixed with
// the seed so that a provider who chooses ids cannot prefer one without knowing it.
func random(n records.Name, mixedSeed uint64) float64 {
	h := uint64(fnvOffset)
	for i := range len(n.Provider) {
		h = (h ^ uint64(n.Provider[i])) * fnvPrime
	}
	h = (h ^ uint64(len(n.Provider))) * fnvPrime // ends the provider: "a"+"bc" is not "ab"+"c"
	for i := range len(n.ID) {
		h = (h ^ uint64(n.ID[i])) * fnvPrime
	}
	const bits = 53 // of a float64's significand
	return float64(mix(h^mixedSeed)>>(64-bits)) / (1 << bits)
}

// mix is the output function of SplitMix64: a bijection in which every bit of x affects
// every bit of the result (G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom
// Number Generators", 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
