package transcode

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/internal/platform/strictjson"
	"github.com/blackhole/blackhole/pkg/fault"
)

// object reads a JSON object into a message. As in package strictjson, null keeps the default of a field.
func object(m protoreflect.Message, text []byte) error {
	var members map[string]json.RawMessage
	if err := strictjson.Decode(text, len(text), &members); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		f := m.Descriptor().Fields().ByName(protoreflect.Name(name))
		if f == nil {
			return fault.Invalidf(input.Quote(name), nil, "%w", strictjson.ErrUnknown)
		}
		if string(members[name]) == "null" {
			continue
		}
		if one := f.ContainingOneof(); one != nil && m.WhichOneof(one) != nil {
			return fault.Invalidf("", nil, "has %s beside %s: it needs exactly one", name, m.WhichOneof(one).Name())
		}
		if err := member(m, f, members[name]); err != nil {
			return err
		}
	}
	return nil
}

// member reads the value of a field.
func member(m protoreflect.Message, f protoreflect.FieldDescriptor, text []byte) error {
	name := string(f.Name())
	if !f.IsList() {
		v, err := value(f, m.NewField(f), text)
		if err != nil {
			return fault.In(name, err)
		}
		m.Set(f, v)
		return nil
	}
	var items []json.RawMessage
	if err := strictjson.Decode(text, len(text), &items); err != nil {
		return fault.In(name, err)
	}
	list := m.Mutable(f).List()
	for i, item := range items {
		v, err := value(f, list.NewElement(), item)
		if err != nil {
			return fault.In(fmt.Sprintf("%s[%d]", name, i), err)
		}
		list.Append(v)
	}
	return nil
}

// value reads one value; empty has its kind.
func value(f protoreflect.FieldDescriptor, empty protoreflect.Value, text []byte) (protoreflect.Value, error) {
	if f.Message() != nil {
		return empty, object(empty.Message(), text)
	}
	var s string
	quoted := text[0] == '"'
	if quoted {
		if err := strictjson.Decode(text, len(text), &s); err != nil {
			return empty, err
		}
	} else {
		s = string(text)
	}
	switch f.Kind() {
	case protoreflect.StringKind, protoreflect.EnumKind:
		if !quoted {
			return empty, fault.Invalidf("", input.Quote(s), "must be a string, not %s", input.Quote(s))
		}
	case protoreflect.BytesKind:
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil || !quoted {
			return empty, fault.Invalidf("", input.Quote(s), "must be base64 text")
		}
		s = string(b)
	case protoreflect.BoolKind:
		if quoted {
			return empty, fault.Invalidf("", input.Quote(s), "must be true or false, not the string %q", input.Quote(s))
		}
	}
	return scalar(f, s)
}

// scalar reads the plain text of a value.
func scalar(f protoreflect.FieldDescriptor, text string) (v protoreflect.Value, err error) {
	switch f.Kind() {
	case protoreflect.BoolKind:
		if text != "true" && text != "false" {
			return v, fault.Invalidf("", input.Quote(text), "must be true or false")
		}
		return protoreflect.ValueOfBool(text == "true"), nil
	case protoreflect.Int64Kind:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return v, fault.Invalidf("", input.Quote(text), "must be a whole number")
		}
		return protoreflect.ValueOfInt64(n), nil
	case protoreflect.Uint32Kind:
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return v, fault.Invalidf("", input.Quote(text), "must be a whole number of 0 to 4294967295")
		}
		return protoreflect.ValueOfUint32(uint32(n)), nil
	case protoreflect.Uint64Kind:
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return v, fault.Invalidf("", input.Quote(text), "must be a whole number, at least 0")
		}
		return protoreflect.ValueOfUint64(n), nil
	case protoreflect.DoubleKind:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsInf(n, 0) || math.IsNaN(n) {
			return v, fault.Invalidf("", input.Quote(text), "must be a number")
		}
		return protoreflect.ValueOfFloat64(n), nil
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(text)), nil
	case protoreflect.EnumKind:
		known := f.Enum().Values()
		if one := known.ByName(protoreflect.Name(text)); one != nil {
			return protoreflect.ValueOfEnum(one.Number()), nil
		}
		var names []string
		for i := range known.Len() {
			names = append(names, string(known.Get(i).Name()))
		}
		return v, fault.Invalidf("", input.Quote(text), "must be one of %v", names)
	case protoreflect.StringKind:
		if !utf8.ValidString(text) {
			return v, fault.Invalidf("", nil, "must be valid UTF-8")
		}
		return protoreflect.ValueOfString(text), nil
	}
	return v, fault.Invalidf("", nil, "has a kind that a request cannot hold")
}
