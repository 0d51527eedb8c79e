// Package strictjson reads JSON from clients, providers, tokens and the disk under one set of
// rules:
//
//   - names are exact, with case, and occur once per object, at every depth;
//   - unknown names are refused (DecodeOpen ignores them);
//   - null leaves a field at its zero value, and is refused in lists, in maps and as the whole
//     text (elements of type json.RawMessage and any keep it);
//   - the text is one value in valid UTF-8, bounded in size and in depth;
//   - numbers are in the range of their field, without rounding to whole numbers.
//
// Errors are *fault.Error: Invalid, with the path of the field ("gpus[1].model"), or TooLarge.
package strictjson

import (
	"bytes"
	v1 "encoding/json"
	"errors"
	"reflect"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/blackhole/blackhole/pkg/fault"
)

// MaxDepth bounds the nesting of objects and lists.
const MaxDepth = 32

// Decode reads a text of at most limit bytes into the struct, map or slice at v. After an
// error the value is undefined.
func Decode(text []byte, limit int, v any) error {
	return decode(text, limit, v, json.RejectUnknownMembers(true))
}

// DecodeOpen is Decode for objects of other parties: it ignores unknown names, but refuses
// repeated ones.
func DecodeOpen(text []byte, limit int, v any) error {
	return decode(text, limit, v, json.RejectUnknownMembers(false))
}

func decode(text []byte, limit int, v any, options json.Options) error {
	if len(text) > limit {
		return fault.New("", fault.TooLarge, "%d bytes of JSON exceed the limit of %d", len(text), limit)
	}
	if tooDeep(text) {
		return fault.Invalidf("", nil, "nests objects and lists deeper than %d", MaxDepth)
	}
	if bytes.Contains(text, []byte("null")) { // rare: without it, decoding takes half the time
		options = json.JoinOptions(options, json.WithUnmarshalers(json.UnmarshalFromFunc(new(nulls).check)))
	}
	if err := json.Unmarshal(text, v, options); err != nil {
		return explain(text, err)
	}
	return nil
}

// tooDeep reports whether a text nests deeper than MaxDepth. For invalid JSON the result is
// arbitrary.
func tooDeep(text []byte) bool {
	if bytes.Count(text, []byte("{"))+bytes.Count(text, []byte("[")) <= MaxDepth {
		return false
	}
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > MaxDepth {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// nulls refuses null where it would become a zero element. Entry i of maps records whether the
// open value at depth i is a map.
type nulls struct{ maps [MaxDepth + 2]bool }

// check sees every value before it is decoded into v.
func (n *nulls) check(in *jsontext.Decoder, v any) error {
	depth := in.StackDepth()
	into := reflect.TypeOf(v).Elem()
	n.maps[depth+1] = into.Kind() == reflect.Map
	kind, _ := in.StackIndex(depth)
	element := depth == 0 || kind == '[' || n.maps[depth]
	if in.PeekKind() == 'n' && element && !keepsNull(into) {
		return fault.Invalidf("", nil, "must not be null")
	}
	return errors.ErrUnsupported // that is: decode v as usual
}

// keepsNull reports whether null has a form of its own in a type.
func keepsNull(t reflect.Type) bool {
	return t.Kind() == reflect.Interface || t == reflect.TypeFor[v1.RawMessage]() || t == reflect.TypeFor[jsontext.Value]()
}
