package index

import (
	"math"
	"slices"
	"sync/atomic"

	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// The measures of a record that filters bound from one side.
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

// A word holds what one-sided filters look at of one record, so that one subtraction
// compares it all: a field of few bits for the claimed status and for each measure. More
// is better in every field, and 0 is unknown. Above each field is a guard bit, clear in
// words: when it is set first and thresholds are subtracted, it survives in exactly the
// fields that reach theirs (L. Lamport, "Multiple Byte Processing with Full-Word
// Instructions", CACM 18, 1975).
const guards = 1<<2 | 1<<6 | 1<<13 | 1<<20 | 1<<27 | 1<<34 | 1<<41 | 1<<51 | 1<<61

// statusBits is the width of the status, which begins at bit 0.
const statusBits = 2

// field is where a measure stands in a word.
type field struct{ shift, bits uint }

// layout is the place of every measure.
func layout() [measures]field {
	return [measures]field{{3, 3}, {7, 6}, {14, 6}, {21, 6}, {28, 6}, {35, 6}, {42, 9}, {52, 9}}
}

// reaches reports, as 1 or 0, whether every field of word is at least that of thresholds.
// It has no branches: bit 63 of both is clear.
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

// measure is one value turned so that more is better; NaN is unknown.
type measure = float64

// measuresOf reads a record.
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

// scale divides the values of each measure into the few steps of its field. It is
// immutable. The zero value has one step, and is right but tells nothing apart.
type scale struct {
	cuts [measures][]float64 // rising; step 1 is below the first, step n+1 begins at cut n
}

// sampleSize is about how many records train a scale.
const sampleSize = 2048

// train makes a scale whose steps hold about equally many of the records, or one value
// each where there are few values.
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
		s.cuts[m] = quantiles(samples[m], 1<<f.bits-3) // so that one above the last step still fits
	}
	return s
}

// quantiles gives at most n of the values, rising and without repetition.
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

// step gives the field of a value.
func (s *scale) step(m int, v measure) uint64 {
	if math.IsNaN(v) {
		return 0
	}
	// A binary search without branches, which would be mispredicted half the time.
	cuts := s.cuts[m]
	first := 0 // cuts before it are not above v
	for n := len(cuts); n > 0; {
		half := (n + 1) / 2
		first += half * number(cuts[first+half-1] <= v)
		n -= half
	}
	return uint64(first) + 1
}

// word gives the word of a record.
func (s *scale) word(f *records.Facts) uint64 {
	word := statusRank(f.Status)
	place := layout()
	for m, v := range measuresOf(f) {
		word |= s.step(m, v) << place[m].shift
	}
	return word
}

// thresholds are a filter in the terms of words and floors. A word below maybe does not
// pass. One that reaches sure does. One that reaches firm does if price and uptime are
// within limits.
type thresholds struct {
	maybe, firm, sure uint64
	limits            lowerBounds // greatest price, and negated uptime
	blind             bool        // the filter looks at something that words do not tell
}

// thresholds translates the one-sided checks of a filter.
func (s *scale) thresholds(f *query.Filter) thresholds {
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

// surely reports whether a record with a word and floors passes.
func (t *thresholds) surely(word uint64, f lowerBounds) bool {
	// A value lies between its floor and the next float32, which is at most the limit's
	// floor when the value's own is less.
	return reaches(word, t.sure) == 1 ||
		reaches(word, t.firm) == 1 && below(f.price, t.limits.price) && below(f.uptime, t.limits.uptime)
}

// below reports whether a value with a floor is surely at most a limit with one; infinite is no limit.
func below(floor, limit float32) bool { return floor < limit || limit > math.MaxFloat32 }

// surelyNot reports whether price or uptime cannot pass.
func (t *thresholds) surelyNot(f lowerBounds) bool {
	return f.price > t.limits.price || f.uptime > t.limits.uptime
}

// statusThresholds translates a set of statuses, if it is one that ranks can tell.
func statusThresholds(set query.Statuses) thresholds {
	switch set {
	case query.AllStatuses:
		return thresholds{}
	case query.AllStatuses &^ (1 << pb.HealthStatus_UNHEALTHY):
		return thresholds{maybe: statusUsable, firm: statusUsable, sure: statusUsable}
	case 1 << pb.HealthStatus_HEALTHY:
		return thresholds{maybe: statusHealthy, firm: statusHealthy, sure: statusHealthy}
	default:
		return thresholds{blind: true}
	}
}

// bound is a lower bound on a measure.
type bound struct {
	least measure // -Inf without one
	need  bool    // the measure must be known
}

// boundsOf reads a filter.
func boundsOf(f *query.Filter) [measures]bound {
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

// bound translates a lower bound into the least step that may reach it and the least that
// surely does. They differ where the bound lies within a step.
func (s *scale) bound(m int, b bound) (maybe, sure uint64) {
	const exact = 1 << 53 // integers below keep their order as float64
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

// lower are lower bounds of a record's rank values by price, uptime and response time
// (query.Plan.Value), rounded down; +Inf where those are unknown whatever is asked.
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

// roundDown32 is the greatest float32 that is not above v; -Inf for NaN.
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

// kind is what subtype and price filters compare by equality.
type kind struct{ subtype, currency, unit string }

// statedPlace is what filters on the stated place compare by equality.
type statedPlace struct{ country, region string }

func kindOf(r *records.Record) kind {
	f := r.Facts()
	return kind{subtype: r.Subtype(), currency: f.Currency, unit: f.PriceUnit}
}

func statedPlaceOf(r *records.Record) statedPlace {
	f := r.Facts()
	return statedPlace{country: f.Country, region: f.Region}
}

// fold gives the form that is compared, which is without case but for the subtype.
func (k kind) fold() kind {
	return kind{subtype: k.subtype, currency: query.Fold(k.currency), unit: query.Fold(k.unit)}
}

func (l statedPlace) fold() statedPlace {
	return statedPlace{country: query.Fold(l.country), region: query.Fold(l.region)}
}

// codec is what parts of one time are encoded with. Writers alone add to it; what it has
// said does not change.
type codec struct {
	scale  *scale
	kinds  dictionary[kind]
	places dictionary[statedPlace]
}

// newCodec makes a codec that suits the records of some blocks.
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

// size is how many values the dictionaries have.
func (c *codec) size() int { return len(c.kinds.values()) + len(c.places.values()) }

// dictionary numbers values in the order of their first use. Values that differ in case
// have numbers of their own, so that only new ones are folded. Its list only grows.
type dictionary[T foldable[T]] struct {
	list atomic.Pointer[[]T] // folded, what readers see
	ids  map[T]uint16        // writers' only
	last T                   // what id was asked about; writers' only, as is its number
	same uint16
}

type foldable[T any] interface {
	comparable
	fold() T
}

// others is the number of all values for which a dictionary has no room.
const others = math.MaxUint16

// values gives the values by number.
func (d *dictionary[T]) values() []T {
	if list := d.list.Load(); list != nil {
		return *list
	}
	return nil
}

// id gives the number of v, a new one for a new v. Where most rows have one value, it is
// that of the row before.
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

// enter gives v a number, if there is room.
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
