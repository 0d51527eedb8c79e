package index

import (
	"math"
	"slices"
	"sync/atomic"

	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// The measures of a record with one-sided filters.
const (
	gpus = iota
	cpuCores
	memory
	storage
	bandwidth
	errorRate
	price
	uptime
	measures
)

// A word encodes the values of one record for all one-sided filters, so that one subtraction
// compares them: a field of few bits for the claimed status and for each measure. Greater means
// better in every field, and 0 means unknown. The guard bit above each field is clear in words.
// A comparison sets it and subtracts the thresholds: the guard bit survives in exactly the
// fields that reach their threshold (L. Lamport, "Multiple Byte Processing with Full-Word
// Instructions", CACM 18, 1975).
const guards = 1<<2 | 1<<6 | 1<<13 | 1<<20 | 1<<27 | 1<<34 | 1<<41 | 1<<51 | 1<<61

// statusBits is the width of the status, which starts at bit 0.
const statusBits = 2

// field is the position of a measure in a word.
type field struct{ shift, bits uint }

// layout returns the position of every measure.
func layout() [measures]field {
	return [measures]field{{3, 3}, {7, 6}, {14, 6}, {21, 6}, {28, 6}, {35, 6}, {42, 9}, {52, 9}}
}

// reaches returns 1 if every field of word is at least that of thresholds, and 0 otherwise. It
// avoids branches: bit 63 of both is clear.
func reaches(word, thresholds uint64) int {
	short := ^(word | guards - thresholds) & guards
	return int((short - 1) >> 63)
}

// The ranks of claimed statuses in a word.
const (
	statusUnusable = iota
	statusUsable
	statusHealthy
)

func statusRank(s pb.HealthStatus_Status) uint64 {
	switch {
	case s == pb.HealthStatus_HEALTHY:
		return statusHealthy
	case s == pb.HealthStatus_UNHEALTHY, s < 0, s >= 32:
		return statusUnusable
	default:
		return statusUsable
	}
}

// measure is one value, negated where less is better; NaN means unknown.
type measure = float64

// measuresOf returns the measures of a record.
func measuresOf(f *records.Facts) [measures]measure {
	stated := func(k records.Known, v float64) measure {
		if !f.Has(k) {
			return math.NaN()
		}
		return v
	}
	return [measures]measure{
		stated(records.KnownGPU, float64(f.GPUs)),
		stated(records.KnownCPU, float64(f.CPUCores)),
		stated(records.KnownMemory, float64(f.MemoryMB)),
		stated(records.KnownStorage, float64(f.StorageBytes)),
		stated(records.KnownBandwidth, float64(f.Bandwidth)),
		stated(records.KnownErrorRate, -float64(f.ErrorRate)),
		stated(records.KnownPrice, -f.Price),
		stated(records.KnownUptime, f.Uptime),
	}
}

// scale maps the values of each measure to the steps of its field. It is immutable. The zero
// value has one step: correct, but without selectivity.
type scale struct {
	cuts [measures][]float64 // ascending; step 1 lies below the first cut, step n+1 starts at cut n
}

// sampleSize is the approximate number of records for train.
const sampleSize = 2048

// train makes a scale with about equally many of the records per step, or with one value per
// step for few distinct values.
func train(all []*records.Record) *scale {
	var samples [measures][]float64
	for _, r := range all {
		for m, v := range measuresOf(r.Facts()) {
			if !math.IsNaN(v) {
				samples[m] = append(samples[m], v)
			}
		}
	}
	s := new(scale)
	for m, f := range layout() {
		s.cuts[m] = quantiles(samples[m], 1<<f.bits-3) // leaves room for a threshold above the last step
	}
	return s
}

// quantiles returns at most n of the values, ascending and distinct.
func quantiles(values []float64, n int) []float64 {
	slices.Sort(values)
	if distinct := slices.Compact(slices.Clone(values)); len(distinct) <= n {
		return slices.Clip(distinct)
	}
	cuts := make([]float64, n)
	for i := range cuts {
		cuts[i] = values[i*len(values)/n]
	}
	return slices.Compact(cuts)
}

// step returns the field for a value.
func (s *scale) step(m int, v measure) uint64 {
	if math.IsNaN(v) {
		return 0
	}
	// Binary search without branches: the processor would mispredict half of them.
	cuts := s.cuts[m]
	first := 0 // cuts before first are at most v
	for n := len(cuts); n > 0; {
		half := (n + 1) / 2
		first += half * number(cuts[first+half-1] <= v)
		n -= half
	}
	return uint64(first) + 1
}

// word returns the word of a record.
func (s *scale) word(f *records.Facts) uint64 {
	word := statusRank(f.Status)
	place := layout()
	for m, v := range measuresOf(f) {
		word |= s.step(m, v) << place[m].shift
	}
	return word
}

// thresholds express a filter in words and lower bounds. A word below maybe fails. A word that
// reaches sure passes. A word that reaches firm passes if price and uptime are within limits.
type thresholds struct {
	maybe, firm, sure uint64
	limits            lowerBounds // greatest price, and negated uptime
	blind             bool        // words do not decide a part of the filter
}

// thresholds translates the one-sided checks of a filter.
func (s *scale) thresholds(f *queries.Filter) thresholds {
	t := statusThresholds(f.Statuses)
	place := layout()
	for m, b := range boundsOf(f) {
		maybe, sure := s.bound(m, b)
		t.maybe |= maybe << place[m].shift
		t.sure |= sure << place[m].shift
		if m == price || m == uptime {
			sure = maybe
		}
		t.firm |= sure << place[m].shift
		t.blind = t.blind || b.least > math.Inf(-1) && !b.need
	}
	t.limits = lowerBounds{price: roundDown32(f.MaxPrice), uptime: roundDown32(-f.MinUptime)}
	return t
}

// surely reports whether a record with this word and these bounds certainly passes.
func (t *thresholds) surely(word uint64, f lowerBounds) bool {
	// A value lies between its lower bound and the next float32. That is at most the limit's
	// lower bound if the value's own is less.
	return reaches(word, t.sure) == 1 ||
		reaches(word, t.firm) == 1 && below(f.price, t.limits.price) && below(f.uptime, t.limits.uptime)
}

// below reports whether a value certainly is at most a limit, given the lower bounds of both. An
// infinite limit means no limit.
func below(floor, limit float32) bool { return floor < limit || limit > math.MaxFloat32 }

// surelyNot reports whether price or uptime certainly fails.
func (t *thresholds) surelyNot(f lowerBounds) bool {
	return f.price > t.limits.price || f.uptime > t.limits.uptime
}

// statusThresholds translates a set of statuses. Sets that ranks cannot express are blind.
func statusThresholds(set queries.Statuses) thresholds {
	switch set {
	case queries.AllStatuses:
		return thresholds{}
	case queries.AllStatuses &^ (1 << pb.HealthStatus_UNHEALTHY):
		return thresholds{maybe: statusUsable, firm: statusUsable, sure: statusUsable}
	case 1 << pb.HealthStatus_HEALTHY:
		return thresholds{maybe: statusHealthy, firm: statusHealthy, sure: statusHealthy}
	default:
		return thresholds{blind: true}
	}
}

// bound is a lower bound on a measure.
type bound struct {
	least measure // -Inf for no bound
	need  bool    // whether the measure must be known
}

// boundsOf returns the lower bounds of a filter.
func boundsOf(f *queries.Filter) [measures]bound {
	lower := func(k records.Known, least float64) bound {
		return bound{least: least, need: f.Need&k != 0}
	}
	minimum := func(k records.Known, least uint64) bound {
		if least == 0 {
			return lower(k, math.Inf(-1))
		}
		return lower(k, float64(least))
	}
	worst := -float64(f.MaxErrorRate)
	if f.MaxErrorRate == math.MaxUint32 {
		worst = math.Inf(-1)
	}
	return [measures]bound{
		minimum(records.KnownGPU, uint64(f.MinGPU)),
		minimum(records.KnownCPU, uint64(f.MinCPU)),
		minimum(records.KnownMemory, f.MinMemoryMB),
		minimum(records.KnownStorage, f.MinStorageBytes),
		minimum(records.KnownBandwidth, f.MinBandwidth),
		lower(records.KnownErrorRate, worst),
		lower(records.KnownPrice, -f.MaxPrice),
		lower(records.KnownUptime, f.MinUptime),
	}
}

// bound returns the least step that may reach a lower bound, and the least that certainly
// reaches it. They differ for a bound within a step.
func (s *scale) bound(m int, b bound) (maybe, sure uint64) {
	const exact = 1 << 53 // smaller integers keep their order as float64
	switch {
	case !b.need:
		return 0, 0
	case b.least == math.Inf(-1):
		return 1, 1
	}
	step := s.step(m, b.least)
	if step >= 2 && s.cuts[m][step-2] == b.least && math.Abs(b.least) < exact {
		return step, step
	}
	return step, step + 1
}

// lowerBounds are lower bounds of a record's rank values by price, uptime and response time
// (queries.Plan.Value), rounded down; +Inf for unknown values.
type lowerBounds struct{ price, uptime, response float32 }

func lowerBoundsOf(f *records.Facts) lowerBounds {
	stated := func(k records.Known, v float64) float32 {
		if !f.Has(k) {
			return float32(math.Inf(1))
		}
		return roundDown32(v)
	}
	return lowerBounds{
		price:    stated(records.KnownPrice, f.Price),
		uptime:   stated(records.KnownUptime, -f.Uptime),
		response: stated(records.KnownResponseTime, float64(f.ResponseMS)),
	}
}

// roundDown32 returns the greatest float32 that is at most v; -Inf for NaN.
func roundDown32(v float64) float32 {
	f := float32(v)
	switch {
	case float64(f) <= v:
		return f
	case math.IsNaN(v):
		return float32(math.Inf(-1))
	default:
		return math.Nextafter32(f, float32(math.Inf(-1)))
	}
}

// kind holds the values of equality filters on subtype and price.
type kind struct{ subtype, currency, unit string }

// statedPlace is the stated country and region.
type statedPlace struct{ country, region string }

func kindOf(r *records.Record) kind {
	f := r.Facts()
	return kind{subtype: r.Subtype(), currency: f.Currency, unit: f.PriceUnit}
}

func statedPlaceOf(r *records.Record) statedPlace {
	f := r.Facts()
	return statedPlace{country: f.Country, region: f.Region}
}

// fold lower-cases all fields but the subtype.
func (k kind) fold() kind {
	return kind{subtype: k.subtype, currency: queries.Fold(k.currency), unit: queries.Fold(k.unit)}
}

func (l statedPlace) fold() statedPlace {
	return statedPlace{country: queries.Fold(l.country), region: queries.Fold(l.region)}
}

// codec encodes the parts of one period. Only writers extend it, and existing codes never
// change.
type codec struct {
	scale  *scale
	kinds  dictionary[kind]
	places dictionary[statedPlace]
}

// newCodec makes a codec from a sample of the records in some blocks.
func newCodec(blocks []*part) *codec {
	rows := 0
	for _, p := range blocks {
		rows += len(p.records)
	}
	stride := max(1, rows/sampleSize)
	var sample []*records.Record
	for _, p := range blocks {
		for row := stride / 2; row < len(p.records); row += stride {
			sample = append(sample, p.records[row])
		}
	}
	return &codec{scale: train(sample)}
}

// size returns the number of values in the dictionaries.
func (c *codec) size() int { return len(c.kinds.values()) + len(c.places.values()) }

// dictionary numbers values in the order of first use. Values that differ in case get separate
// numbers, so that only new values need folding. The list only grows.
type dictionary[T foldable[T]] struct {
	list atomic.Pointer[[]T] // folded values, for readers
	ids  map[T]uint16        // for writers only
	last T                   // last argument of id; for writers only, as its number in same
	same uint16
}

type foldable[T any] interface {
	comparable
	fold() T
}

// others is the number of all values beyond the dictionary's capacity.
const others = math.MaxUint16

// values returns the values by number.
func (d *dictionary[T]) values() []T {
	if list := d.list.Load(); list != nil {
		return *list
	}
	return nil
}

// id returns the number of v, and assigns one to a new v. The previous row's value needs no
// lookup: most neighbours are equal.
func (d *dictionary[T]) id(v T) uint16 {
	if d.ids == nil {
		d.ids = make(map[T]uint16)
	} else if v == d.last {
		return d.same
	}
	id, ok := d.ids[v]
	if !ok {
		id = d.enter(v)
	}
	d.last, d.same = v, id
	return id
}

// enter assigns a number to v, if the dictionary has room.
func (d *dictionary[T]) enter(v T) uint16 {
	list := d.values()
	if len(list) == others {
		return others
	}
	id := uint16(len(list))
	d.ids[v] = id
	list = append(list, v.fold())
	d.list.Store(&list)
	return id
}
