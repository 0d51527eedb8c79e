package index

import (
	"cmp"
	"math"
	"slices"

	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// order selects the column with a lower bound of the rank value.
type order uint8

const (
	byValue order = iota // no column: the plan values every match
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

// ranker keeps the best matches: the hits asked for plus one more, whose value becomes
// Found.Next. Columns give a lower bound of each match's value. A batch of matches is valued in
// ascending order of the bounds, down to the worst value kept.
type ranker struct {
	plan  *queries.Plan
	order order
	keep  int
	best  []queries.Hit // best first, at most keep
	moved []queries.Hit // scratch of rank
	worst float64       // matches with a greater lower bound cannot reach best

	spreads bool // the plan does

	facts records.Facts // scratch of scoreBound

	touched records.Known // result of touch, never read

	batch  [256]candidate
	queued int
}

// candidate is a match without a value yet. Its lower bound is a squared chord or a rank value,
// depending on the order.
type candidate struct {
	lower  float64
	record *records.Record
}

func (k *ranker) begin(p *queries.Plan, s query.Sort) {
	k.plan, k.order, k.keep = p, orderOf(s), p.Limit()+1
	if p.Filter().Tiered && (k.order == byPrice || k.order == byScore) || p.Judged() && p.Sort() != query.SortScore {
		k.order = byValue // the column has base prices, or claims
	}
	k.spreads = p.Spreads()
	k.best, k.worst, k.queued = k.best[:0], math.Inf(1), 0
}

// lowerBound returns the lower bound of a row at a squared chord from the place asked about.
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

// scoreBound values a record with the row's lower bounds, no errors, and a distance of zero.
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
	return k.plan.ScoreBound(k.facts)
}

func unknown(floor float32) bool { return floor > math.MaxFloat32 }

// offer adds a match.
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

// settle values the queued candidates.
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

// spare is the number of extra candidates in the first group.
const spare = 1

// value values candidates in ascending order of their bounds, and stops at the first bound above
// worst.
func (k *ranker) value(list []candidate) {
	if k.order != byValue {
		slices.SortFunc(list, func(a, b candidate) int { return cmp.Compare(a.lower, b.lower) })
	}
	k.touch(list)
	for _, c := range list {
		if c.lower > k.worst {
			break
		}
		k.rank(k.plan.Hit(c.record))
	}
}

// touch reads from the records that value reads next. The reads are independent, so that the
// processor waits for memory once instead of once per record.
func (k *ranker) touch(list []candidate) {
	for _, c := range list[:min(len(list), k.keep+spare)] {
		k.touched |= c.record.Facts().Known
	}
}

// lowest moves the n candidates with the lowest bounds to the front, in any order (C. A. R.
// Hoare, "Algorithm 65: Find", CACM 4, 1961).
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

// rank inserts a hit into best. If the plan spreads, the hit takes its place among those of its provider, and one of each later turn
// waits for one more: see queries.Plan.Arrange.
func (k *ranker) rank(h queries.Hit) {
	if n := len(k.best); n == k.keep && h.Compare(k.best[n-1]) >= 0 {
		return
	}
	if k.spreads {
		k.takeTurn(&h)
	}
	if n := len(k.best); n < k.keep || h.Compare(k.best[n-1]) < 0 {
		k.insert(h)
	}
	for _, h := range k.moved {
		k.insert(h)
	}
	k.best = k.best[:min(len(k.best), k.keep)]
	if len(k.best) == k.keep {
		k.worst = k.upperBound(k.best[k.keep-1].Bound())
	}
}

// takeTurn finds the turn of a hit, and takes those out of best that move to a later one.
func (k *ranker) takeTurn(h *queries.Hit) {
	ahead, behind, kept := 0, 0, k.best[:0]
	k.moved = k.moved[:0]
	for _, b := range k.best {
		if b.Class != h.Class || b.Record.Name().Provider != h.Record.Name().Provider {
			kept = append(kept, b)
			continue
		}
		first := *h
		first.Turn = b.Turn // their values decide
		if b.Compare(first) < 0 {
			ahead++
			kept = append(kept, b)
			continue
		}
		behind++
		if turn := queries.TurnOf(ahead + behind); turn != b.Turn {
			b.Turn = turn
			k.moved = append(k.moved, b)
		} else {
			kept = append(kept, b)
		}
	}
	k.best, h.Turn = kept, queries.TurnOf(ahead)
}

// insert puts a hit where it belongs.
func (k *ranker) insert(h queries.Hit) {
	at := len(k.best)
	if at > 0 && h.Compare(k.best[at-1]) < 0 {
		at, _ = slices.BinarySearchFunc(k.best, h, queries.Hit.Compare)
	}
	k.best = slices.Insert(k.best, at, h)
}

// upperBound returns the greatest lower bound of a match with this value.
func (k *ranker) upperBound(value float64) float64 {
	if k.order != byChord || math.IsInf(value, 1) {
		return value
	}
	return square(geo.MetersToChord(value) + chordSlack)
}

// full reports whether best has reached its limit.
func (k *ranker) full() bool { return len(k.best) == k.keep }

// finish returns the best hits, best first. They are valid until release.
func (k *ranker) finish() []queries.Hit {
	k.settle()
	return k.best
}

// release drops all references to records.
func (k *ranker) release() {
	clear(k.best)
	clear(k.moved[:cap(k.moved)])
	k.plan, k.best, k.moved = nil, k.best[:0], k.moved[:0]
}
