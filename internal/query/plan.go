package query

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// Plan is a compiled query. It is immutable and safe for concurrent use.
type Plan struct {
	query     query.Query // normalised
	key       string
	filter    Filter
	columns   Filter // filter without the checks that need more than Facts
	where     tests
	currency  string // of price comparisons, folded; "" without SortPrice and MaxPrice
	unit      string
	center    geo.Point
	radius    float64 // metres
	placed    bool    // center is valid
	bounded   bool    // radius is valid
	mixedSeed uint64
	after     position  // with query.After: only later positions match
	shown     int       // see Window; 0: the limit
	words     [][]Words // see wordsFor
}

// Query returns the normalised query: defaults applied, lists sorted and distinct. Compiling it
// yields an equal plan. The result is a deep copy, too slow for loops.
func (p *Plan) Query() query.Query { return cloneQuery(&p.query) }

// Key returns the canonical key of the query with its defaults; see AppendKey.
func (p *Plan) Key() string { return p.key }

// Type returns the service type.
func (p *Plan) Type() string { return p.query.Type }

// Subtype returns the subtype, or "" for any.
func (p *Plan) Subtype() string { return p.query.Subtype }

// Sort returns the order, never SortDefault.
func (p *Plan) Sort() query.Sort { return p.query.Sort }

// Explain reports whether the query asks for explanations.
func (p *Plan) Explain() bool { return p.query.Explain }

// ExactTotal reports whether the query asks for a count of all matches.
func (p *Plan) ExactTotal() bool { return p.query.ExactTotal }

// AnyHealth reports whether the plan shows offers that do not serve, too.
func (p *Plan) AnyHealth() bool { return p.query.Health == query.HealthAny }

// Domain returns Query.Domain.
func (p *Plan) Domain() string { return p.query.Domain }

// Limit returns the largest number of results, at least 1.
func (p *Plan) Limit() int { return p.query.Limit }

// Center returns the query's place, if any.
func (p *Plan) Center() (geo.Point, bool) { return p.center, p.placed }

// Disc returns the query's area, if it has a place with a radius.
func (p *Plan) Disc() (geo.Disc, bool) {
	return geo.Disc{Center: p.center, Radius: p.radius}, p.bounded
}

// Filter returns checks as flat values, which every match passes. The caller must not modify them.
func (p *Plan) Filter() *Filter { return &p.columns }

// Cells returns cells that together contain every match: the cell of the only provider asked for, at
// most maxCells cells of one geohash length that cover the disc, or the global cell.
func (p *Plan) Cells(maxCells int) []records.CellKey {
	if p.filter.Provider != "" {
		return []records.CellKey{records.ProviderCell(p.filter.Provider)}
	}
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

// Match reports whether a record passes all filters, claimed health included. It
// ignores expiry and this peer's measurements. A tombstone never matches, nor does a record that
// needs features of a later version.
func (p *Plan) Match(r *records.Record) bool {
	q, f := &p.query, &p.filter
	return r.Type() == q.Type &&
		(q.Subtype == "" || r.Subtype() == q.Subtype) &&
		!r.Withdrawn() &&
		r.Needs() == "" &&
		(f.Provider == "" || r.Name().Provider == f.Provider) &&
		p.columns.Pass(r.Facts()) && // before the reading of signed bytes
		(p.query.Volume == nil || f.Pass(factsFor(p, r))) &&
		p.inDisc(r.Facts()) &&
		isAfter(p, r) &&
		p.where.pass(r)
}

// Beyond reports whether a record may match but needs features that this version lacks, so that
// only its core is known: type, subtype, provider and place.
func (p *Plan) Beyond(r *records.Record) bool {
	q := &p.query
	return r.Needs() != "" &&
		r.Type() == q.Type &&
		(q.Subtype == "" || r.Subtype() == q.Subtype) &&
		(p.filter.Provider == "" || r.Name().Provider == p.filter.Provider) &&
		p.inDisc(r.Facts())
}

// Reject explains in one sentence why a record does not match: the filter, the record's value
// and the limit. It returns "" exactly if Match is true.
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
	case r.Needs() != "":
		return "critical: needs features that this version lacks: " + r.Needs()
	case r.Paused() != nil && !f.Statuses.Has(pb.HealthStatus_UNHEALTHY):
		return r.Paused().Reason()
	case f.Provider != "" && provider != f.Provider:
		return fmt.Sprintf("provider_id: of %s, %s asked for", provider, f.Provider)
	}
	if !isAfter(p, r) {
		return fmt.Sprintf("after: on an earlier page, which ended at %s", q.After)
	}
	return cmp.Or(p.where.reject(r), f.reject(factsFor(p, r)), p.rejectPlace(r.Facts()))
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

func (p *Plan) inDisc(x *records.Facts) bool {
	if !p.bounded {
		return true
	}
	place, ok := x.Place()
	return ok && geo.Distance(p.center, place) <= p.radius
}

// Distance returns the great-circle distance in metres between the query's place and the
// record's, if both are known.
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

