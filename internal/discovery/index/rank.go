package index

import (
	"cmp"
	"math"
	"slices"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// order is how a lower bound of a rank value is found in columns.
type order uint8

const (
	byValue order = iota // it is not: every match is valued
	byChord
	byPrice
	byUptime
	byResponse
	byScore
)

func orderOf(s query.Sort) order {
	switch s {
	case query.SortDistance:
		return byChord
	case query.SortPrice:
		return byPrice
	case query.SortUptime:
		return byUptime
	case query.SortResponseTime:
		return byResponse
	case query.SortScore:
		return byScore
	default:
		return byValue
	}
}

// ranker keeps the best of the matches offered: as many as asked for and one more, whose
// value is Found.Next. Columns give a floor of each match's value; a batch of matches is
// valued by rising floor, and only as far as floors are below the worst value kept.
type ranker struct {
	plan  *query.Plan
	order order
	keep  int
	best  []query.Hit // best first, at most keep
	worst float64     // no match with a floor above it can be among the best

	facts records.Facts // scratch of scoreBound

	touched records.Known // what touch read; nobody looks at it

	batch  [256]candidate
	queued int
}

// candidate is a match that has not been valued. Its floor is in the terms of the order:
// a squared chord, or a rank value.
type candidate struct {
	lower  float64
	record *records.Record
}

func (k *ranker) begin(p *query.Plan, s query.Sort) {
	k.plan, k.order, k.keep = p, orderOf(s), p.Limit()+1
	k.best, k.worst, k.queued = k.best[:0], math.Inf(1), 0
}

// lowerBound gives the floor of a row at a squared chord from the place asked about.
func (k *ranker) lowerBound(p *part, row int, chordSq float64) float64 {
	switch k.order {
	case byChord:
		if chordSq == chordSq {
			return chordSq
		}
		return math.Inf(1) // no place
	case byPrice:
		return float64(p.lower[row].price)
	case byUptime:
		return float64(p.lower[row].uptime)
	case byResponse:
		return float64(p.lower[row].response)
	case byScore:
		return k.scoreBound(&p.lower[row])
	default:
		return math.Inf(-1)
	}
}

// scoreBound is the value of a record with the best that a row's may have, right at the
// place asked about and without errors.
func (k *ranker) scoreBound(f *lowerBounds) float64 {
	k.facts.Known = records.KnownErrorRate
	if !unknown(f.price) {
		k.facts.Known |= records.KnownPrice
		k.facts.Price = float64(f.price)
	}
	if !unknown(f.uptime) {
		k.facts.Known |= records.KnownUptime
		k.facts.Uptime = -float64(f.uptime)
	}
	if !unknown(f.response) {
		k.facts.Known |= records.KnownResponseTime
		k.facts.ResponseMS = uint64(f.response)
	}
	value, some := k.plan.Bound(&k.facts, geo.Global.Box())
	if !some {
		return math.Inf(-1) // impossible of a match
	}
	return value
}

func unknown(floor float32) bool { return floor > math.MaxFloat32 }

// offer takes a match.
func (k *ranker) offer(floor float64, r *records.Record) {
	if floor > k.worst {
		return
	}
	if k.queued == len(k.batch) {
		k.settle()
	}
	k.batch[k.queued] = candidate{lower: floor, record: r}
	k.queued++
}

// settle values what is queued.
func (k *ranker) settle() {
	queued := k.batch[:k.queued]
	if first := k.keep + spare; k.order != byValue && k.queued > first {
		lowest(queued, first)
		k.value(queued[:first])
		rest := queued[first:first]
		for _, c := range queued[first:] {
			if c.lower <= k.worst {
				rest = append(rest, c)
			}
		}
		k.value(rest)
	} else {
		k.value(queued)
	}
	clear(queued)
	k.queued = 0
}

// spare is how many candidates more than asked for are valued at first.
const spare = 1

// value values candidates by rising floor, as far as floors are low enough.
func (k *ranker) value(list []candidate) {
	if k.order != byValue {
		slices.SortFunc(list, func(a, b candidate) int { return cmp.Compare(a.lower, b.lower) })
	}
	k.touch(list)
	for _, c := range list {
		if c.lower > k.worst {
			break
		}
		k.rank(query.Hit{Record: c.record, Value: k.plan.Value(c.record)})
	}
}

// touch reads from the records that will be valued. The reads do not depend on one
// another, so that the processor waits for memory once rather than once for each.
func (k *ranker) touch(list []candidate) {
	for _, c := range list[:min(len(list), k.keep+spare)] {
		k.touched |= c.record.Facts().Known
	}
}

// lowest moves the n candidates with the lowest floors to the front, in any order (C. A.
// R. Hoare, "Algorithm 65: Find", CACM 4, 1961).
func lowest(list []candidate, n int) {
	for low, high := 0, len(list)-1; low < high; {
		pivot := list[(low+high)/2].lower
		i, j := low, high
		for i <= j {
			for list[i].lower < pivot {
				i++
			}
			for pivot < list[j].lower {
				j--
			}
			if i <= j {
				list[i], list[j] = list[j], list[i]
				i++
				j--
			}
		}
		switch {
		case n <= j:
			high = j
		case n >= i:
			low = i
		default:
			return
		}
	}
}

// rank puts a hit in its place among the best.
func (k *ranker) rank(h query.Hit) {
	n := len(k.best)
	if n == k.keep {
		if h.Compare(k.best[n-1]) >= 0 {
			return
		}
		n--
		k.best = k.best[:n]
	}
	at := n
	if n > 0 && h.Compare(k.best[n-1]) < 0 {
		at, _ = slices.BinarySearchFunc(k.best, h, query.Hit.Compare)
	}
	k.best = slices.Insert(k.best, at, h)
	if len(k.best) == k.keep {
		k.worst = k.upperBound(k.best[k.keep-1].Value)
	}
}

// upperBound is the greatest floor of a match with a value.
func (k *ranker) upperBound(value float64) float64 {
	if k.order != byChord || math.IsInf(value, 1) {
		return value
	}
	return square(geo.MetersToChord(value) + chordSlack)
}

// full reports whether there are as many hits as can be kept.
func (k *ranker) full() bool { return len(k.best) == k.keep }

// finish gives the best, best first. They are valid until release.
func (k *ranker) finish() []query.Hit {
	k.settle()
	return k.best
}

// release lets go of all records.
func (k *ranker) release() {
	clear(k.best)
	k.plan, k.best = nil, k.best[:0]
}
