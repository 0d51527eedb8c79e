package config

import (
	"fmt"
	"io"
	"log/slog"
)

// redacted stands where a secret would.
const redacted = "[redacted]"

// Secret is a setting that is never printed. It is a function so that printers that look
// through values by reflection find no text either. The zero value is none.
type Secret func() string

// String hides the secret, and shows only whether there is one.
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

// MarshalJSON implements json.Marshaler. None is null, which a settings file takes for none too.
func (s Secret) MarshalJSON() ([]byte, error) {
	if s == nil {
		return []byte("null"), nil
	}
	return []byte(`"` + redacted + `"`), nil
}

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
