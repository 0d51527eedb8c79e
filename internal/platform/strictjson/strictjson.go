// Package strictjson reads JSON from clients, providers, tokens and the disk under one set of
// rules:
//
//   - names are case-sensitive and occur once per object, at every depth;
//   - Decode refuses unknown names, DecodeOpen ignores them;
//   - null sets a field to its zero value; lists, maps and the whole text refuse null (elements
//     of type json.RawMessage and any keep it);
//   - the text is one value in valid UTF-8, with a limit on size and depth;
//   - numbers fit the type of their field without rounding.
//
// Errors are *fault.Error: Invalid with the path of the field ("gpus[1].model"), or TooLarge.
//
// The package wraps github.com/go-json-experiment/json, the source of encoding/json/v2.
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

// MaxDepth limits the nesting of objects and lists.
const MaxDepth = 32

// Decode reads a text of at most limit bytes into the struct, map or slice at v. An error leaves
// the value at v undefined.
func Decode(text []byte, limit int, v any) error {
	return decode(text, limit, v, json.RejectUnknownMembers(true))
}

// DecodeOpen is Decode for objects with fields of other parties. It ignores unknown names, but
// refuses repeated ones.
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
	if bytes.Contains(text, []byte("null")) { // rare; without the check, decoding takes half the time
		options = json.JoinOptions(options, json.WithUnmarshalers(json.UnmarshalFromFunc(new(nulls).check)))
	}
	if err := json.Unmarshal(text, v, options); err != nil {
		return explain(text, err)
	}
	return nil
}

// tooDeep reports whether a text nests deeper than MaxDepth. The result for invalid JSON is
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

// nulls refuses null as an element. maps[i] records whether the open value at depth i is a map.
type nulls struct{ maps [MaxDepth + 2]bool }

// check inspects each value before the decoder stores it in v.
func (n *nulls) check(in *jsontext.Decoder, v any) error {
	depth := in.StackDepth()
	into := reflect.TypeOf(v).Elem()
	n.maps[depth+1] = into.Kind() == reflect.Map
	kind, _ := in.StackIndex(depth)
	element := depth == 0 || kind == '[' || n.maps[depth]
	if in.PeekKind() == 'n' && element && !keepsNull(into) {
		return fault.Invalidf("", nil, "must not be null")
	}
	return errors.ErrUnsupported // decode v as usual
}

// keepsNull reports whether a type can represent null.
func keepsNull(t reflect.Type) bool {
	return t.Kind() == reflect.Interface || t == reflect.TypeFor[v1.RawMessage]() || t == reflect.TypeFor[jsontext.Value]()
}
