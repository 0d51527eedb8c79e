// Package secret keeps texts that are never printed.
package secret

import (
	"fmt"
	"io"
	"log/slog"
)

// Redacted is printed in place of a secret.
const Redacted = "[redacted]"

// Value is a text that is never printed. It is a function, so that printers by reflection, which also
// see unexported fields, find no text. Nil means no secret.
type Value func() string

// New wraps a text. The empty text gives nil.
func New(text string) Value {
	if text == "" {
		return nil
	}
	return func() string { return text }
}

// Text returns the secret itself.
func (s Value) Text() string {
	if s == nil {
		return ""
	}
	return s()
}

// String shows only the presence of a secret.
func (s Value) String() string {
	if s == nil {
		return ""
	}
	return Redacted
}

// Format implements fmt.Formatter for every verb.
func (s Value) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// MarshalText implements encoding.TextMarshaler.
func (s Value) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON implements json.Marshaler. A missing secret is null, as in a settings file.
func (s Value) MarshalJSON() ([]byte, error) {
	if s == nil {
		return []byte("null"), nil
	}
	return []byte(`"` + Redacted + `"`), nil
}

// MarshalYAML implements yaml.Marshaler, like MarshalJSON.
func (s Value) MarshalYAML() (any, error) {
	if s == nil {
		return nil, nil
	}
	return Redacted, nil
}

// IsZero lets a missing secret be left out.
func (s Value) IsZero() bool { return s == nil }

// LogValue implements slog.LogValuer.
func (s Value) LogValue() slog.Value { return slog.StringValue(s.String()) }
