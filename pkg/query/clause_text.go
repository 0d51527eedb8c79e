package query

import (
	"strconv"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
)

// ParseClause reads the text form of a clause, for command lines and URLs:
//
//	compute.gpus.model=H100,A100     any
//	compute.gpus.model^=NVIDIA       prefix
//	storage.storage_classes&=hot,archive    all
//	compute.gpus.memory_mb>=24000    range, also <=80000 and >=24000<=80000
//	storage.encryption_supported     a flag that is true; any other field: stated
//
// A "!" before the operator, or before a name alone, negates: location.country!=DE,
// compute.gpus.memory_mb!<=8000, !pricing.base_price. A "?" after the name lets records pass that
// do not state the field: location.isp?!=Carrier. Values with commas or quotes are Go strings in
// double quotes. Query.Where's checks follow in Compile.
func ParseClause(text string) (Clause, error) {
	text = strings.TrimSpace(text)
	if len(text) > maxWhere {
		return Clause{}, fault.Invalidf("", clip(text), "must be at most %d bytes", maxWhere)
	}
	at := strings.IndexAny(text, "=<>^&")
	if at < 0 {
		return parseAlone(text), nil
	}
	var c Clause
	name := text[:at]
	if name, c.Not = strings.CutSuffix(name, "!"); c.Not {
		name = strings.TrimRight(name, " ")
	}
	name, c.OrUnstated = strings.CutSuffix(strings.TrimSpace(name), "?")
	c.Field = strings.TrimSpace(name)
	rest := text[at:]
	var err error
	for _, o := range [...]struct {
		sign string
		op   Op
	}{{"^=", OpPrefix}, {"&=", OpAll}, {"=", OpAny}} {
		if list, ok := strings.CutPrefix(rest, o.sign); ok {
			c.Op = o.op
			c.Values, err = parseValues(list)
			return c, fault.In("values", err)
		}
	}
	c.Op = OpRange
	return c, c.parseBounds(rest)
}

// parseAlone reads a name without an operator.
func parseAlone(text string) Clause {
	name, not := strings.CutPrefix(text, "!")
	c := Clause{Field: strings.TrimSpace(name), Op: OpStated, Not: not}
	if f, _, ok := fieldNamed(c.Field); ok && f.Kind == KindFlag {
		c.Op, c.Values = OpAny, []string{"true"}
	}
	return c
}

// parseBounds reads >=MIN, <=MAX, or both.
func (c *Clause) parseBounds(text string) error {
	const form = "must be >=MIN, <=MAX or >=MIN<=MAX, not %q"
	given := text
	if rest, ok := strings.CutPrefix(text, ">="); ok {
		low, high, both := strings.Cut(rest, "<=")
		v, ok := decimal(strings.TrimSpace(low))
		if !ok {
			return fault.Invalidf("min", clip(low), form, clip(given))
		}
		c.Min, text = &v, ""
		if both {
			text = "<=" + high
		}
	}
	if rest, ok := strings.CutPrefix(text, "<="); ok {
		v, ok := decimal(strings.TrimSpace(rest))
		if !ok {
			return fault.Invalidf("max", clip(rest), form, clip(given))
		}
		c.Max, text = &v, ""
	}
	if text != "" {
		return fault.Invalidf("op", clip(given), form, clip(given))
	}
	return nil
}

// parseValues splits a list at commas. An element in double quotes is a Go string.
func parseValues(text string) ([]string, error) {
	var list []string
	for {
		text = strings.TrimSpace(text)
		var v string
		if strings.HasPrefix(text, `"`) {
			quoted, err := strconv.QuotedPrefix(text)
			if err != nil {
				return nil, fault.Invalidf(indexed("", len(list)), clip(text), "must end with a quote")
			}
			text = strings.TrimSpace(text[len(quoted):])
			if v, err = strconv.Unquote(quoted); err != nil {
				return nil, fault.Invalidf(indexed("", len(list)), clip(quoted), "must be a quoted string: %w", err)
			}
			if text != "" && text[0] != ',' {
				return nil, fault.Invalidf(indexed("", len(list)), clip(text), "must be followed by a comma")
			}
			list = append(list, v)
			if text == "" {
				return list, nil
			}
			text = text[1:]
			continue
		}
		v, rest, more := strings.Cut(text, ",")
		list = append(list, strings.TrimSpace(v))
		if !more {
			return list, nil
		}
		text = rest
	}
}

// String returns the text form, which ParseClause reads. The result for an invalid clause is only
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
			b.WriteString(">=" + number(*c.Min))
		}
		if c.Max != nil {
			b.WriteString("<=" + number(*c.Max))
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