// Value ranks a record by its facts: smaller is better, and +Inf means unknown. Depending on the order it is
// the distance in metres, the price, the negated uptime, the response time in milliseconds, the
// negated score, or a number in [0, 1): derived from the record's name and the seed for SortRandom, from its place and name for
// SortStable, and from the name alone where no fact orders: see byName. Value is never NaN and equal on every peer.
func (p *Plan) Value(r *records.Record) float64 {
	if p.byName() {
		const below = 64 - significand
		return float64(mix(hash(r.Name()))>>below) / (1 << significand)
	}
	x := factsFor(p, r)
	switch p.query.Sort {
	case query.SortDistance:
		metres, ok := p.distance(x)
		return rankOrInf(metres, ok)
	case query.SortPrice:
		return rankOrInf(x.Price, pricedIn(x, p.currency, p.unit))
	case query.SortUptime:
		return rankOrInf(-x.Uptime, x.Has(records.KnownUptime))
	case query.SortResponseTime:
		return rankOrInf(float64(x.ResponseMS), x.Has(records.KnownResponseTime))
	case query.SortRandom:
		return random(hash(r.Name()), p.mixedSeed)
	case query.SortStable:
		return positionOf(r).value()
	default:
		return 0 - p.score(x).total()
	}
}

// byName reports whether the plan has no facts to order by: it asks for measurements, and no price or place counts.
func (p *Plan) byName() bool {
	return p.Judged() && (p.query.Sort != query.SortScore || !p.placed && p.query.MaxPrice == nil)
}

// rankOrInf returns a known value, or +Inf.
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

// random places the hash of a name in the permutation of a seed.
func random(hash, mixedSeed uint64) float64 {
	return float64(mix(hash^mixedSeed)>>(64-significand)) / (1 << significand)
}

// significand is the number of bits of a float64's significand.
const significand = 53

// hash is FNV-1a of a name.
func hash(n records.Name) uint64 {
	h := uint64(fnvOffset)
	for i := range len(n.Provider) {
		h = (h ^ uint64(n.Provider[i])) * fnvPrime
	}
	h = (h ^ uint64(len(n.Provider))) * fnvPrime // separates provider and id: "a"+"bc" differs from "ab"+"c"
	for i := range len(n.ID) {
		h = (h ^ uint64(n.ID[i])) * fnvPrime
	}
	return h
}

// mix is the output function of SplitMix64, a bijection: every bit of x affects every bit of the
// result (G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Pages. In SortStable records stand by place, then by name, so that a page is in few cells. A record that is there during all pages, and does
// not move to another place, is on exactly one of them, whatever is added, changed or withdrawn meanwhile.

// Next returns the Answer.Next for the results of a plan: After the last one, unless the page has room.
func (p *Plan) Next(results []query.Result) string {
	if n := len(results); p.query.Sort == query.SortStable && n > 0 && n == p.query.Limit {
		return After(results[n-1].Record)
	}
	return ""
}

// After returns the Query.After for the records behind one.
func After(r *records.Record) string { return positionOf(r).String() }

func validateAfter(q *query.Query) error {
	switch {
	case q.After == "":
		return nil
	case q.Sort != query.SortStable:
		return fault.Invalidf("after", clip(q.After), "needs sort=stable: in other orders a changed record moves between pages")
	case parsePosition(q.After) == position{}:
		return fault.Invalidf("after", clip(q.After), "must be the next of an answer")
	}
	return nil
}

// placeLen is the length of the cells in positions: with it a position has room in a significand.
const placeLen = 8

// position is where a record stands in SortStable.
type position struct {
	place uint64 // 0 without a place, else 1 + the number of its cell of placeLen
	name  records.Name
}

func positionOf(r *records.Record) position {
	at, placed := r.Facts().Place()
	if !placed {
		return position{name: r.Name()}
	}
	return position{placeNumber(geo.Code(at)), r.Name()}
}

// placeNumber returns position.place for a geo.Code. Those of the places of a cell lie between those of its geo.Cell.Codes.
func placeNumber(code uint64) uint64 {
	const beneath = 5 * (geo.MaxCellLen - placeLen)
	return 1 + code>>beneath
}

// String is CELL/PROVIDER/ID, which callers pass on as it is.
func (a position) String() string {
	cell := geo.Global
	if a.place > 0 {
		cell = geo.CellAt(a.place-1, placeLen)
	}
	return string(cell) + "/" + a.name.String()
}

// parsePosition reads a position, or returns the zero position.
func parsePosition(s string) position {
	k, err := records.ParseKey(records.Namespace + "/any/" + records.AnySubtype + "/" + s)
	switch {
	case err != nil:
	case k.Cell == geo.Global:
		return position{name: k.Name}
	case k.Cell.Len() == placeLen:
		first, _ := k.Cell.Codes()
		return position{placeNumber(first), k.Name}
	}
	return position{}
}

func (a position) compare(b position) int {
	return cmp.Or(cmp.Compare(a.place, b.place), a.name.Compare(b.name))
}

// isAfter reports whether a record is on the page of a plan or a later one.
func isAfter(p *Plan, r *records.Record) bool {
	return p.query.After == "" || positionOf(r).compare(p.after) > 0
}

// ed25519Head is the number of bytes with which all ids of Ed25519 keys begin: see docs/wire.md.
const ed25519Head = 6

// value maps a position to [0, 1) in its order: the place, and the first bits of the provider. Positions with one value differ in their names, by
// which equal values of every order stand.
func (a position) value() float64 {
	const bits = 12 // beside the 41 of a place
	var b [2]byte
	copy(b[:], a.name.Provider[min(ed25519Head, len(a.name.Provider)):])
	return float64(a.place<<bits|uint64(binary.BigEndian.Uint16(b[:])>>(16-bits))) / (1 << significand)
}
