package cell

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math"
	"slices"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// Bounds of the messages of other peers.
const (
	maxCount = 1 << 40 // records of a cell
	maxLabel = 64      // bytes of a currency and of a unit
)

// Proto returns the wire form of the summary of a cell.
func (s *Summary) Proto(place geo.Cell) *pb.Summary {
	m := &pb.Summary{Cell: string(place), Count: uint64(max(s.Count, 0)), MorePrices: s.MorePrices, Beyond: s.Beyond}
	for _, p := range s.Prices {
		m.Prices = append(m.Prices, &pb.BestPrice{Currency: p.Currency, PriceUnit: p.Unit, Price: p.Least})
	}
	b := &s.Best
	states := func(k records.Known) bool { return b.Known&k != 0 }
	optional(&m.MaxUptime, states(records.KnownUptime), b.Uptime)
	optional(&m.MinErrorRate, states(records.KnownErrorRate), b.ErrorRate)
	optional(&m.MinResponseMs, states(records.KnownResponseTime), b.ResponseMS)
	optional(&m.MaxCpuCores, states(records.KnownCPU), b.CPUCores)
	optional(&m.MaxMemoryMb, states(records.KnownMemory), b.MemoryMB)
	optional(&m.MaxGpus, states(records.KnownGPU), b.GPUs)
	optional(&m.MaxStorage, states(records.KnownStorage), b.Storage)
	optional(&m.MaxBandwidth, states(records.KnownBandwidth), b.Bandwidth)
	if s.Count > 0 {
		m.Tokens = bytes.Clone(s.Tokens[:])
		m.Lots = lotsToProto(&s.Lots)
	}
	return m
}

// lotsToProto returns the wire form of lots: a list while that is shorter than the set of bits.
func lotsToProto(l *query.Lots) (list []byte) {
	for lot := range l.All() {
		if list = binary.BigEndian.AppendUint16(list, lot); len(list) == len(l) {
			return bytes.Clone(l[:])
		}
	}
	return list
}

// lotsFromProto reads the wire form of lots. Left out for a reader in another order, or of another form, they may be any.
func lotsFromProto(b []byte) (l query.Lots) {
	switch {
	case len(b) == len(l):
		return query.Lots(b)
	case len(b) == 0 || len(b) > len(l) || len(b)%2 > 0:
		return allLots()
	}
	for ; len(b) > 0; b = b[2:] {
		if !l.Set(binary.BigEndian.Uint16(b)) {
			return allLots()
		}
	}
	return l
}

// allLots is the set of every lot: of records that nobody described.
func allLots() (l query.Lots) {
	for i := range l {
		l[i] = 0xff
	}
	return l
}

// optional sets a field of a message, if it has a value.
func optional[T any](field **T, known bool, v T) {
	if known {
		*field = &v
	}
}

// FromProto parses the wire form of a summary. It returns Unauthentic for a message that violates
// the protocol: an invalid cell, too many prices or unsorted ones, values that are not numbers.
func FromProto(m *pb.Summary) (geo.Cell, Summary, error) {
	bad := func(format string, args ...any) (geo.Cell, Summary, error) {
		return "", Summary{}, fault.New("cell.FromProto", fault.Unauthentic, format, args...)
	}
	place, err := geo.ParseCell(m.GetCell())
	if err != nil {
		return bad("a summary without a valid cell")
	}
	if len(m.Prices) > MaxPrices {
		return bad("a summary with %d prices", len(m.Prices))
	}
	s := Summary{Count: int(min(m.Count, maxCount)), MorePrices: m.MorePrices, Beyond: m.Beyond}
	for _, p := range m.Prices {
		price := Price{query.Fold(p.GetCurrency()), query.Fold(p.GetPriceUnit()), p.GetPrice()}
		if len(price.Currency) > maxLabel || len(price.Unit) > maxLabel || math.IsNaN(price.Least) {
			return bad("a summary with an invalid price")
		}
		s.Prices = append(s.Prices, price)
	}
	if !slices.IsSortedFunc(s.Prices, Price.compare) {
		return bad("a summary with prices out of order")
	}
	s.Prices = slices.CompactFunc(s.Prices, func(a, b Price) bool { return a.compare(b) == 0 })
	b := &s.Best
	known(b, records.KnownUptime, m.MaxUptime, &b.Uptime)
	known(b, records.KnownErrorRate, m.MinErrorRate, &b.ErrorRate)
	known(b, records.KnownResponseTime, m.MinResponseMs, &b.ResponseMS)
	known(b, records.KnownCPU, m.MaxCpuCores, &b.CPUCores)
	known(b, records.KnownMemory, m.MaxMemoryMb, &b.MemoryMB)
	known(b, records.KnownGPU, m.MaxGpus, &b.GPUs)
	known(b, records.KnownStorage, m.MaxStorage, &b.Storage)
	known(b, records.KnownBandwidth, m.MaxBandwidth, &b.Bandwidth)
	if math.IsNaN(b.Uptime) {
		return bad("a summary with an uptime that is not a number")
	}
	if len(m.Tokens) == len(s.Tokens) {
		s.Tokens = Tokens(m.Tokens)
	} else if s.Count > 0 { // left out for a reader, or of another form
		s.Tokens = allTokens()
	}
	if s.Count > 0 {
		s.Lots = lotsFromProto(m.Lots)
	}
	return place, s, nil
}

// known takes a field of a message, if it is there.
func known[T any](b *Best, bit records.Known, field, to *T) {
	if field != nil {
		b.Known, *to = b.Known|bit, *field
	}
}

// Proto returns the wire form of a split cell: the bound of its sample, and the summaries of the
// given children.
func (c *Cell) Proto(key string, children map[geo.Cell]Summary) *pb.Split {
	m := &pb.Split{Cell: key, SampleBelow: c.Below()}
	for _, place := range slices.Sorted(maps.Keys(children)) {
		if s := children[place]; s.Count > 0 {
			m.Children = append(m.Children, s.Proto(place))
		}
	}
	return m
}

// SplitInfo is a keeper's description of a cell that it split.
type SplitInfo struct {
	Below    uint64
	Children map[geo.Cell]Summary
}

// SplitInfoFromProto parses the wire form of a split cell. It returns Unauthentic for a message
// that violates the protocol: see FromProto; also for foreign or repeated children.
func SplitInfoFromProto(place geo.Cell, m *pb.Split) (SplitInfo, error) {
	const op = "cell.SplitFromProto"
	if !Divisible(place) {
		return SplitInfo{}, fault.New(op, fault.Unauthentic, "%s has no children", place)
	}
	s := SplitInfo{Below: m.GetSampleBelow(), Children: make(map[geo.Cell]Summary)}
	for _, part := range m.GetChildren() {
		child, summary, err := FromProto(part)
		if err != nil {
			return SplitInfo{}, fault.Wrap(op, err)
		}
		if _, twice := s.Children[child]; twice || !isChild(place, child) {
			return SplitInfo{}, fault.New(op, fault.Unauthentic, "%s is not a child of %s", child, place)
		}
		s.Children[child] = summary
	}
	return s, nil
}
