package query

import (
	"bytes"
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/blackhole/blackhole/pkg/records"
)

// Field numbers of PricingInfo and its place.
const (
	pricingField    = 6
	basePriceField  = 2
	tierField       = 4
	commitmentField = 5
)

// maxTiers is the largest number of tiers of a record.
const maxTiers = 16

// tariff is the pricing of a record. NaN means not stated.
type tariff struct {
	base       float64
	commitment float64 // least amount to pay
	tiers      [maxTiers]tier
	count      int
}

// tier is the price of a tier under its name.
type tier struct {
	name  []byte
	price float64
}

// tariffOf reads the pricing from the signed bytes.
func tariffOf(r *records.Record) tariff {
	t := tariff{base: math.NaN(), commitment: math.NaN()}
	for b := r.Payload(); len(b) > 0; {
		number, kind, v, rest := cutField(b)
		if b = rest; number == pricingField && kind == protowire.BytesType {
			t.read(v.bytes)
		}
	}
	return t
}

func (t *tariff) read(b []byte) {
	for len(b) > 0 {
		number, kind, v, rest := cutField(b)
		b = rest
		switch {
		case number == basePriceField && kind == protowire.Fixed64Type:
			t.base = math.Float64frombits(v.bits)
		case number == commitmentField && kind == protowire.Fixed64Type:
			t.commitment = math.Float64frombits(v.bits)
		case number == tierField && kind == protowire.BytesType:
			t.add(v.bytes)
		}
	}
}

// add adds an entry of the map of tiers. A later entry of a name replaces an earlier one.
func (t *tariff) add(entry []byte) {
	name, v := readEntry(entry)
	x := tier{name, math.Float64frombits(v.bits)}
	for i := range t.tiers[:t.count] {
		if bytes.Equal(t.tiers[i].name, x.name) {
			t.tiers[i] = x
			return
		}
	}
	if t.count < len(t.tiers) {
		t.tiers[t.count] = x
		t.count++
	}
}

// span returns the volumes of a tier, both ends inclusive: "100-1000", "1000+" and "1000", which
// has no upper end. Other names are not tiers of volume.
func (x *tier) span() (from, to float64, ok bool) {
	low, high, bounded := bytes.Cut(x.name, []byte("-"))
	if !bounded {
		low, _ = bytes.CutSuffix(low, []byte("+"))
		from, ok = amount(low)
		return from, math.Inf(1), ok
	}
	from, ok = amount(low)
	to, also := amount(high)
	return from, to, ok && also && from <= to
}

// amount reads a number of digits and a decimal point.
func amount(s []byte) (float64, bool) {
	for _, c := range s {
		if (c < '0' || c > '9') && c != '.' {
			return 0, false
		}
	}
	return decimal(s)
}

// rate returns the price of one unit in a purchase of a volume: that of the tier with the volume,
// otherwise the base price. Of several tiers the one of the greatest lower end applies, then the
// narrowest, then the cheapest. The minimum commitment spreads over the volume. NaN means that the
// record states no price for it.
func (t *tariff) rate(volume float64) float64 {
	rate, from, to := t.base, -1.0, 0.0
	for i := range t.tiers[:t.count] {
		x := &t.tiers[i]
		low, high, ok := x.span()
		switch {
		case !ok || volume < low || volume > high || low < from:
		case low > from, high < to, high == to && x.price < rate:
			rate, from, to = x.price, low, high
		}
	}
	if least := t.commitment / volume; least > rate {
		return least
	}
	return rate
}

// factsFor returns the values of a record under a plan: with a volume, the price is that of the
// volume.
func factsFor(p *Plan, r *records.Record) *records.Facts {
	if p.query.Volume == nil {
		return r.Facts()
	}
	x := *r.Facts()
	t := tariffOf(r)
	x.Known &^= records.KnownPrice
	if x.Price = t.rate(*p.query.Volume); !math.IsNaN(x.Price) {
		x.Known |= records.KnownPrice
	}
	return &x
}
