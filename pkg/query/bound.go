package query

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"math/bits"
	"slices"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// Bound returns a lower bound on the Value of every match in a set of records. best holds, for
// each value separately, the best value that any record of the set states. place contains all of
// them. best.Known marks the values stated by some record. Its price, if known, is in
// the plan's currency and unit. lots are those of all names. Bound ignores the place and the texts of best.
//
// The bound is exact to the last bit, because a better value never lowers a score, and rounding
// keeps order. +Inf means that the order's value is unknown for every match. some is false if
// the set cannot contain a match.
func (p *Plan) Bound(best *records.Facts, lots *Lots, place geo.Cell) (value float64, some bool) {
	f := &p.filter
	const need = records.KnownPrice | records.KnownUptime | records.KnownErrorRate |
		records.KnownCPU | records.KnownMemory | records.KnownGPU | records.KnownStorage | records.KnownBandwidth
	for _, m := range f.minima(best) {
		if m.stated < m.least {
			return math.Inf(1), false
		}
	}
	if p.query.After != "" {
		if _, last := place.Codes(); placeNumber(last) < p.after.place {
			return math.Inf(1), false
		}
	}
	switch {
	case p.bounded && !geo.Disc{Center: p.center, Radius: p.radius}.Intersects(place.Box()),
		f.Need&need&^best.Known != 0,
		f.Need&records.KnownPrice != 0 && best.Price > f.MaxPrice,
		f.Need&records.KnownUptime != 0 && best.Uptime < f.MinUptime,
		f.Need&records.KnownErrorRate != 0 && best.ErrorRate > f.MaxErrorRate:
		return math.Inf(1), false
	}
	return p.bound(best, lots, place), true
}

func (p *Plan) bound(best *records.Facts, lots *Lots, place geo.Cell) float64 {
	if p.byName() {
		return 0
	}
	switch p.query.Sort {
	case SortDistance:
		return geo.MinDistance(p.center, place.Box())
	case SortPrice:
		return rankOrInf(best.Price, best.Has(records.KnownPrice))
	case SortUptime:
		return rankOrInf(-best.Uptime, best.Has(records.KnownUptime))
	case SortResponseTime:
		return rankOrInf(float64(best.ResponseMS), best.Has(records.KnownResponseTime))
	case SortRandom:
		_, turn, some := lots.first(p)
		return rankOrInf(lotValue(turn, 0), some)
	case SortStable:
		if place == geo.Global { // which alone has the records without a place
			return 0
		}
		first, _ := place.Codes()
		return position{place: placeNumber(first)}.value()
	default:
		x := *best
		x.Known &^= records.KnownPlace
		x.Currency, x.PriceUnit = p.currency, p.unit
		s := p.score(&x)
		if p.placed {
			s.location = pointsFor(locationPoints, remaining(geo.MinDistance(p.center, place.Box()), p.reach()))
		}
		return 0 - s.total()
	}
}

// Lots is a set of lots of names: bit n%8 of byte n/8 for lot n. Those of a set of records bound its values in SortRandom.
type Lots [lots / 8]byte

// Add adds the lot of a name.
func (l *Lots) Add(n records.Name) { l.Set(lotOf(hash(n))) }

// Set adds a lot. It reports false for a number that no lot has.
func (l *Lots) Set(lot uint16) bool {
	if lot >= lots {
		return false
	}
	l[lot/8] |= 1 << (lot % 8)
	return true
}

// All returns the lots in ascending order.
func (l *Lots) All() iter.Seq[uint16] {
	return func(yield func(uint16) bool) {
		for i, b := range l {
			for ; b != 0; b &= b - 1 {
				if !yield(uint16(8*i + bits.TrailingZeros8(b))) {
					return
				}
			}
		}
	}
}

// First returns the set of the lot that a plan in SortRandom draws first. It bounds like the whole set. It is empty in other orders.
func (l *Lots) First(p *Plan) (first Lots) {
	if p.query.Sort == SortRandom {
		if lot, _, some := l.first(p); some {
			first.Set(lot)
		}
	}
	return first
}

// first returns the lot that a plan draws first, and its turn.
func (l *Lots) first(p *Plan) (lot uint16, least uint64, some bool) {
	for _, lot := range p.early { // large sets have one of these
		if l[lot/8]&(1<<(lot%8)) != 0 {
			return lot, turn(lot, p.mixedSeed), true
		}
	}
	for n := range l.All() {
		if t := turn(n, p.mixedSeed); !some || t < least {
			lot, least, some = n, t, true
		}
	}
	return lot, least, some
}

