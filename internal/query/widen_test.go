package query

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/query"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// Each field of a query only narrows, or does more. A new field belongs to one of the lists: a peer asks keepers
// of older versions without a field of narrowing, and cannot ask them with any other one.
func TestEveryFieldIsNarrowingOrNot(t *testing.T) {
	more := []protoreflect.Name{
		"type", "types", "subtype", "provider_id", // choose the cells
		"near", "sort", "currency", "price_unit", "volume", "group_prices", "seed", // choose the order
		"health", // its absence filters too
		"limit", "explain", "exact_total", "after", "cells", "claims",
	}
	fields := new(pb.Query).ProtoReflect().Descriptor().Fields()
	var all []protoreflect.Name
	for i := range fields.Len() {
		all = append(all, fields.Get(i).Name())
	}
	require.ElementsMatch(t, all, append(more, narrowing()...))
}

// Without some filters a query has at least its matches, with equal rank values.
func TestWithoutFiltersAgainstMatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := queryGen(t).Draw(t, "query")
		p := compile(t, q)
		set := Proto(p.query).ProtoReflect()
		var dropped []string
		for _, name := range narrowing() {
			if name == "max_price" && p.Sort() == query.SortScore {
				continue
			}
			if set.Has(set.Descriptor().Fields().ByName(name)) && rapid.Bool().Draw(t, string(name)) {
				dropped = append(dropped, string(name))
			}
		}
		wider, ok := p.Without(dropped)
		require.True(t, ok)
		require.Equal(t, MaxLimit, wider.Limit())
		left := Proto(wider.query).ProtoReflect()
		for _, name := range dropped {
			require.False(t, name != "claims" && left.Has(left.Descriptor().Fields().ByName(protoreflect.Name(name))), name)
		}
		for _, x := range recordsGen(t, 8).Draw(t, "records") {
			if p.Match(x.record) {
				require.True(t, wider.Match(x.record))
			}
			if slices.Contains(dropped, "claims") {
				require.GreaterOrEqual(t, p.Value(x.record), wider.Value(x.record))
				continue
			}
			require.Equal(t, p.Value(x.record), wider.Value(x.record))
		}
	})
}

func TestWithoutOtherFieldsIsNoPlan(t *testing.T) {
	p := compile(t, query.Query{Type: "compute", Sort: query.SortPrice, Capacity: query.Capacity{MinCPUCores: 4}})
	for _, fields := range [][]string{{"type"}, {"sort"}, {"nothing"}, {"max_price"}, {"min_cpu_cores", "sort"}} {
		_, ok := p.Without(fields)
		require.False(t, ok, "%v", fields)
	}
	_, ok := compile(t, query.Query{Type: "compute", Price: query.Price{MaxPrice: ptr(1.0)}}).Without([]string{"max_price"})
	require.False(t, ok, "the score needs it")
	same, ok := p.Without(nil)
	require.True(t, ok)
	require.True(t, slices.Equal(p.Cells(9), same.Cells(9)))
}
