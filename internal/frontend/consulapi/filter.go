package consulapi

import (
	"github.com/hashicorp/go-bexpr"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Bounds of a filter. The parser of expressions goes back at each bracket, so a short text can cost much.
const (
	maxFilter = 4 << 10 // bytes
	maxParsed = 100_000 // steps of the parser
	maxTerms  = 32      // comparisons
)

// filtered returns those items of an answer, a slice or a map, that the parameter filter selects. The language, the selectors and what an expression
// means for a list are those of the library that Consul itself uses, in its version.
func filtered[T any](r *request, all T) (any, error) {
	text := r.values.Get("filter")
	if text == "" {
		return all, nil
	}
	refused := func(err error) error { return fault.Invalidf("filter", nil, "is no expression for this list: %w", err) }
	if len(text) > maxFilter {
		return nil, fault.Invalidf("filter", nil, "must have at most %d bytes", maxFilter)
	}
	if _, err := bexpr.Parse("", []byte(text), bexpr.MaxExpressions(maxParsed)); err != nil {
		return nil, refused(err)
	}
	f, err := bexpr.CreateFilter(text, &bexpr.EvaluatorConfig{MaxMatches: maxTerms, Registry: bexpr.NilRegistry}, all)
	if err != nil {
		return nil, refused(err)
	}
	kept, err := f.Execute(all)
	if err != nil {
		return nil, refused(err)
	}
	return kept, nil
}
