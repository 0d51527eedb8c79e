package access

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"

	"github.com/blackhole/blackhole/pkg/fault"
)

// redacted replaces a secret in printed text.
const redacted = "[redacted]"

// Secret is text that is never printed. It is a function, so that printers by reflection, which also
// see unexported fields, find no text. The zero value holds no secret.
type Secret func() string

// NewSecret wraps a text. The empty text gives the zero value.
func NewSecret(text string) Secret {
	if text == "" {
		return nil
	}
	return func() string { return text }
}

// Text returns the secret itself.
func (s Secret) Text() string {
	if s == nil {
		return ""
	}
	return s()
}

// String returns a placeholder for a secret and "" for none.
func (s Secret) String() string {
	if s == nil {
		return ""
	}
	return redacted
}

// Format implements fmt.Formatter for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// MarshalText implements encoding.TextMarshaler, for JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// maxFile bounds the file of a key, a certificate or a token, in bytes.
const maxFile = 1 << 20

// file is a file named by a setting.
type file struct {
	setting string // for errors
	path    string
	private bool // contains a secret
}

// read returns the whole content. It fails with Invalid, with the setting, for a file that is
// unreadable, empty or too large, or for a secret that other users can read.
func (f file) read() ([]byte, error) {
	refuse := func(format string, args ...any) error { return fault.Invalidf(f.setting, f.path, format, args...) }
	r, err := os.Open(f.path)
	if err != nil {
		return nil, refuse("%w", err)
	}
	defer r.Close()
	info, err := r.Stat()
	if err != nil {
		return nil, refuse("%w", err)
	}
	if f.private && runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		return nil, refuse("contains a secret but has mode %04o: allow only its owner (chmod 600)", info.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	switch {
	case err != nil:
		return nil, refuse("%w", err)
	case len(text) == 0:
		return nil, refuse("is empty: write the content, or unset the setting")
	case len(text) > maxFile:
		return nil, refuse("is longer than %d bytes: check the path", maxFile)
	}
	return text, nil
}
