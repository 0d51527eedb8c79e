package records

import (
	"bytes"
	"encoding/binary"
	"math"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/blackhole/blackhole/pkg/records/jsonform"
)

// openObject is an unfinished message.
type openObject struct {
	given bool
	start int    // of its text in out
	rest  []byte // of the surrounding message
}

// enter starts the message of a field, if present.
func (t *transcoder) enter(n protowire.Number, name string) openObject {
	message, rest, ok := cut(t.in, n)
	if !ok {
		return openObject{}
	}
	t.in = message
	t.out = append(t.out, name...)
	return openObject{given: true, start: len(t.out), rest: rest}
}

// leave ends the message. It skips fields with numbers above the last of the schema. Other
// remaining input is an error.
func (t *transcoder) leave(m openObject, last protowire.Number) {
	for len(t.in) > 0 && !t.misordered {
		number, _, size := protowire.ConsumeField(t.in)
		if t.misordered = size < 0 || number <= last; !t.misordered {
			t.in = t.in[size:]
		}
	}
	t.in = m.rest
	t.out = closeObject(t.out, m.start)
}

// closeObject adds the braces to an object written from start on.
func closeObject(text []byte, start int) []byte {
	if len(text) == start {
		return append(text, "{}"...)
	}
	text[start] = '{'
	return append(text, '}')
}

// bytes returns the value of a string or bytes field, or nil.
func (t *transcoder) bytes(n protowire.Number) []byte {
	value, rest, ok := cut(t.in, n)
	if ok {
		t.in = rest
	}
	return value
}

// begins consumes the tag of a field, if it comes next.
func (t *transcoder) begins(n protowire.Number, kind protowire.Type) bool {
	if len(t.in) == 0 || uint64(t.in[0]) != protowire.EncodeTag(n, kind) {
		return false
	}
	t.in = t.in[1:]
	return true
}

// varint returns the value of an integer field. Callers truncate it to a narrower type, like
// decoders.
func (t *transcoder) varint(n protowire.Number) (v uint64, given bool) {
	if !t.begins(n, protowire.VarintType) {
		return 0, false
	}
	v, size := protowire.ConsumeVarint(t.in)
	if size < 0 {
		t.misordered = true
		return 0, false
	}
	t.in = t.in[size:]
	return v, true
}

// fixed returns the value of a double.
func (t *transcoder) fixed(n protowire.Number) (v float64, given bool) {
	if !t.begins(n, protowire.Fixed64Type) {
		return 0, false
	}
	if len(t.in) < 8 {
		t.misordered = true
		return 0, false
	}
	v = math.Float64frombits(binary.LittleEndian.Uint64(t.in))
	t.in = t.in[8:]
	return v, true
}

// timestamp returns the value of a valid google.protobuf.Timestamp.
func (t *transcoder) timestamp(n protowire.Number) (at time.Time, given bool) {
	message, rest, ok := cut(t.in, n)
	if !ok {
		return time.Time{}, false
	}
	t.in = message
	seconds, _ := t.varint(1)
	nanos, _ := t.varint(2)
	t.misordered = t.misordered || len(t.in) > 0
	t.in = rest
	return time.Unix(int64(seconds), int64(int32(nanos))).UTC(), true
}

// text writes a string unless it is empty.
func (t *transcoder) text(n protowire.Number, name string) {
	if value := t.bytes(n); len(value) > 0 {
		t.out = append(t.out, name...)
		t.out = jsonform.AppendString(t.out, value)
	}
}

// texts writes a list of non-empty strings, unless the list is empty.
func (t *transcoder) texts(n protowire.Number, name string) {
	value := t.bytes(n)
	if value == nil {
		return
	}
	t.out = append(t.out, name...)
	t.out = append(t.out, '[')
	for {
		t.out = jsonform.AppendString(t.out, value)
		if value = t.bytes(n); value == nil {
			break
		}
		t.out = append(t.out, ',')
	}
	t.out = append(t.out, ']')
}

// number writes a whole number.
func (t *transcoder) number(name string, v uint64) {
	t.out = append(t.out, name...)
	t.out = strconv.AppendUint(t.out, v, 10)
}

// uint64 writes a number, 0 for a missing field.
func (t *transcoder) uint64(n protowire.Number, name string) {
	v, _ := t.varint(n)
	t.number(name, v)
}

// uint32 writes a number, 0 for a missing field.
func (t *transcoder) uint32(n protowire.Number, name string) {
	v, _ := t.varint(n)
	t.number(name, uint64(uint32(v)))
}

// bool writes true or false, false for a missing field.
func (t *transcoder) bool(n protowire.Number, name string) {
	v, _ := t.varint(n)
	t.out = append(t.out, name...)
	t.out = strconv.AppendBool(t.out, v != 0)
}

// double writes a number, if present.
func (t *transcoder) double(n protowire.Number, name string) {
	if v, given := t.fixed(n); given {
		t.out = append(t.out, name...)
		t.out = jsonform.AppendNumber(t.out, v)
	}
}

// stamp writes a time unless it is zero.
func (t *transcoder) stamp(n protowire.Number, name string) {
	if at, given := t.timestamp(n); given && !at.IsZero() {
		t.out = append(t.out, name...)
		t.out = jsonform.AppendTime(t.out, at)
	}
}

// attributes writes a map of strings unless it is empty.
func (t *transcoder) attributes(n protowire.Number, name string) {
	t.entries(n, name, func() { t.out = jsonform.AppendString(t.out, t.bytes(2)) })
}

// tiers writes a map of doubles unless it is empty.
func (t *transcoder) tiers(n protowire.Number, name string) {
	t.entries(n, name, func() {
		price, _ := t.fixed(2)
		t.out = jsonform.AppendNumber(t.out, price)
	})
}

// entries writes a map, whose entries are messages of a key and a value. Like in JSON output,
// keys must be unique and ascending.
func (t *transcoder) entries(n protowire.Number, name string, value func()) {
	var last []byte
	start := 0
	for {
		entry, rest, ok := cut(t.in, n)
		if !ok {
			break
		}
		t.in = entry
		key := t.bytes(1)
		if start == 0 {
			t.out = append(t.out, name...)
			start = len(t.out)
		} else if bytes.Compare(last, key) >= 0 {
			t.misordered = true
		}
		t.out = append(t.out, ',')
		t.out = append(jsonform.AppendString(t.out, key), ':')
		value()
		t.misordered = t.misordered || len(t.in) > 0
		t.in, last = rest, key
	}
	if start > 0 {
		t.out = closeObject(t.out, start)
	}
}
