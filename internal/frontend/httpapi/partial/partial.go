// Package partial cuts JSON answers down to the fields that a request names.
//
// It works on the text of an answer, so an answer keeps its one encoder, and nothing is decoded. The text must be
// compact JSON of this program: no space between values, and names escaped as encoding/json does.
package partial

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records/jsonform"
)

// MaxNames bounds the fields that one request may name.
const MaxNames = 256

// Shape lists the fields that a request may name: a tree of the members of a JSON object. A shape without members is a
// value that only comes whole.
type Shape struct {
	members map[string]*Shape
	any     bool // a map: every name is possible
}

// ShapeOf returns the shape of the JSON of a type. Elements of lists have the shape of the list.
func ShapeOf(t reflect.Type) *Shape {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	s := &Shape{}
	switch {
	case t.Implements(reflect.TypeFor[json.Marshaler]()): // its fields are not its JSON
	case t.Kind() == reflect.Map:
		s.any = true
	case t.Kind() == reflect.Struct:
		s.members = map[string]*Shape{}
		s.add(t)
	}
	return s
}

// add adds the members of a struct, with those of embedded structs.
func (s *Shape) add(t reflect.Type) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			maps.Copy(s.members, ShapeOf(f.Type).members)
		case f.IsExported() && name != "-":
			s.members[name] = ShapeOf(f.Type)
		}
	}
}

// Names returns the paths of all fields, sorted. KEY stands for the keys of a map.
func (s *Shape) Names() []string {
	var names []string
	for name, member := range s.members {
		names = append(names, name)
		for _, below := range member.Names() {
			names = append(names, name+"."+below)
		}
	}
	if s.any {
		names = append(names, "KEY")
	}
	slices.Sort(names)
	return names
}

// Fields are the fields that a request names. A nil *Fields keeps everything.
type Fields struct {
	members map[string]*Fields // by the JSON text of the name; empty keeps the value whole
}

// Parse reads names separated by commas, each a path with dots. An error names what is unknown and lists what is
// possible.
func Parse(s *Shape, lists []string) (*Fields, error) {
	f := &Fields{members: map[string]*Fields{}}
	n := 0
	for _, list := range lists {
		for name := range strings.SplitSeq(list, ",") {
			if n++; n > MaxNames {
				return nil, fault.Invalidf("fields", nil, "has more than %d names: name the parent of several fields", MaxNames)
			}
			if err := f.add(s, strings.TrimSpace(name)); err != nil {
				return nil, err
			}
		}
	}
	return f, nil
}

// add adds one path.
func (f *Fields) add(s *Shape, path string) error {
	names, err := s.split(path)
	if err != nil {
		return err
	}
	for i, name := range names {
		key := string(jsonform.AppendString(nil, name))
		next, named := f.members[key]
		switch {
		case named && len(next.members) == 0:
			return nil // kept whole already
		case !named || i == len(names)-1:
			next = &Fields{members: map[string]*Fields{}}
			f.members[key] = next
		}
		f = next
	}
	return nil
}

// split returns the names of a path that exists.
func (s *Shape) split(path string) (names []string, err error) {
	for rest, more := path, true; more; {
		var name string
		if name, rest, more = strings.Cut(rest, "."); s.any && more {
			name, more = name+"."+rest, false // a key may have dots
		}
		next := s.member(name)
		if next == nil {
			return nil, unknown(s, path, strings.Join(names, "."))
		}
		s, names = next, append(names, name)
	}
	return names, nil
}

func (s *Shape) member(name string) *Shape {
	if s.any && name != "" {
		return &Shape{}
	}
	return s.members[name]
}

// unknown is the error for a path of which only the part known exists.
func unknown(s *Shape, path, known string) error {
	const most = 100 // bytes of a name in an error
	if len(path) > most {
		path = path[:most] + "..."
	}
	if known == "" {
		return fault.Invalidf("fields", path, "has %q, which is unknown here: the fields are %s", path, strings.Join(s.Names(), ", "))
	}
	if names := s.Names(); len(names) > 0 {
		return fault.Invalidf("fields", path, "has %q, which is unknown here: the fields of %s are %s", path, known, strings.Join(names, ", "))
	}
	return fault.Invalidf("fields", path, "has %q, which is unknown here: %s has no fields of its own", path, known)
}

// Cut appends text, one JSON value, with only the named fields of its objects. A list is cut element by element.
func (f *Fields) Cut(dst, text []byte) []byte {
	dst, _ = f.cut(dst, text)
	return dst
}

// CutEntries appends text, a JSON object, with only the named fields of the elements of one of its members.
func (f *Fields) CutEntries(dst, text []byte, list string) []byte {
	if f == nil {
		return append(dst, text...)
	}
	if len(text) == 0 || text[0] != '{' {
		return f.Cut(dst, text)
	}
	name := []byte(`"` + list + `"`)
	dst, _ = object(dst, text, func(dst, member, value []byte) ([]byte, []byte) {
		if bytes.Equal(member, name) {
			return f.cut(append(append(dst, member...), ':'), value)
		}
		return whole(append(append(dst, member...), ':'), value)
	})
	return dst
}

// cut appends the value at the start of text and returns the text behind it.
func (f *Fields) cut(dst, text []byte) (out, rest []byte) {
	if f == nil || len(f.members) == 0 || len(text) == 0 {
		return whole(dst, text)
	}
	switch text[0] {
	case '{':
		return object(dst, text, f.keep)
	case '[':
		dst, text = append(dst, '['), text[1:]
		for len(text) > 0 && text[0] != ']' {
			if text[0] == ',' {
				dst, text = append(dst, ','), text[1:]
			}
			dst, text = f.cut(dst, text)
		}
		return append(dst, ']'), text[min(1, len(text)):]
	}
	return whole(dst, text)
}

// keep appends a member if it is named.
func (f *Fields) keep(dst, name, value []byte) (out, rest []byte) {
	if next := f.members[string(name)]; next != nil {
		return next.cut(append(append(dst, name...), ':'), value)
	}
	return dst, value[end(value):]
}

// object appends the object at the start of text, with each of its members as member appends them, and returns the text
// behind it. A member gets its name and the text from its value on.
func object(dst, text []byte, member func(dst, name, value []byte) (out, rest []byte)) (out, rest []byte) {
	dst, text = append(dst, '{'), text[1:]
	start := len(dst)
	for len(text) > 0 && text[0] != '}' {
		if text[0] == ',' {
			text = text[1:]
		}
		n := end(text)
		mark := len(dst)
		if mark > start {
			dst = append(dst, ',')
		}
		comma := len(dst)
		if dst, text = member(dst, text[:n], text[n+1:]); len(dst) == comma {
			dst = dst[:mark] // left out
		}
	}
	return append(dst, '}'), text[min(1, len(text)):]
}

// whole appends the value at the start of text and returns the text behind it.
func whole(dst, text []byte) (out, rest []byte) {
	n := end(text)
	return append(dst, text[:n]...), text[n:]
}

// end returns the length of the value at the start of text.
func end(text []byte) int {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			i += quoted(text[i:]) - 1
			if depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth <= 0 {
				return i + 1 + min(depth, 0) // a closing bracket of the parent ends a number
			}
		case ',':
			if depth == 0 {
				return i
			}
		}
	}
	return len(text)
}

// quoted returns the length of the string at the start of text.
func quoted(text []byte) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(text)
}
