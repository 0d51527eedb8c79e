package query

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// ops returns the operations in the order of the wire form.
func ops() []query.Op {
	return []query.Op{query.OpAny, query.OpAll, query.OpPrefix, query.OpRange, query.OpStated}
}

// Limits of clauses.
const (
	MaxClauses      = 16
	MaxClauseValues = 64
	maxWhere        = 8 << 10 // bytes of all fields and values
	maxClauseField  = 128
)

func validateWhere(list []query.Clause) error {
	if n := len(list); n > MaxClauses {
		return fault.Invalidf("where", n, "must be at most %d clauses", MaxClauses)
	}
	size := 0
	for i := range list {
		if err := CheckClause(&list[i]); err != nil {
			return fault.In(indexed("where", i), err)
		}
		size += len(list[i].Field)
		for _, v := range list[i].Values {
			size += len(v)
		}
	}
	if size > maxWhere {
		return fault.Invalidf("where", size, "must have at most %d bytes of fields and values", maxWhere)
	}
	return nil
}

// CheckClause validates a clause as Compile does. Errors are fault.Invalid and name its parts.
func CheckClause(c *query.Clause) error {
	f, key, ok := fieldNamed(c.Field)
	switch {
	case c.Field == "":
		return fault.Invalidf("field", nil, "is required")
	case !ok || len(c.Field) > maxClauseField:
		if near := similar(c.Field); near != "" {
			return fault.Invalidf("field", clip(c.Field), "%s is not a field of records: did you mean %s?", clip(c.Field), near)
		}
		return fault.Invalidf("field", clip(c.Field), "%s is not a field of records", clip(c.Field))
	case !slices.Contains(f.Ops(), c.Op):
		return fault.Invalidf("op", clip(string(c.Op)), "must be one of %s for %s", oneOf(f.Ops()), c.Field)
	}
	if err := fault.Text("field", key, maxClauseField); err != nil {
		return err
	}
	if err := validateParts(c); err != nil {
		return err
	}
	switch c.Op {
	case query.OpRange:
		return validateRange(c)
	case query.OpStated:
		return nil
	default:
		return validateValues(c, &f)
	}
}

// validateParts refuses parts of other operations.
func validateParts(c *query.Clause) error {
	const ofRange = "belongs to the operation range"
	switch {
	case len(c.Values) > 0 && (c.Op == query.OpRange || c.Op == query.OpStated):
		return fault.Invalidf("values", len(c.Values), "belong to the operations any, all and prefix")
	case c.Min != nil && c.Op != query.OpRange:
		return fault.Invalidf("min", *c.Min, ofRange)
	case c.Max != nil && c.Op != query.OpRange:
		return fault.Invalidf("max", *c.Max, ofRange)
	case c.OrUnstated && c.Op == query.OpStated:
		return fault.Invalidf("or_unstated", nil, "has no meaning with the operation stated")
	}
	return nil
}

func validateRange(c *query.Clause) error {
	if c.Min == nil && c.Max == nil {
		return fault.Invalidf("min", nil, "or max is required for a range")
	}
	if c.Min != nil && c.Max != nil && *c.Min > *c.Max {
		return fault.Invalidf("min", *c.Min, "must not exceed max, %v", *c.Max)
	}
	return cmp.Or(
		records.CheckNumber("min", c.Min, -math.MaxFloat64, math.MaxFloat64),
		records.CheckNumber("max", c.Max, -math.MaxFloat64, math.MaxFloat64),
	)
}

func validateValues(c *query.Clause, f *Field) error {
	if n := len(c.Values); n < 1 || n > MaxClauseValues {
		return fault.Invalidf("values", n, "must be 1 to %d", MaxClauseValues)
	}
	for i, v := range c.Values {
		if err := f.validateValue(v, c.Op); err != nil {
			return fault.In(indexed("values", i), err)
		}
	}
	return nil
}

