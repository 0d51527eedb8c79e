// Package file reads the files that users name.
package file

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"

	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/fault"
)

// ReadFile reads a file, or standard input for "-". Errors name the flag. A file of more
// than limit bytes is refused.
func ReadFile(c *term.Console, flag, path string, limit int) ([]byte, error) {
	in := c.Stdin
	if path != "-" {
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
		return nil, fault.New("", fault.TooLarge, "%s has more than %d bytes", path, limit)
	}
	return data, nil
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
