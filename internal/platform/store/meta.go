package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/blackhole/blackhole/pkg/fault"
)

// metaKey is the key of the meta value, a JSON object: "format", the owner under its role, "floor".
const metaKey = "meta"

// format is the version of the layout: keys, and the meta value except "format" itself.
const format = 1

// meta is the content of the meta value.
type meta struct {
	owner string
	floor uint64
}

func (c Config) encodeMeta(floor uint64) []byte {
	owner, err := json.Marshal(c.Owner)
	if err != nil {
		panic("store: a string does not encode: " + err.Error()) // impossible
	}
	return fmt.Appendf(nil, `{"format":%d,%q:%s,"floor":%d}`, format, c.Role, owner, floor)
}

// decodeMeta refuses other formats, whatever their fields, and unknown fields.
func (c Config) decodeMeta(data []byte) (m meta, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return meta{}, err
	}
	switch is := string(fields["format"]); {
	case is == "":
		return meta{}, errors.New("the format is missing")
	case is != strconv.Itoa(format):
		return meta{}, fault.New("", fault.Unsupported, "the database has format %s: this program reads format %d", is, format)
	case len(fields) != 3:
		return meta{}, errors.New("unknown or missing fields")
	}
	err = errors.Join(json.Unmarshal(fields[c.Role], &m.owner), json.Unmarshal(fields["floor"], &m.floor))
	return m, err
}
