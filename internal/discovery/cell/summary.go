package cell

import (
	"cmp"
	"math"
	"slices"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// MaxPrices bounds the pairs of currency and unit in a summary.
const MaxPrices = 8

// Summary describes a set of records: their number and, for each order of a query, a bound that no
// record improves. The zero value describes no records. An unknown value counts as the best
// possible one.
type Summary struct {
	Count      int
	Prices     []Price // sorted by currency and unit, each pair once
	MorePrices bool    // prices in other currencies and units exist, with unknown values
	Beyond     bool    // some records need features of a later version: all their values are unknown

	Known         records.Known // which of the following values at least one record states
	MaxUptime     float64       // percent
	MinErrorRate  uint32        // per 10000 requests
	MinResponseMS uint64
}

// Price is the lowest price in one currency and unit, for any volume, both in the spelling of query.Fold.
type Price struct {
	Currency, Unit string
	Least          float64
}

func (p Price) compare(q Price) int {
	return cmp.Or(cmp.Compare(p.Currency, q.Currency), cmp.Compare(p.Unit, q.Unit))
}

const summarised = records.KnownUptime | records.KnownErrorRate | records.KnownResponseTime

// Add adds a record.
func (s *Summary) Add(r *records.Record) {
	s.Count++
	s.Note(r)
}

// Note adds the values of a record without counting it.
func (s *Summary) Note(r *records.Record) {
	if r.Needs() != "" {
		s.Beyond = true
		return
	}
	x := r.Facts()
	s.Merge(Summary{
		Prices: priceOf(r), Known: x.Known & summarised,
		MaxUptime: x.Uptime, MinErrorRate: x.ErrorRate, MinResponseMS: x.ResponseMS,
	})
}

// priceOf returns the lowest price of a record, tiers included.
func priceOf(r *records.Record) []Price {
	rate, ok := query.LowestRate(r)
	if !ok {
		return nil
	}
	x := r.Facts()
	return []Price{{query.Fold(x.Currency), query.Fold(x.PriceUnit), rate}}
}

// Merge combines two views of one cell: the better values and the larger count. The result is safe
// if one of the views is.
func (s *Summary) Merge(o Summary) {
	s.Count = max(s.Count, o.Count)
	s.improve(o)
}

// Join adds the records of another cell.
func (s *Summary) Join(o Summary) {
	if s.Count > math.MaxInt-o.Count {
		s.Count = math.MaxInt - o.Count
	}
	s.Count += o.Count
	s.improve(o)
}

// improve takes the better values of s and o.
func (s *Summary) improve(o Summary) {
	pick := func(k records.Known, better bool) bool {
		return o.Known&k != 0 && (s.Known&k == 0 || better)
	}
	if pick(records.KnownUptime, o.MaxUptime > s.MaxUptime) {
		s.MaxUptime = o.MaxUptime
	}
	if pick(records.KnownErrorRate, o.MinErrorRate < s.MinErrorRate) {
		s.MinErrorRate = o.MinErrorRate
	}
	if pick(records.KnownResponseTime, o.MinResponseMS < s.MinResponseMS) {
		s.MinResponseMS = o.MinResponseMS
	}
	s.Known |= o.Known & summarised
	s.Beyond = s.Beyond || o.Beyond
	s.improvePrices(o)
}

// improvePrices keeps the lower price of each pair. It drops a pair that either side may lack
// because of MaxPrices: its lowest price is unknown.
func (s *Summary) improvePrices(o Summary) {
	if len(o.Prices) == 0 && !o.MorePrices {
		return
	}
	var all []Price
	for _, p := range s.Prices {
		switch q, ok := o.price(p.Currency, p.Unit); {
		case ok:
			p.Least = min(p.Least, q)
			all = append(all, p)
		case !o.MorePrices:
			all = append(all, p)
		}
	}
	for _, p := range o.Prices {
		if _, both := s.price(p.Currency, p.Unit); !both && !s.MorePrices {
			all = append(all, p)
		}
	}
	s.MorePrices = s.MorePrices || o.MorePrices || len(all) > MaxPrices
	slices.SortFunc(all, Price.compare)
	s.Prices = all[:min(len(all), MaxPrices)]
}

func (s *Summary) equal(o Summary) bool {
	return s.Count == o.Count && slices.Equal(s.Prices, o.Prices) && s.MorePrices == o.MorePrices && s.Known == o.Known && s.Beyond == o.Beyond &&
		s.MaxUptime == o.MaxUptime && s.MinErrorRate == o.MinErrorRate && s.MinResponseMS == o.MinResponseMS
}

// price returns the lowest price of a pair in the summary.
func (s *Summary) price(currency, unit string) (least float64, ok bool) {
	at, ok := slices.BinarySearchFunc(s.Prices, Price{Currency: currency, Unit: unit}, Price.compare)
	if !ok {
		return 0, false
	}
	return s.Prices[at].Least, true
}

// ImprovedBy reports whether a record has a better value than s.
func (s *Summary) ImprovedBy(r *records.Record) bool {
	if r.Needs() != "" {
		return s.Count == 0 || !s.Beyond
	}
	x := r.Facts()
	new := func(k records.Known, better bool) bool { return x.Has(k) && (s.Known&k == 0 || better) }
	if s.Count == 0 ||
		new(records.KnownUptime, x.Uptime > s.MaxUptime) ||
		new(records.KnownErrorRate, x.ErrorRate < s.MinErrorRate) ||
		new(records.KnownResponseTime, x.ResponseMS < s.MinResponseMS) {
		return true
	}
	for _, p := range priceOf(r) {
		if least, ok := s.price(p.Currency, p.Unit); ok && p.Least < least || !ok && !s.MorePrices {
			return true
		}
	}
	return false
}

// Bound returns the best possible rank value of a plan's matches in a cell with this summary (see
// query.Plan.Bound). It reports false if the cell has no match.
func (s *Summary) Bound(p *query.Plan, place geo.Cell) (value float64, some bool) {
	if s.Count == 0 {
		return math.Inf(1), false
	}
	if s.Beyond {
		return math.Inf(-1), true
	}
	best := records.Facts{
		Known: s.Known, Uptime: s.MaxUptime, ErrorRate: s.MinErrorRate, ResponseMS: s.MinResponseMS,
	}
	if least, ok := s.price(p.Prices()); ok || s.MorePrices {
		best.Known |= records.KnownPrice
		best.Price = least // 0, the lowest possible price, for an unknown pair
	}
	return p.Bound(&best, place.Box())
}
