package store

import (
	"encoding/json"
	"errors"
	"fmt"
)

// metaKey is the key of the meta value, a JSON object: "format", the owner under its role, "floor".
const metaKey = "meta"

// countKey is the key of the Count of the last write.
const countKey = "writes"

// meta is the content of the meta value.
type meta struct {
	format uint32
	owner  string
	floor  uint64
}

func (c Config) encodeMeta(format uint32, floor uint64) []byte {
	owner, err := json.Marshal(c.Owner)
	if err != nil {
		panic("store: a string does not encode: " + err.Error()) // impossible
	}
	return fmt.Appendf(nil, `{"format":%d,%q:%s,"floor":%d}`, format, c.Role, owner, floor)
}

// decodeMeta reads only the number of a later format, whatever its fields. It refuses unknown fields.
func (c Config) decodeMeta(data []byte) (m meta, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return meta{}, err
	}
	if fields["format"] == nil {
		return meta{}, errors.New("the format is missing")
	}
	if err := json.Unmarshal(fields["format"], &m.format); err != nil {
		return meta{}, err
	}
	switch {
	case m.format > c.Format.Version():
		return m, nil
	case len(fields) != 3:
		return meta{}, errors.New("unknown or missing fields")
	}
	err = errors.Join(json.Unmarshal(fields[c.Role], &m.owner), json.Unmarshal(fields["floor"], &m.floor))
	return m, err
}
