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

// Summary describes a set of records: their number, a bound for each order of a query that no record improves, the tokens of
// their texts, and the lots of their names. The zero value describes no records. An unknown value counts as the best possible one.
type Summary struct {
	Count      int
	Prices     []Price // sorted by currency and unit, each pair once
	MorePrices bool    // prices in other currencies and units exist, with unknown values
	Beyond     bool    // some records need features of a later version: all their values are unknown
	Best       Best
	Tokens     Tokens
	Lots       query.Lots // of the names
}

// Best holds, for each value separately, the best one that at least one record states: most of capacities and uptime, least of errors
// and response time.
type Best struct {
	Known      records.Known // which values any record states
	CPUCores   uint32
	GPUs       uint32
	ErrorRate  uint32 // per 10000 requests
	MemoryMB   uint64
	Storage    uint64 // bytes
	Bandwidth  uint64 // Mbit/s
	ResponseMS uint64
	Uptime     float64 // percent
}

// Tokens is a set of query.TokensOf that may seem to have others (a Bloom filter with three bits for each token). It
// stays small, because the keepers of a parent hold one for each child. The union of two sets is the or of their bits.
type Tokens [tokenBytes]byte

const tokenBytes = 1 << 10

// allTokens is the set of every token: of records that nobody described.
func allTokens() (t Tokens) {
	for i := range t {
		t[i] = 0xff
	}
	return t
}

const tokenBits = 8 * tokenBytes

func (t *Tokens) add(token uint64) {
	for range 3 {
		t[token%tokenBits/8] |= 1 << (token % 8)
		token /= tokenBits
	}
}

// Has reports whether the set may have a token.
func (t *Tokens) Has(token uint64) bool {
	for range 3 {
		if t[token%tokenBits/8]&(1<<(token%8)) == 0 {
			return false
		}
		token /= tokenBits
	}
	return true
}

// Price is the lowest price in one currency and unit, for any volume, both in the spelling of query.Fold.
type Price struct {
	Currency, Unit string
	Least          float64
}

func (p Price) compare(q Price) int {
	return cmp.Or(cmp.Compare(p.Currency, q.Currency), cmp.Compare(p.Unit, q.Unit))
}

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
	const values = records.KnownCPU | records.KnownGPU | records.KnownMemory | records.KnownStorage | records.KnownBandwidth |
		records.KnownUptime | records.KnownErrorRate | records.KnownResponseTime
	s.Best.improve(&Best{
		Known: x.Known & values, CPUCores: x.CPUCores, GPUs: x.GPUs, ErrorRate: x.ErrorRate, MemoryMB: x.MemoryMB,
		Storage: x.StorageBytes, Bandwidth: x.Bandwidth, ResponseMS: x.ResponseMS, Uptime: x.Uptime,
	})
	s.improvePrices(priceOf(r), false)
	for _, token := range query.TokensOf(r) {
		s.Tokens.add(token)
	}
	s.Lots.Add(r.Name())
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
	s.Best.improve(&o.Best)
	s.Beyond = s.Beyond || o.Beyond
	s.improvePrices(o.Prices, o.MorePrices)
	for i := range s.Tokens {
		s.Tokens[i] |= o.Tokens[i]
	}
	for i := range s.Lots {
		s.Lots[i] |= o.Lots[i]
	}
}

func (b *Best) improve(o *Best) {
	least := func(k records.Known, better bool) bool { return o.Known&k != 0 && (b.Known&k == 0 || better) }
	if least(records.KnownErrorRate, o.ErrorRate < b.ErrorRate) {
		b.ErrorRate = o.ErrorRate
	}
	if least(records.KnownResponseTime, o.ResponseMS < b.ResponseMS) {
		b.ResponseMS = o.ResponseMS
	}
	b.Known |= o.Known
	b.CPUCores, b.GPUs, b.MemoryMB = max(b.CPUCores, o.CPUCores), max(b.GPUs, o.GPUs), max(b.MemoryMB, o.MemoryMB)
	b.Storage, b.Bandwidth, b.Uptime = max(b.Storage, o.Storage), max(b.Bandwidth, o.Bandwidth), max(b.Uptime, o.Uptime)
}

// improvePrices keeps the lower price of each pair. It drops a pair that either side may lack
// because of MaxPrices: its lowest price is unknown.
func (s *Summary) improvePrices(prices []Price, more bool) {
	if len(prices) == 0 && !more {
		return
	}
	var all []Price
	for _, p := range s.Prices {
		switch q, ok := priceIn(prices, p.Currency, p.Unit); {
		case ok:
			p.Least = min(p.Least, q)
			all = append(all, p)
		case !more:
			all = append(all, p)
		}
	}
	for _, p := range prices {
		if _, both := priceIn(s.Prices, p.Currency, p.Unit); !both && !s.MorePrices {
			all = append(all, p)
		}
	}
	s.MorePrices = s.MorePrices || more || len(all) > MaxPrices
	slices.SortFunc(all, Price.compare)
	s.Prices = all[:min(len(all), MaxPrices)]
}

func (s *Summary) equal(o *Summary) bool {
	return s.Count == o.Count && slices.Equal(s.Prices, o.Prices) && s.MorePrices == o.MorePrices && s.Beyond == o.Beyond &&
		s.Best == o.Best && s.Tokens == o.Tokens && s.Lots == o.Lots
}

// priceIn returns the lowest price of a pair in a sorted list.
func priceIn(list []Price, currency, unit string) (least float64, ok bool) {
	at, ok := slices.BinarySearchFunc(list, Price{Currency: currency, Unit: unit}, Price.compare)
	if !ok {
		return 0, false
	}
	return list[at].Least, true
}

// ImprovedBy reports whether a record has a better value, a further token or a further lot than s.
func (s *Summary) ImprovedBy(r *records.Record) bool {
	with := *s
	with.Note(r)
	return s.Count == 0 || !s.equal(&with)
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
	if !p.MayMatch(s.Tokens.Has) {
		return math.Inf(1), false
	}
	b := &s.Best
	best := records.Facts{
		Known: b.Known, CPUCores: b.CPUCores, GPUs: b.GPUs, ErrorRate: b.ErrorRate, MemoryMB: b.MemoryMB,
		StorageBytes: b.Storage, Bandwidth: b.Bandwidth, ResponseMS: b.ResponseMS, Uptime: b.Uptime,
	}
	currency, unit := p.Prices()
	if least, ok := priceIn(s.Prices, currency, unit); ok || s.MorePrices {
		best.Known |= records.KnownPrice
		best.Price = least // 0, the lowest possible price, for an unknown pair
	}
	return p.Bound(&best, &s.Lots, place)
}
