package config

import (
	"fmt"
	"io"
	"log/slog"
)

// redacted is printed in place of a secret.
const redacted = "[redacted]"

// Secret is a setting that is never printed. A function hides its text from printers that use
// reflection too. Nil means no secret.
type Secret func() string

// String shows only the presence of a secret.
func (s Secret) String() string {
	if s == nil {
		return ""
	}
	return redacted
}

// Format implements fmt.Formatter for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// MarshalText implements encoding.TextMarshaler.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON implements json.Marshaler. A missing secret is null, as in a settings file.
func (s Secret) MarshalJSON() ([]byte, error) {
	if s == nil {
		return []byte("null"), nil
	}
	return []byte(`"` + redacted + `"`), nil
}

// MarshalYAML implements yaml.Marshaler, like MarshalJSON.
func (s Secret) MarshalYAML() (any, error) {
	if s == nil {
		return nil, nil
	}
	return redacted, nil
}

// IsZero lets a missing secret be left out.
func (s Secret) IsZero() bool { return s == nil }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
