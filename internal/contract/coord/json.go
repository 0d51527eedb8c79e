package coord

import (
	"encoding/json"
	"strconv"
	"unicode/utf8"
)

// The nouns have the names of the API's messages in JSON. Ids are strings, because they have more digits than a JavaScript number.

// MarshalText implements encoding.TextMarshaler: the id in decimal, or "hidden".
func (id LeaseID) MarshalText() ([]byte, error) {
	if id == HiddenLease {
		return []byte("hidden"), nil
	}
	return strconv.AppendInt(nil, int64(id), 10), nil
}

// MarshalText implements encoding.TextMarshaler: exclusive, shared or permit.
func (m Mode) MarshalText() ([]byte, error) {
	switch m {
	case Shared:
		return []byte("shared"), nil
	case Permit:
		return []byte("permit"), nil
	}
	return []byte("exclusive"), nil
}

// MarshalJSON implements json.Marshaler. Bytes that are not text have names of their own: key_base64 and value_base64.
func (kv *KeyValue) MarshalJSON() ([]byte, error) {
	out := struct {
		Key            string   `json:"key"`
		KeyBase64      []byte   `json:"key_base64,omitempty"`
		Value          string   `json:"value,omitempty"`
		ValueBase64    []byte   `json:"value_base64,omitempty"`
		CreateRevision Revision `json:"create_revision"`
		ModRevision    Revision `json:"mod_revision"`
		Version        int64    `json:"version"`
		Lease          LeaseID  `json:"lease_id,omitzero"`
	}{CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version, Lease: kv.Lease}
	out.Key, out.KeyBase64 = readable([]byte(kv.Key))
	out.Value, out.ValueBase64 = readable(kv.Value)
	return json.Marshal(out)
}

func readable(b []byte) (text string, other []byte) {
	if utf8.Valid(b) {
		return string(b), nil
	}
	return "", b
}
