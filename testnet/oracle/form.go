package oracle

import (
	"encoding/json"
	"fmt"
	"net/url"
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
