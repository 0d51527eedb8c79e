package query

import (
	"math"
	"slices"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// kindsOf returns Type and Types, or the only element of Types as Type.
func kindsOf(q *query.Query) (string, []string) {
	if q.Type != "" || len(q.Types) == 0 || slices.ContainsFunc(q.Types, func(t string) bool { return t != q.Types[0] }) {
		return q.Type, q.Types
	}
	return q.Types[0], nil
}

// validateSingle refuses what only Split and Terms resolve: a plan has one type and one order.
func validateSingle(q *query.Query) error {
	switch {
	case len(q.Types) > 0 && q.Type != "":
		return fault.Invalidf("types", nil, "must not be combined with type")
	case len(q.Types) > 0:
		return fault.Invalidf("types", len(q.Types), "must be one type for this operation")
	case q.GroupPrices:
		return fault.Invalidf("group_prices", nil, "has no meaning for this operation")
	case q.Cells != 0:
		return fault.Invalidf("cells", q.Cells, "has no meaning for this operation")
	}
	return nil
}

func validateVolume(q *query.Query) error {
	switch {
	case q.Volume == nil:
		return nil
	case !(*q.Volume > 0 && *q.Volume <= math.MaxFloat64):
		return fault.Invalidf("volume", *q.Volume, "must be a positive number of price units")
	case !usesPrices(q):
		return fault.Invalidf("volume", *q.Volume, "needs max_price, sort=price or group_prices, because only those compare prices")
	}
	return nil
}

// Check validates a query of the application's API, with several types and price groups.
func Check(q query.Query, d Defaults) error {
	if q.Cells != 0 {
		if err := checkCells(&q); err != nil {
			return err
		}
		q.Cells = 0
	}
	if q.GroupPrices {
		if err := validateGroups(&q); err != nil {
			return err
		}
		q = ForTerms(q, query.Terms{Currency: DefaultCurrency, PriceUnit: "unit"})
	}
	list, err := Split(q)
	if err != nil {
		return err
	}
	for _, one := range list {
		if _, err := Compile(one, d); err != nil {
			return err
		}
	}
	return nil
}

// Split returns one query for each type of q, by type. Their answers, merged by Plan.Value and
// name, are the answer of q. Errors are fault.Invalid and name the field. Compile validates the
// rest.
func Split(q query.Query) ([]query.Query, error) {
	q.Type, q.Types = kindsOf(&q)
	if len(q.Types) == 0 {
		return []query.Query{q}, nil
	}
	if q.Type != "" {
		return nil, validateSingle(&q)
	}
	types := canonicalSet(slices.Clone(q.Types), func(s string) string { return s })
	if len(types) > MaxTypes {
		return nil, fault.Invalidf("types", len(types), "must be at most %d", MaxTypes)
	}
	list := make([]query.Query, len(types))
	for i, kind := range types {
		if err := records.CheckType("types", kind); err != nil {
			return nil, err
		}
		if usesPrices(&q) && q.PriceUnit == "" && usualUnit(kind) != usualUnit(types[0]) {
			return nil, fault.Invalidf("price_unit", nil, "is required: the usual units of %s and %s differ", types[0], kind)
		}
		list[i] = q
		list[i].Type, list[i].Types = kind, nil
	}
	return list, nil
}

// termsValue is the value of the field pricing.terms.
func termsValue(t query.Terms) string { return t.Currency + " " + t.PriceUnit }

// TermsOf returns the terms of a record's price, in canonical spelling. Without a currency and a
// unit ok is false.
func TermsOf(r *records.Record) (t query.Terms, ok bool) {
	x := r.Facts()
	return query.Terms{Currency: upper(x.Currency), PriceUnit: Fold(x.PriceUnit)}, x.Currency != "" && x.PriceUnit != ""
}

// validateGroups checks a query with GroupPrices, apart from the parts that Compile checks.
func validateGroups(q *query.Query) error {
	const idle = "has no meaning with group_prices, which compares prices in each currency and unit"
	switch {
	case q.Sort != query.SortDefault && q.Sort != query.SortPrice:
		return fault.Invalidf("sort", clip(string(q.Sort)), "must be price with group_prices")
	case q.MaxPrice != nil:
		return fault.Invalidf("max_price", *q.MaxPrice, idle)
	case q.Currency != "":
		return fault.Invalidf("currency", clip(q.Currency), idle)
	case q.PriceUnit != "":
		return fault.Invalidf("price_unit", clip(q.PriceUnit), idle)
	case len(q.Where) > MaxClauses-2:
		return fault.Invalidf("where", len(q.Where), "must be at most %d clauses with group_prices", MaxClauses-2)
	}
	return nil
}

// checkCells checks a query with Cells, apart from the parts that Compile checks.
func checkCells(q *query.Query) error {
	const idle = "has no meaning with cells, which counts all matches"
	switch {
	case q.Cells < 1 || q.Cells > MaxCellLength:
		return fault.Invalidf("cells", q.Cells, "must be the length of a geohash, 1 to %d", MaxCellLength)
	case q.Sort != query.SortDefault && q.Sort != query.SortPrice:
		return fault.Invalidf("sort", clip(string(q.Sort)), "must be price with cells, or absent")
	case q.After != "":
		return fault.Invalidf("after", clip(q.After), idle)
	case q.Domain != "":
		return fault.Invalidf("domain", clip(q.Domain), idle)
	case q.Limit != 0:
		return fault.Invalidf("limit", q.Limit, idle)
	case q.GroupPrices:
		return fault.Invalidf("group_prices", nil, idle)
	}
	return nil
}

// ForTerms returns the query for the group of some terms: the cheapest matches with these terms.
func ForTerms(q query.Query, t query.Terms) query.Query {
	q.Where = append(slices.Clone(q.Where), query.Clause{Field: termsName, Op: query.OpAny, Values: []string{termsValue(t)}})
	limit := math.MaxFloat64 // only a record with a price meets a limit of it
	q.Sort, q.Currency, q.PriceUnit, q.MaxPrice, q.GroupPrices = query.SortPrice, t.Currency, t.PriceUnit, &limit, false
	return q
}

// OtherThan returns a query for one match of a group with other terms than the given ones.
func OtherThan(q query.Query, known []query.Terms) query.Query {
	q.Where = slices.Clone(q.Where)
	if q.Volume == nil { // with a volume, tiers count too
		q.Where = append(q.Where, query.Clause{Field: "pricing.base_price", Op: query.OpStated})
	}
	other := query.Clause{Field: termsName, Op: query.OpStated}
	if len(known) > 0 {
		other = query.Clause{Field: termsName, Op: query.OpAny, Not: true}
		for _, t := range known {
			other.Values = append(other.Values, termsValue(t))
		}
	}
	q.Where = append(q.Where, other)
	q.Volume, q.GroupPrices, q.Sort, q.Limit, q.ExactTotal = nil, false, query.SortUptime, 1, false
	q.Claims = query.ClaimsTrust // any match will do, without a window
	return q
}
