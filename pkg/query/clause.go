package query

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// Clause tests one field of a record, for Query.Where.
//
// A record that does not state the field fails, also a negated clause; OrUnstated lets it pass. A
// number of 0 is not stated, except in fields with presence on the wire (pricing, health,
// latitude, longitude). A flag is stated with its block of capabilities.
//
// A list passes if one of its values does. A negated clause passes if none does. All clauses about
// GPUs with any, prefix or range, neither negated nor OrUnstated, are met by one and the same GPU.
// Texts compare without case, except ids and attributes. Numbers compare as float64.
type Clause struct {
	Field      string   `json:"field"` // Field.Name, with a key in place of KEY
	Op         Op       `json:"op"`
	Values     []string `json:"values,omitempty"` // of any, all and prefix: texts, decimal numbers, true or false
	Min        *float64 `json:"min,omitempty"`    // of a range, inclusive
	Max        *float64 `json:"max,omitempty"`    // of a range, inclusive
	Not        bool     `json:"not,omitempty"`
	OrUnstated bool     `json:"or_unstated,omitempty"`
}

// Op is the operation of a clause.
type Op string

// The operations.
const (
	OpAny    Op = "any"    // equals one of Values
	OpAll    Op = "all"    // the list has all of Values
	OpPrefix Op = "prefix" // begins with one of Values
	OpRange  Op = "range"  // from Min to Max
	OpStated Op = "stated" // the record states the field
)

// ops returns the operations in the order of the wire form.
func ops() []Op { return []Op{OpAny, OpAll, OpPrefix, OpRange, OpStated} }

// Limits of clauses.
const (
	MaxClauses      = 16
	MaxClauseValues = 64
	maxWhere        = 8 << 10 // bytes of all fields and values
	maxClauseField  = 128
)

func validateWhere(list []Clause) error {
	if n := len(list); n > MaxClauses {
		return fault.Invalidf("where", n, "must be at most %d clauses", MaxClauses)
	}
	size := 0
	for i := range list {
		if err := list[i].Check(); err != nil {
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

// Check validates a clause as Compile does. Errors are fault.Invalid and name its parts.
func (c *Clause) Check() error {
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
	if err := c.validateParts(); err != nil {
		return err
	}
	switch c.Op {
	case OpRange:
		return c.validateRange()
	case OpStated:
		return nil
	default:
		return c.validateValues(&f)
	}
}

// validateParts refuses parts of other operations.
func (c *Clause) validateParts() error {
	const ofRange = "belongs to the operation range"
	switch {
	case len(c.Values) > 0 && (c.Op == OpRange || c.Op == OpStated):
		return fault.Invalidf("values", len(c.Values), "belong to the operations any, all and prefix")
	case c.Min != nil && c.Op != OpRange:
		return fault.Invalidf("min", *c.Min, ofRange)
	case c.Max != nil && c.Op != OpRange:
		return fault.Invalidf("max", *c.Max, ofRange)
	case c.OrUnstated && c.Op == OpStated:
		return fault.Invalidf("or_unstated", nil, "has no meaning with the operation stated")
	}
	return nil
}

func (c *Clause) validateRange() error {
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

func (c *Clause) validateValues(f *Field) error {
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

func (f *Field) validateValue(v string, op Op) error {
	switch {
	case f.Kind == KindFlag && flagOf(v) == "":
		return fault.Invalidf("", clip(v), "must be true or false")
	case f.Kind == KindNumber:
		if _, ok := decimal(v); !ok {
			return fault.Invalidf("", clip(v), "must be a decimal number")
		}
	case v == "" && f.Kind == KindText:
		return fault.Invalidf("", nil, "must not be empty: the operation stated asks for a value at all")
	case v == "" && op == OpPrefix:
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
func canonicalWhere(list []Clause) []Clause {
	if len(list) == 0 {
		return nil
	}
	out := make([]Clause, len(list))
	for i := range list {
		out[i] = list[i].canonical()
	}
	slices.SortFunc(out, compareClauses)
	return slices.CompactFunc(out, func(a, b Clause) bool { return compareClauses(a, b) == 0 })
}

func compareClauses(a, b Clause) int {
	return strings.Compare(string(appendClause(nil, &a)), string(appendClause(nil, &b)))
}

// clone returns a deep copy.
func (c *Clause) clone() Clause {
	n := *c
	n.Values, n.Min, n.Max = slices.Clone(c.Values), clonePtr(c.Min), clonePtr(c.Max)
	return n
}

// canonical returns the normal form of a clause.
func (c *Clause) canonical() Clause {
	n := c.clone()
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
	if n.Op == OpAll && len(n.Values) == 1 && f.special != ofGPU {
		n.Op = OpAny
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
func appendWhere(dst []byte, list []Clause) []byte {
	list = canonicalWhere(list)
	dst = binary.AppendUvarint(dst, uint64(len(list)))
	for i := range list {
		dst = appendClause(dst, &list[i])
	}
	return dst
}

func appendClause(dst []byte, c *Clause) []byte {
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
