// Package file reads the files that users name.
package file

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"os"

	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Read reads a file, or standard input for "-" or "". Errors name the flag or argument. A file of more
// than limit bytes is refused.
func Read(c *term.Console, flag, path string, limit int) ([]byte, error) {
	in := c.Stdin
	if path != "-" && path != "" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fault.Invalidf(flag, path, "%w", err)
		}
		defer func() { _ = f.Close() }() // only read
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, int64(limit)+1))
	if err != nil {
		return nil, fault.Invalidf(flag, path, "%w", err)
	}
	if len(data) > limit {
		return nil, fault.New("", fault.TooLarge, "%s has more than %d bytes", cmp.Or(path, "-"), limit)
	}
	return data, nil
}

// Write makes a file for its owner alone, which appears only when it is complete and on the disk. It returns the size.
func Write(path string, write func(io.Writer) error) (size int64, err error) {
	part := path + ".partial"
	f, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, fault.Invalidf("FILE", path, "%w", err)
	}
	err = write(f)
	if err == nil {
		size, err = f.Seek(0, io.SeekCurrent)
	}
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		return 0, errors.Join(err, os.Remove(part))
	}
	return size, nil
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
