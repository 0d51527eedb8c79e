package query

import (
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// Bound returns a lower bound on the Value of every match in a set of records. best holds, for
// each value separately, the best value that any record of the set states. within contains all
// their places. best.Known marks the values stated by some record. Its price, if known, is in
// the plan's currency and unit. Bound ignores the place and the texts of best.
//
// The bound is exact to the last bit, because a better value never lowers a score, and rounding
// keeps order. +Inf means that the order's value is unknown for every match. some is false if
// the set cannot contain a match.
func (p *Plan) Bound(best *records.Facts, within geo.Box) (value float64, some bool) {
	f := &p.filter
	const need = records.KnownPrice | records.KnownUptime | records.KnownErrorRate |
		records.KnownCPU | records.KnownMemory | records.KnownGPU | records.KnownStorage | records.KnownBandwidth
	for _, m := range f.minima(best) {
		if m.stated < m.least {
			return math.Inf(1), false
		}
	}
	switch {
	case p.bounded && !geo.Disc{Center: p.center, Radius: p.radius}.Intersects(within),
		f.Need&need&^best.Known != 0,
		f.Need&records.KnownPrice != 0 && best.Price > f.MaxPrice,
		f.Need&records.KnownUptime != 0 && best.Uptime < f.MinUptime,
		f.Need&records.KnownErrorRate != 0 && best.ErrorRate > f.MaxErrorRate:
		return math.Inf(1), false
	}
	return p.bound(best, within), true
}

func (p *Plan) bound(best *records.Facts, within geo.Box) float64 {
	switch p.query.Sort {
	case SortDistance:
		return geo.MinDistance(p.center, within)
	case SortPrice:
		return rankOrInf(best.Price, best.Has(records.KnownPrice))
	case SortUptime:
		return rankOrInf(-best.Uptime, best.Has(records.KnownUptime))
	case SortResponseTime:
		return rankOrInf(float64(best.ResponseMS), best.Has(records.KnownResponseTime))
	case SortRandom, SortStable:
		return 0
	default:
		x := *best
		x.Known &^= records.KnownPlace
		x.Currency, x.PriceUnit = p.currency, p.unit
		s := p.score(&x)
		if p.placed {
			s.location = pointsFor(locationPoints, remaining(geo.MinDistance(p.center, within), p.reach()))
		}
		return 0 - s.total()
	}
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
// plan has the tokens that Plan.MayMatch asks for.
func TokensOf(r *records.Record) []uint64 { return appendTokens(nil, r.Payload(), path{}, 0) }

// appendTokens adds the tokens of the message at a path, depth numbers long. A repeated single field adds more than its last value,
// which harms nobody.
func appendTokens(dst []uint64, b []byte, at path, depth int) []uint64 {
	for len(b) > 0 {
		number, kind, value, rest := cutField(b)
		if b = rest; kind != protowire.BytesType {
			continue
		}
		switch at[depth] = number; {
		case at == attribute():
			key, v := readEntry(value.bytes)
			dst = append(dst, token(at, false, string(key), string(v.bytes)))
		case tokened(at):
			text := Fold(string(value.bytes))
			dst = append(dst, token(at, false, text))
			for n := 1; at == gpuModel() && n <= min(len(text), maxTokenPrefix); n++ {
				dst = append(dst, token(at, true, text[:n]))
			}
		case number >= 3 && number <= 5 && depth == 0, at[0] == 4 && depth < 3:
			dst = appendTokens(dst, value.bytes, at, depth+1)
		}
	}
	return dst
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
