package oracle

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// body is the question in JSON.
func (q Question) body() []byte {
	m := make(map[string]any, len(q))
	attributes := make(map[string]any)
	for name, value := range q {
		if key, ok := strings.CutPrefix(name, "attr."); ok {
			attributes[key] = value
		} else {
			m[name] = value
		}
	}
	if len(attributes) > 0 {
		m["attributes"] = attributes
	}
	b, _ := json.Marshal(m) // numbers, texts and lists have a form
	return b
}

// parameters is the question in a URL.
func (q Question) parameters() url.Values {
	v := make(url.Values)
	for name, value := range q {
		switch value := value.(type) {
		case []string:
			v[name] = value
		case []Clause:
			for _, c := range value {
				v.Add("where", c.text())
			}
		case map[string]any:
			for part, x := range value {
				v.Set(name+"."+part, fmt.Sprint(x))
			}
		default:
			v.Set(name, fmt.Sprint(value))
		}
	}
	return v
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
