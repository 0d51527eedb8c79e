package access

import (
	"io"
	"os"
	"runtime"

	"github.com/blackhole/blackhole/pkg/fault"
)

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
