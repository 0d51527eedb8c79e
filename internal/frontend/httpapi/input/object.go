// Package input reads bodies and URL parameters of requests. It refuses unknown fields and
// parameters: to drop a filter silently would change the question.
package input

import (
	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/internal/platform/strictjson"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Object reads one JSON object into v and refuses unknown fields. The caller bounds the text.
// Errors: Invalid, with the field, or "body" for the text as a whole.
func Object(text []byte, v any) error { return inBody(strictjson.Decode(text, len(text), v)) }

// Open is Object for objects with unknown fields.
func Open(text []byte, v any) error { return inBody(strictjson.DecodeOpen(text, len(text), v)) }

// Part is Object for the value of a field.
func Part(field string, text []byte, v any) error {
	if err := strictjson.Decode(text, len(text), v); err != nil {
		return fault.In(field, err)
	}
	return nil
}

func inBody(err error) error {
	if err != nil && fault.FieldOf(err) == "" {
		return fault.In("body", err)
	}
	return err
}

// Quote shortens a name or value for an error.
func Quote(name string) string {
	const most = 64
	return clean.Text(name, most)
}