func (f *Field) validateValue(v string, op query.Op) error {
	switch {
	case f.Kind == KindFlag && flagOf(v) == "":
		return fault.Invalidf("", clip(v), "must be true or false")
	case f.Kind == KindNumber:
		if _, ok := decimal(v); !ok {
			return fault.Invalidf("", clip(v), "must be a decimal number")
		}
	case v == "" && f.Kind == KindText:
		return fault.Invalidf("", nil, "must not be empty: the operation stated asks for a value at all")
	case v == "" && op == query.OpPrefix:
		return fault.Invalidf("", nil, "must not be empty")
	}
	return fault.Text("", v, maxValue)
}

// flagOf returns the canonical spelling of a truth value, or "".
func flagOf(s string) string {
	switch {
	case strings.EqualFold(s, "true"):
		return "true"
	case strings.EqualFold(s, "false"):
		return "false"
	}
	return ""
}

// decimal parses a finite number without the other notations of strconv.
func decimal[T string | []byte](s T) (float64, bool) {
	if len(s) == 0 || len(s) > 64 {
		return 0, false
	}
	for i := range len(s) {
		if strings.IndexByte("0123456789+-.eE", s[i]) < 0 {
			return 0, false
		}
	}
	v, err := strconv.ParseFloat(string(s), 64)
	return v + 0, err == nil // adding 0 turns -0 into 0
}

// number formats a number for people, parsable by decimal.
func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// canonicalWhere returns the canonical form of a list of clauses: each in normal form, in a fixed
// order, without repetition. An empty list becomes nil. The result shares no memory with list.
func canonicalWhere(list []query.Clause) []query.Clause {
	if len(list) == 0 {
		return nil
	}
	out := make([]query.Clause, len(list))
	for i := range list {
		out[i] = canonicalClause(&list[i])
	}
	slices.SortFunc(out, compareClauses)
	return slices.CompactFunc(out, func(a, b query.Clause) bool { return compareClauses(a, b) == 0 })
}

func compareClauses(a, b query.Clause) int {
	return strings.Compare(string(appendClause(nil, &a)), string(appendClause(nil, &b)))
}

// cloneClause returns a deep copy.
func cloneClause(c *query.Clause) query.Clause {
	n := *c
	n.Values, n.Min, n.Max = slices.Clone(c.Values), clonePtr(c.Min), clonePtr(c.Max)
	return n
}

// canonicalClause returns the normal form of a clause.
func canonicalClause(c *query.Clause) query.Clause {
	n := cloneClause(c)
	for _, bound := range [...]*float64{n.Min, n.Max} {
		if bound != nil {
			*bound += 0 // -0 becomes 0
		}
	}
	f, _, ok := fieldNamed(n.Field)
	if !ok {
		return n
	}
	n.Values = canonicalSet(n.Values, f.spell)
	if n.Op == query.OpAll && len(n.Values) == 1 && f.special != ofGPU {
		n.Op = query.OpAny
	}
	return n
}

// spell returns the canonical spelling of a value.
func (f *Field) spell(v string) string {
	switch {
	case f.Kind == KindNumber:
		if x, ok := decimal(v); ok {
			return number(x)
		}
		return v
	case f.Kind == KindFlag:
		return cmp.Or(flagOf(v), v)
	case f.exact:
		return v
	default:
		return Fold(v)
	}
}

// appendWhere appends the clauses of a query to its key.
func appendWhere(dst []byte, list []query.Clause) []byte {
	list = canonicalWhere(list)
	dst = binary.AppendUvarint(dst, uint64(len(list)))
	for i := range list {
		dst = appendClause(dst, &list[i])
	}
	return dst
}

func appendClause(dst []byte, c *query.Clause) []byte {
	dst = appendText(dst, c.Field)
	dst = appendText(dst, string(c.Op))
	dst = binary.AppendUvarint(dst, uint64(len(c.Values)))
	for _, v := range c.Values {
		dst = appendText(dst, v)
	}
	dst = appendOptional(dst, c.Min)
	dst = appendOptional(dst, c.Max)
	dst = appendBool(dst, c.Not)
	return appendBool(dst, c.OrUnstated)
}
