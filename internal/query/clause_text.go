package query

import (
	"strconv"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
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
func ParseClause(text string) (query.Clause, error) {
	text = strings.TrimSpace(text)
	if len(text) > maxWhere {
		return query.Clause{}, fault.Invalidf("", clip(text), "must be at most %d bytes", maxWhere)
	}
	at := strings.IndexAny(text, "=<>^&")
	if at < 0 {
		return parseAlone(text), nil
	}
	var c query.Clause
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
		op   query.Op
	}{{"^=", query.OpPrefix}, {"&=", query.OpAll}, {"=", query.OpAny}} {
		if list, ok := strings.CutPrefix(rest, o.sign); ok {
			c.Op = o.op
			c.Values, err = parseValues(list)
			return c, fault.In("values", err)
		}
	}
	c.Op = query.OpRange
	return c, parseBounds(&c, rest)
}

// parseAlone reads a name without an operator.
func parseAlone(text string) query.Clause {
	name, not := strings.CutPrefix(text, "!")
	c := query.Clause{Field: strings.TrimSpace(name), Op: query.OpStated, Not: not}
	if f, _, ok := fieldNamed(c.Field); ok && f.Kind == KindFlag {
		c.Op, c.Values = query.OpAny, []string{"true"}
	}
	return c
}

// parseBounds reads >=MIN, <=MAX, or both.
func parseBounds(c *query.Clause, text string) error {
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
