package access

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"

	"github.com/blackhole/blackhole/pkg/fault"
)

// redacted stands where a secret would.
const redacted = "[redacted]"

// Secret is text that is never printed. It is a function so that printers that look through
// values by reflection, unexported fields included, find no text either. The zero value is no
// secret.
type Secret func() string

// NewSecret makes a secret of a text; of the empty one, the zero value.
func NewSecret(text string) Secret {
	if text == "" {
		return nil
	}
	return func() string { return text }
}

// Text gives the secret itself.
func (s Secret) Text() string {
	if s == nil {
		return ""
	}
	return s()
}

// String hides the secret, and shows only whether there is one.
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

// maxFile bounds what is read of a key, a certificate or a token.
const maxFile = 1 << 20

// file is one that a setting names.
type file struct {
	setting string // for errors
	path    string
	private bool // holds a secret
}

// read gives the whole content. It fails with Invalid, naming the setting, when the file
// cannot be read, is empty or too large, or holds a secret that others than its owner can read.
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
		return nil, refuse("holds a secret and has mode %04o: only its owner may have access (chmod 600)", info.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	switch {
	case err != nil:
		return nil, refuse("%w", err)
	case len(text) == 0:
		return nil, refuse("is empty")
	case len(text) > maxFile:
		return nil, refuse("is over %d bytes", maxFile)
	}
	return text, nil
}
