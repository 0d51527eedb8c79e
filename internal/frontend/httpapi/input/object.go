// Package input reads what requests say, bodies and parameters of URLs, and lets nothing pass
// that it does not know: a field or a filter that is lost is another question.
package input

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Object reads a text that is one JSON object into v, and knows every field of it. Errors:
// Invalid, with the field at fault, or "body" where there is none.
func Object(text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return one(d, v)
}

// Open is Object for objects that may have fields which v has not.
func Open(text []byte, v any) error { return one(json.NewDecoder(bytes.NewReader(text)), v) }

func one(d *json.Decoder, v any) error {
	if err := d.Decode(v); err != nil {
		return wrong(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fault.Invalidf("body", nil, "must end with the JSON object")
	}
	return nil
}

// wrong names the field at fault.
func wrong(err error) error {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) && kind.Field != "" {
		return fault.Invalidf(kind.Field, nil, "is of the wrong type or out of range")
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		if plain, err := strconv.Unquote(name); err == nil {
			name = plain
		}
		if name == "" {
			return fault.Invalidf("body", nil, "has a field without a name")
		}
		return fault.Invalidf(Quote(name), nil, "is not a field of this request")
	}
	return fault.Invalidf("body", nil, "must be a JSON object: %w", err)
}

// Quote is a name that people are shown: not more of it than they can read.
func Quote(name string) string {
	const most = 64
	if len(name) > most {
		return strings.ToValidUTF8(name[:most], "") + "..."
	}
	return name
}