// earlyLots returns some 128 of the lots that a seed draws first.
func earlyLots(s Sort, mixedSeed uint64) (early []uint16) {
	if s != SortRandom {
		return nil
	}
	for lot := range uint16(lots) {
		if turn(lot, mixedSeed) < math.MaxUint64/(lots/128) {
			early = append(early, lot)
		}
	}
	slices.SortFunc(early, func(a, b uint16) int { return cmp.Compare(turn(a, mixedSeed), turn(b, mixedSeed)) })
	return early
}

// Prices returns the currency and unit of the plan's price comparisons, both folded, or empty
// strings without any.
func (p *Plan) Prices() (currency, unit string) { return p.currency, p.unit }

// maxTokenPrefix is the longest beginning of a GPU's model that has a token, in bytes.
const maxTokenPrefix = 8

// tokened reports whether the texts of a field have tokens: those that people search for and that many records share.
func tokened(field path) bool {
	switch field {
	case path{3, 7}, path{3, 8}, path{4, 1, 4}, gpuModel(), path{4, 2, 4}, path{4, 3, 2}, path{4, 3, 3}, path{4, 4, 3}, path{4, 4, 4}, path{5, 3}, path{5, 4}:
		return true
	}
	return false
}

func gpuModel() path  { return path{4, 2, 3, 1} }
func attribute() path { return path{3, 8} }

// token hashes a field and a text: FNV-1a of the numbers of the path up to the first 0, that 0, and the folded text, mixed.
// A beginning has 1 after the 0.
func token(field path, begins bool, parts ...string) uint64 {
	h := uint64(fnvOffset)
	add := func(c byte) { h = (h ^ uint64(c)) * fnvPrime }
	for _, n := range field[:slices.Index(field[:], 0)+1] {
		add(byte(n))
	}
	if begins {
		add(1)
	}
	for i, s := range parts {
		if i > 0 {
			add(0)
		}
		for _, c := range []byte(s) {
			add(c)
		}
	}
	return mix(h)
}

// TokensOf returns the tokens of a record: hashes of its texts in the fields that summaries of many records know. A match of a
// plan has the tokens that Plan.MayMatch asks for. A repeated single field adds more than its last value, which harms nobody.
func TokensOf(r *records.Record) (tokens []uint64) {
	forTexts(r.Payload(), path{}, 0, func(at path, key, v []byte) {
		switch {
		case at == attribute():
			tokens = append(tokens, token(at, false, string(key), string(v)))
		case tokened(at):
			text := Fold(string(v))
			tokens = append(tokens, token(at, false, text))
			for n := 1; at == gpuModel() && n <= min(len(text), maxTokenPrefix); n++ {
				tokens = append(tokens, token(at, true, text[:n]))
			}
		}
	})
	return tokens
}

// tokensFor returns the tokens that matches of a normalised query have: at least one of each list.
func tokensFor(q *Query) (all [][]uint64) {
	anyOf := func(field path, texts []string) {
		if len(texts) > 0 {
			all = append(all, make([]uint64, len(texts)))
			for i, s := range texts {
				all[len(all)-1][i] = token(field, false, Fold(s))
			}
		}
	}
	anyOf(path{5, 3}, q.Countries)
	anyOf(path{5, 4}, q.Regions)
	for _, key := range slices.Sorted(maps.Keys(q.Attributes)) {
		all = append(all, []uint64{token(attribute(), false, key, q.Attributes[key])})
	}
	for i := range q.Where {
		c := &q.Where[i]
		f, key, _ := fieldNamed(c.Field)
		switch {
		case c.Not, c.OrUnstated, !tokened(f.path):
		case f.keyed && c.Op == OpAny:
			var list []uint64
			for _, v := range c.Values {
				list = append(list, token(f.path, false, key, v))
			}
			all = append(all, list)
		case f.keyed:
		case c.Op == OpAny:
			anyOf(f.path, c.Values)
		case c.Op == OpAll:
			for _, v := range c.Values {
				anyOf(f.path, []string{v})
			}
		case c.Op == OpPrefix && f.path == gpuModel():
			var list []uint64
			for _, v := range c.Values {
				list = append(list, token(f.path, true, v[:min(len(v), maxTokenPrefix)]))
			}
			all = append(all, list)
		}
	}
	return all
}

// MayMatch reports whether a set of records may have a match, by the tokens of all of them. has may report tokens that none has.
func (p *Plan) MayMatch(has func(token uint64) bool) bool {
	return !slices.ContainsFunc(p.tokens, func(list []uint64) bool { return !slices.ContainsFunc(list, has) })
}
