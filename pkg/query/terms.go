package query

import "cmp"

// Terms are a currency and a unit of prices.
type Terms struct {
	Currency  string `json:"currency"`
	PriceUnit string `json:"price_unit"`
}

// Compare orders terms by currency and unit.
func (t Terms) Compare(u Terms) int {
	return cmp.Or(cmp.Compare(t.Currency, u.Currency), cmp.Compare(t.PriceUnit, u.PriceUnit))
}
