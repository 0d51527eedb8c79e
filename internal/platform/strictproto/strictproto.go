// Package strictproto finds in a request what this version does not know.
//
// Protobuf drops unknown fields without a word. A dropped filter of a query, or a dropped option of a lock,
// makes an answer wrong. So the side that serves a request refuses what it does not know, and names it. A
// later version marks a field that an older one may drop by its number: OptionalFrom to OptionalTo.
//
// Responses and signed data follow other rules: their readers ignore or keep unknown fields.
package strictproto

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/blackhole/blackhole/pkg/fault"
)

// The numbers of the fields of requests that a reader may ignore.
const (
	OptionalFrom protowire.Number = 1000
	OptionalTo   protowire.Number = 1999
)

// MaxPaths is the maximum number of paths of one error.
const MaxPaths = 16

// Error lists what this version does not know in a request.
type Error struct {
	// Paths from the root of the request. An unknown field has its number ("query.query.25"), an unknown
	// value of an enum the name of its field ("query.query.sort"). At most MaxPaths, sorted, distinct.
	Paths []string
}

// Error names the paths.
func (e *Error) Error() string {
	return "this version does not know " + strings.Join(e.Paths, ", ") + " of the request"
}

// PathsOf returns the paths of an Error in err's chain.
func PathsOf(err error) []string {
	var e *Error
	if errors.As(err, &e) {
		return e.Paths
	}
	return nil
}

// Refuse returns the error of a request with the given unknown paths: Unsupported, with an Error as its cause.
func Refuse(paths []string) error {
	return &fault.Error{Kind: fault.Unsupported, Field: paths[0], Err: &Error{paths}}
}

// Check refuses a request with a field or a value of an enum that this version does not know, at any depth. It
// returns nil or the error of Refuse. Protobuf itself drops unknown fields of map entries: no version may
// add any.
func Check(m proto.Message) error { return check(m, finder{enums: true}) }

// CheckFields is Check without the values of enums, for a reader that validates all of them.
func CheckFields(m proto.Message) error { return check(m, finder{}) }

func check(m proto.Message, f finder) error {
	f.message(m.ProtoReflect(), "")
	if len(f.paths) == 0 {
		return nil
	}
	slices.Sort(f.paths)
	return Refuse(f.paths)
}

// finder collects paths.
type finder struct {
	enums bool // values of enums count
	paths []string
}

func (f *finder) add(path string) {
	if len(f.paths) < MaxPaths && !slices.Contains(f.paths, path) {
		f.paths = append(f.paths, path)
	}
}

// message adds the paths of a message. Prefix is its path, with a dot at the end unless it is the root.
func (f *finder) message(m protoreflect.Message, prefix string) {
	for b := m.GetUnknown(); len(b) > 0; {
		number, _, n := protowire.ConsumeField(b)
		if n < 0 {
			f.add(prefix + "?") // impossible: the decoder has parsed it
			break
		}
		if number < OptionalFrom || number > OptionalTo {
			f.add(prefix + strconv.Itoa(int(number)))
		}
		b = b[n:]
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		f.field(fd, v, prefix+string(fd.Name()))
		return len(f.paths) < MaxPaths
	})
}

func (f *finder) field(fd protoreflect.FieldDescriptor, v protoreflect.Value, path string) {
	switch {
	case fd.IsMap():
		if value := fd.MapValue(); nested(value) {
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				f.value(value, v, path)
				return len(f.paths) < MaxPaths
			})
		}
	case !nested(fd):
	case fd.IsList():
		list := v.List()
		for i := 0; i < list.Len() && len(f.paths) < MaxPaths; i++ {
			f.value(fd, list.Get(i), path)
		}
	default:
		f.value(fd, v, path)
	}
}

// nested reports whether values of a field can hold something unknown.
func nested(fd protoreflect.FieldDescriptor) bool {
	return fd.Kind() == protoreflect.EnumKind || fd.Message() != nil
}

func (f *finder) value(fd protoreflect.FieldDescriptor, v protoreflect.Value, path string) {
	if fd.Kind() != protoreflect.EnumKind {
		f.message(v.Message(), path+".")
	} else if f.enums && fd.Enum().Values().ByNumber(v.Enum()) == nil {
		f.add(path)
	}
}

// Names returns paths of another peer's Error with names for the numbers that this version knows in messages
// like root. It leaves out what is no path of such a message.
func Names(root proto.Message, paths []string) []string {
	var names []string
	for _, path := range paths[:min(len(paths), MaxPaths)] {
		if name, ok := nameOf(root.ProtoReflect().Descriptor(), path); ok && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// nameOf returns one path with names. It reports false for a path that does not exist in this version.
func nameOf(d protoreflect.MessageDescriptor, path string) (string, bool) {
	var named []string
	for part := range strings.SplitSeq(path, ".") {
		if d == nil {
			return "", false
		}
		fd := d.Fields().ByName(protoreflect.Name(part))
		if n, err := strconv.ParseUint(part, 10, 29); err == nil {
			fd = d.Fields().ByNumber(protowire.Number(n))
		}
		if fd == nil {
			return "", false
		}
		named = append(named, string(fd.Name()))
		d = fd.Message()
	}
	return strings.Join(named, "."), true
}
