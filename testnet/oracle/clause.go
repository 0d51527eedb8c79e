package oracle

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Clause is one of a question.
type Clause struct {
	Field      string   `json:"field"`
	Op         string   `json:"op"`
	Values     []string `json:"values,omitempty"`
	Min        *float64 `json:"min,omitempty"`
	Max        *float64 `json:"max,omitempty"`
	Not        bool     `json:"not,omitempty"`
	OrUnstated bool     `json:"or_unstated,omitempty"`
}

const ofGPU = "compute.gpus."

// together reports whether one GPU must meet the clause with others of its kind.
func (c Clause) together() bool {
	return strings.HasPrefix(c.Field, ofGPU) && c.Field != ofGPU+"count" && !c.Not && !c.OrUnstated && slices.Contains([]string{"any", "prefix", "range"}, c.Op)
}

func (q Question) where(r Record) bool {
	clauses, _ := q["where"].([]Clause)
	met, some := 0.0, false
	gpus, _ := r.at("capabilities", "compute", "gpus").([]any)
	for _, g := range gpus {
		fits, gpu := true, map[string]any{"compute": map[string]any{"gpus": []any{g}}}
		for _, c := range clauses {
			if c.together() {
				fits = fits && c.holds(Record{"capabilities": gpu}.stated(c.Field))
			}
		}
		if fits {
			met++
		}
	}
	for _, c := range clauses {
		stated := r.stated(c.Field)
		if c.Field == ofGPU+"count" {
			if stated = nil; r.at("capabilities", "compute") != nil {
				stated = []any{met}
			}
		}
		switch {
		case c.together():
			some = true
		case !c.passes(stated):
			return false
		}
	}
	return !some || met > 0
}

// passes applies a clause to the stated values of a field.
func (c Clause) passes(stated []any) bool {
	if strings.HasPrefix(c.Field, "attributes.") && c.Op == "range" {
		var numbers []any
		for _, v := range stated {
			if n, err := strconv.ParseFloat(text(v), 64); err == nil {
				numbers = append(numbers, n)
			}
		}
		stated = numbers
	}
	switch {
	case c.Op == "stated":
		return len(stated) > 0 != c.Not
	case len(stated) == 0:
		return c.OrUnstated
	}
	return c.holds(stated) != c.Not
}

func (c Clause) holds(stated []any) bool {
	some := func(want string) bool {
		return slices.ContainsFunc(stated, func(v any) bool { return c.equals(v, want) })
	}
	switch c.Op {
	case "range":
		return slices.ContainsFunc(stated, func(v any) bool {
			n, ok := v.(float64)
			return ok && (c.Min == nil || n >= *c.Min) && (c.Max == nil || n <= *c.Max)
		})
	case "all":
		return !slices.ContainsFunc(c.Values, func(want string) bool { return !some(want) })
	}
	return slices.ContainsFunc(c.Values, some)
}

// equals compares a stated value, or its beginning, with one of a clause.
func (c Clause) equals(v any, want string) bool {
	switch v := v.(type) {
	case bool:
		return strings.EqualFold(strconv.FormatBool(v), want)
	case float64:
		n, err := strconv.ParseFloat(want, 64)
		return err == nil && n == v
	}
	same := strings.EqualFold
	if c.Field == "id" || c.Field == "provider_id" || strings.HasPrefix(c.Field, "attributes.") {
		same = func(a, b string) bool { return a == b }
	}
	stated := text(v)
	if c.Field == "text" {
		return hasWords(stated, want)
	}
	if c.Op != "prefix" {
		return same(stated, want)
	}
	for at := range stated {
		if same(stated[:at], want) {
			return true
		}
	}
	return same(stated, want)
}

// hasWords reports whether a text contains another one, which neither begins nor ends within a word.
func hasWords(stated, want string) bool {
	inWord := func(c rune) bool { return unicode.IsLetter(c) || unicode.IsDigit(c) }
	runes, n := []rune(stated), utf8.RuneCountInString(want)
	for at := range len(runes) - n + 1 {
		found := runes[at : at+n]
		if strings.EqualFold(string(found), want) && !(at > 0 && inWord(runes[at-1]) && inWord(found[0])) &&
			!(at+n < len(runes) && inWord(runes[at+n]) && inWord(found[n-1])) {
			return true
		}
	}
	return false
}

// texts returns all texts of an object.
func texts(v any) (all []any) {
	switch v := v.(type) {
	case string:
		return []any{v}
	case []any:
		for _, x := range v {
			all = append(all, texts(x)...)
		}
	case map[string]any:
		for name, x := range v {
			if name == "attributes" {
				for key := range x.(map[string]any) {
					all = append(all, key)
				}
			}
			if name != "endpoints" {
				all = append(all, texts(x)...)
			}
		}
	}
	return all
}

// stated returns the values of a field of a clause, none for a number of 0 where 0 means nothing.
func (r Record) stated(field string) (all []any) {
	path := strings.SplitN(field, ".", 3)
	block := path[0]
	if field == "text" {
		return texts([]any{r["id"], r["metadata"], r["capabilities"], r["location"]})
	}
	if path[0] == "attributes" {
		path = []string{"metadata", "attributes", strings.TrimPrefix(field, "attributes.")}
	}
	switch block {
	case "pricing":
		if field == "pricing.terms" {
			if currency, unit := text(r.at("pricing", "currency")), text(r.at("pricing", "price_unit")); currency != "" && unit != "" {
				return []any{currency + " " + unit}
			}
			return nil
		}
	case "storage", "compute", "cdn", "bandwidth":
		path = slices.Concat([]string{"capabilities"}, path)
	case "name", "subtype", "description", "version", "domain", "endpoints", "protocols":
		path = slices.Concat([]string{"metadata"}, path)
	}
	var values []any
	switch v := r.at(path...).(type) {
	case nil:
		if list, ok := r.at(path[:len(path)-1]...).([]any); ok { // the GPUs
			for _, one := range list {
				values = append(values, Record(one.(map[string]any)).at(path[len(path)-1]))
			}
		}
	case []any:
		values = v
	default:
		values = []any{v}
	}
	zeros := block == "pricing" || block == "health" && field != "health.last_check" || field == "location.latitude" || field == "location.longitude"
	for _, v := range values {
		if s := text(v); strings.HasSuffix(field, "_at") || field == "health.last_check" {
			when, err := time.Parse(time.RFC3339Nano, s)
			if err != nil {
				continue
			}
			v = float64(when.Unix())
		}
		if v == nil || v == "" || v == 0.0 && !zeros {
			continue
		}
		all = append(all, v)
	}
	return all
}

// text is the clause as people write it.
func (c Clause) text() string {
	s, not := c.Field, ""
	if c.OrUnstated {
		s += "?"
	}
	if c.Not {
		not = "!"
	}
	var values []string
	for _, v := range c.Values {
		values = append(values, strconv.Quote(v))
	}
	list := strings.Join(values, ",")
	switch c.Op {
	case "stated":
		return not + s
	case "any":
		return s + not + "=" + list
	case "all":
		return s + not + "&=" + list
	case "prefix":
		return s + not + "^=" + list
	}
	s += not
	if c.Min != nil {
		s += fmt.Sprint(">=", *c.Min)
	}
	if c.Max != nil {
		s += fmt.Sprint("<=", *c.Max)
	}
	return s
}
