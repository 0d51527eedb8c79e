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

// format is the version of the layout: of the keys, and of the meta value but for "format" itself.
const format = 1

// meta is what the meta value says.
type meta struct {
	owner string
	floor uint64
}

func (c Config) encodeMeta(floor uint64) []byte {
	owner, err := json.Marshal(c.Owner)
	if err != nil {
		panic("ledger: a string does not encode: " + err.Error()) // impossible
	}
	return fmt.Appendf(nil, `{"format":%d,%q:%s,"floor":%d}`, format, c.Role, owner, floor)
}

// decodeMeta refuses another format, whatever else is in it, and fields that it does not know.
func (c Config) decodeMeta(data []byte) (m meta, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return meta{}, err
	}
	switch is := string(fields["format"]); {
	case is == "":
		return meta{}, errors.New("has no format")
	case is != strconv.Itoa(format):
		return meta{}, fault.New("", fault.Unsupported, "the database has format %s, this program knows %d", is, format)
	case len(fields) != 3:
		return meta{}, errors.New("has fields that are not known, or too few")
	}
	err = errors.Join(json.Unmarshal(fields[c.Role], &m.owner), json.Unmarshal(fields["floor"], &m.floor))
	return m, err
}
