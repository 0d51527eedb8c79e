package query

import (
	"strconv"
	"strings"
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
	Field      string   `json:"field"` // path in the JSON of a record, without "metadata." and "capabilities."
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

// String returns the text form, which where=CLAUSE of the API and command lines read. The result for an invalid clause is only
// for people.
func (c Clause) String() string {
	if c.Op == OpStated {
		if c.Not {
			return "!" + c.Field
		}
		return c.Field
	}
	var b strings.Builder
	b.WriteString(c.Field)
	if c.OrUnstated {
		b.WriteByte('?')
	}
	if c.Not {
		b.WriteByte('!')
	}
	switch c.Op {
	case OpRange:
		if c.Min != nil {
			b.WriteString(">=" + strconv.FormatFloat(*c.Min, 'g', -1, 64))
		}
		if c.Max != nil {
			b.WriteString("<=" + strconv.FormatFloat(*c.Max, 'g', -1, 64))
		}
		return b.String()
	case OpPrefix:
		b.WriteString("^=")
	case OpAll:
		b.WriteString("&=")
	default:
		b.WriteString("=")
	}
	for i, v := range c.Values {
		if i > 0 {
			b.WriteByte(',')
		}
		if v == "" && len(c.Values) > 1 || strings.ContainsAny(v, `,"`) || v != strings.TrimSpace(v) {
			v = strconv.Quote(v)
		}
		b.WriteString(v)
	}
	return b.String()
}
