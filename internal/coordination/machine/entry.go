package machine

import (
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// maxEntry bounds the value of an entry, in bytes. This file is part of the log's format: members of
// all versions must refuse the same batches. So a fixed table of the original fields checks the form
// of a value, not the generated code of the message, which grows.
const maxEntry = instance.MaxSize

// form is the wire form of a message's field.
type form uint8

const (
	ofAny    form = iota // not in the table
	ofNumber             // varint
	ofText               // UTF-8
	ofBytes
	ofPair  // two texts: an entry of a map
	ofSpan  // two numbers: a duration or a timestamp
	ofCheck // a health check
)

// instanceForms gives the form of a field of blackhole.agent.v1.Instance.
func instanceForms(field protowire.Number) form {
	switch field {
	case 4, 5, 18, 22, 27:
		return ofNumber
	case 1, 2, 3, 8, 9, 11, 12, 13, 14, 15, 16, 17, 25, 26:
		return ofText
	case 6, 10:
		return ofPair
	case 7:
		return ofCheck
	case 19, 20, 23, 24:
		return ofSpan
	case 21:
		return ofBytes
	}
	return ofAny
}

// parts returns the forms of the fields inside an instance.
func (f form) parts(field protowire.Number) form {
	switch {
	case f == ofPair && field <= 2, f == ofCheck && field <= 2:
		return ofText
	case f == ofSpan && field <= 2, f == ofCheck && (field == 5 || field == 6):
		return ofNumber
	case f == ofCheck && field <= 4:
		return ofSpan
	}
	return ofAny
}

// check looks at an entry by itself.
func checkEntry(e *coord.Entry, l *limits) error {
	if err := l.key("key", e.Key); err != nil {
		return err
	}
	key, ok := coord.InstanceKey(e.Key)
	if !ok {
		return fault.Invalidf("key", nil, "must be directory/NAMESPACE/SERVICE/ID")
	}
	if e.Since < 0 {
		return fault.Invalidf("since", e.Since, "must not be negative")
	}
	if most := min(maxEntry, int(l.ValueBytes)); len(e.Value) > most {
		return tooLarge("value", len(e.Value), int64(most))
	}
	var namespace, service, id bool // whether the value names those of the key; the last field counts
	if !wellFormed(e.Value, instanceForms, func(field protowire.Number, value []byte) {
		switch field {
		case 1:
			id = string(value) == key.ID
		case 2:
			service = string(value) == key.Service
		case 8:
			namespace = string(value) == key.Namespace
		}
	}) {
		return fault.Invalidf("value", nil, "is no instance")
	}
	if !namespace || !service || !id {
		return fault.Invalidf("value", nil, "is not of the instance that the key names")
	}
	return nil
}

// wellFormed reports whether a message's fields have their forms, and shows top-level byte fields.
func wellFormed(b []byte, forms func(protowire.Number) form, show func(protowire.Number, []byte)) bool {
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 || !field.IsValid() {
			return false
		}
		b = b[n:]
		f := forms(field)
		if kind != protowire.BytesType {
			if n = plain(field, kind, b); n < 0 || f != ofAny && (f != ofNumber || kind != protowire.VarintType) {
				return false
			}
			b = b[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(b)
		if n < 0 || !f.holds(value) {
			return false
		}
		if b = b[n:]; show != nil {
			show(field, value)
		}
	}
	return true
}

// plain returns the length of a value without a length prefix, or a negative number. Groups are
// refused.
func plain(field protowire.Number, kind protowire.Type, b []byte) int {
	if kind == protowire.StartGroupType || kind == protowire.EndGroupType {
		return -1
	}
	return protowire.ConsumeFieldValue(field, kind, b)
}

// holds reports whether a field's bytes have the form.
func (f form) holds(value []byte) bool {
	switch f {
	case ofNumber:
		return false
	case ofText:
		return utf8.Valid(value)
	case ofPair, ofSpan, ofCheck:
		return wellFormed(value, f.parts, nil)
	}
	return true
}

// reserved reports whether a key is in a prefix that only the directory's commands write.
func reserved(key string) bool {
	return strings.HasPrefix(key, coord.DirectoryPrefix) || strings.HasPrefix(key, coord.RequirementsPrefix)
}
