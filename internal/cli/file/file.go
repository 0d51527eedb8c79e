// Package file reads and writes the files that users name.
package file

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Open opens a file, or standard input for "-". Errors name the flag or argument.
func Open(c *term.Console, flag, path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(c.Stdin), nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fault.Invalidf(flag, path, "%w", err)
	}
	return f, nil
}

// Read reads a file, or standard input for "-" or "". Errors name the flag or argument. A file of more
// than limit bytes is refused.
func Read(c *term.Console, flag, path string, limit int) ([]byte, error) {
	in, err := Open(c, flag, cmp.Or(path, "-"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(in, int64(limit)+1))
	if err != nil {
		return nil, fault.Invalidf(flag, path, "%w", err)
	}
	if len(data) > limit {
		return nil, fault.New("", fault.TooLarge, "%s has more than %d bytes", cmp.Or(path, "-"), limit)
	}
	return data, nil
}

// Write gives what write makes to a file, or to standard output for "-", and returns the size. A new or regular file is for
// its owner alone, and appears only when it is complete and on the disk. A link is followed. A device or pipe stays what it is
// and is written into. Errors of the file name the argument FILE.
func Write(c *term.Console, path string, write func(io.Writer) error) (size int64, err error) {
	info, err := os.Stat(path)
	switch {
	case path == "-" && c.Terminal.Size != nil:
		return 0, fault.Invalidf("FILE", path, "is a terminal: name a file, or let a program read the output")
	case path == "-":
		out := counter{Writer: c.Stdout}
		err = write(&out)
		return out.size, err
	case err == nil && !info.Mode().IsRegular():
		return into(path, write)
	case err == nil:
		path, err = filepath.EvalSymlinks(path)
	case errors.Is(err, fs.ErrNotExist):
		if err = nil; isLink(path) {
			err = errors.New("is a link to nothing")
		}
	}
	if err != nil {
		return 0, fault.Invalidf("FILE", path, "%w", err)
	}
	return replace(path, write)
}

func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().Type() == fs.ModeSymlink
}

// into writes into a device or pipe.
func into(path string, write func(io.Writer) error) (int64, error) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return 0, fault.Invalidf("FILE", path, "%w", err)
	}
	out := counter{Writer: f}
	err = write(&out)
	if err == nil {
		err = f.Sync()
	}
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		err = nil // a pipe has nothing to sync
	}
	return out.size, errors.Join(err, f.Close())
}

// replace writes a new file beside path, and renames it.
func replace(path string, write func(io.Writer) error) (size int64, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.partial") // of mode 0600, and of this call alone
	if err != nil {
		return 0, fault.Invalidf("FILE", path, "%w", err)
	}
	out := counter{Writer: f}
	err = write(&out)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return 0, errors.Join(err, os.Remove(f.Name()))
	}
	return out.size, nil
}

// counter counts the bytes that pass.
type counter struct {
	io.Writer
	size int64
}

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.size += int64(n)
	return n, err
}

// JSONValues returns the JSON objects in data, in lists or not, or nil for other data.
// single reports that data is one object outside any list.
func JSONValues(data []byte) (values []json.RawMessage, single bool) {
	single = true
	for dec := json.NewDecoder(bytes.NewReader(data)); ; {
		var value json.RawMessage
		err := dec.Decode(&value)
		if errors.Is(err, io.EOF) {
			return values, single && len(values) == 1
		}
		if err != nil || value[0] != '{' && value[0] != '[' {
			return nil, false
		}
		if value[0] == '{' {
			values = append(values, value)
			continue
		}
		var list []json.RawMessage
		if err := json.Unmarshal(value, &list); err != nil {
			return nil, false
		}
		values, single = append(values, list...), false
	}
}
