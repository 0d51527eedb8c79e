package strictjson

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"time"

	v1 "encoding/json"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/pkg/fault"
)

// ErrUnknown is the cause of an error about an unknown name.
var ErrUnknown = errors.New("is not a known field")

// maxClip bounds the quoted part of a name or value, in bytes.
const maxClip = 64

// explain converts an error of the library to one with a field path and a plain message.
func explain(text []byte, err error) error {
	if s := (*jsontext.SyntacticError)(nil); errors.As(err, &s) {
		return at(text, s.JSONPointer, s.ByteOffset, syntax(s))
	}
	s := (*json.SemanticError)(nil)
	if !errors.As(err, &s) {
		return fault.Invalidf("", nil, "is not JSON: %w", err)
	}
	return at(text, s.JSONPointer, s.ByteOffset, meaning(text, s))
}

func syntax(s *jsontext.SyntacticError) error {
	switch {
	case errors.Is(s.Err, jsontext.ErrDuplicateName):
		return fault.Invalidf("", nil, "is given twice")
	case errors.Is(s.Err, io.ErrUnexpectedEOF), errors.Is(s.Err, io.EOF):
		return fault.Invalidf("", nil, "is not JSON: the text ends early")
	default:
		return fault.Invalidf("", nil, "is not JSON: %w at byte %d", s.Err, s.ByteOffset)
	}
}

func meaning(text []byte, s *json.SemanticError) error {
	var own *fault.Error
	var mismatch *v1.UnmarshalTypeError
	switch {
	case errors.Is(s.Err, json.ErrUnknownName):
		return fault.Invalidf("", nil, "%w", ErrUnknown)
	case errors.As(s.Err, &own): // from the type's own UnmarshalJSON, or from nulls
		return s.Err
	case errors.As(s.Err, &mismatch):
		return fault.Invalidf("", nil, "has the wrong type or is out of range")
	}
	want := wanted(s.GoType)
	if want == "" {
		return fault.Invalidf("", nil, "is invalid: %w", s.Err)
	}
	got, value := describe(text[min(int(s.ByteOffset), len(text)):])
	return fault.Invalidf("", value, "must be %s, not %s", want, got)
}

// at prefixes an error with the path of a JSON pointer. It reads the text up to offset, because
// a pointer alone does not separate list indices from names.
func at(text []byte, pointer jsontext.Pointer, offset int64, err error) error {
	in := jsontext.NewDecoder(bytes.NewReader(text))
	for in.InputOffset() < offset {
		if _, err := in.ReadToken(); err != nil {
			break
		}
	}
	path, depth := "", 0
	for name := range pointer.Tokens() {
		depth++
		list := false
		if depth <= in.StackDepth() {
			kind, _ := in.StackIndex(depth)
			list = kind == '['
		}
		switch {
		case list:
			path += "[" + name + "]"
		case path == "":
			path = clean.Text(name, maxClip)
		default:
			path += "." + clean.Text(name, maxClip)
		}
	}
	if path == "" {
		return err
	}
	return fault.In(path, err)
}

// wanted describes the JSON form of a type. The result is empty for types with their own
// UnmarshalJSON.
func wanted(t reflect.Type) string {
	if t == nil {
		return ""
	}
	if t.Kind() == reflect.Pointer {
		return wanted(t.Elem())
	}
	if t == reflect.TypeFor[time.Time]() {
		return "a time as in RFC 3339"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return fmt.Sprintf("a whole number of 0 to %d", uint64(math.MaxUint64)>>(64-t.Bits()))
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Int8, reflect.Int16, reflect.Int32:
		most := int64(math.MaxInt64) >> (64 - t.Bits())
		return fmt.Sprintf("a whole number of %d to %d", -most-1, most)
	case reflect.Float32, reflect.Float64:
		return "a finite number"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "base64 text"
		}
		return "a list"
	}
	return ""
}

// describe describes the first value of a text. The second result is the value itself, if short.
func describe(text []byte) (description string, value any) {
	token, err := jsontext.NewDecoder(bytes.NewReader(bytes.TrimLeft(text, " \t\r\n:,"))).ReadToken()
	if err != nil {
		return "another value", nil
	}
	switch s := token.String(); {
	case token.Kind() == '{':
		return "an object", nil
	case token.Kind() == '[':
		return "a list", nil
	case token.Kind() == '"' && len(s) > maxClip:
		return "a long string", nil
	case token.Kind() == '"':
		return fmt.Sprintf("the string %q", s), s
	default:
		return clean.Text(s, maxClip), clean.Text(s, maxClip)
	}
}
