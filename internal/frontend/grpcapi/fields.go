package grpcapi

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/blackhole/blackhole/pkg/fault"
)

// maxPaths bounds the paths of a field mask.
const maxPaths = 256

// mask is a field mask as a tree. A nil mask keeps everything, and so does a mask without members.
type mask map[protoreflect.Name]mask

// maskOf checks a field mask against the kind of its messages. As elsewhere, a path ends at a list or a map.
func maskOf(m *fieldmaskpb.FieldMask, kind proto.Message) (mask, error) {
	if m == nil {
		return nil, nil
	}
	if n := len(m.GetPaths()); n == 0 || n > maxPaths {
		return nil, fault.Invalidf("fields", n, "must have 1 to %d paths, or be absent for all fields", maxPaths)
	}
	root := mask{}
	for _, path := range slices.Sorted(slices.Values(m.GetPaths())) { // a parent comes before its fields
		if err := root.add(kind.ProtoReflect().Descriptor(), path); err != nil {
			return nil, err
		}
	}
	return root, nil
}

func (m mask) add(kind protoreflect.MessageDescriptor, path string) error {
	kept := false // whole, by a parent
	for rest, more := path, true; more; {
		var name string
		name, rest, more = strings.Cut(rest, ".")
		field := protoreflect.FieldDescriptor(nil)
		if kind != nil {
			field = kind.Fields().ByName(protoreflect.Name(name))
		}
		if field == nil {
			return unknownField(kind, path)
		}
		next, named := m[field.Name()]
		kept = kept || named && len(next) == 0
		if !named && !kept {
			next = mask{}
			m[field.Name()] = next
		}
		m, kind = next, nil
		if field.Message() != nil && !field.IsList() && !field.IsMap() {
			kind = field.Message()
		}
	}
	return nil
}

// unknownField is the error for a path that leaves the messages of a kind.
func unknownField(kind protoreflect.MessageDescriptor, path string) error {
	const most = 100 // bytes of a path in an error
	if len(path) > most {
		path = path[:most] + "..."
	}
	if kind == nil {
		return fault.Invalidf("fields", path, "has %q, which goes below a field without fields of its own", path)
	}
	var names []string
	for i := range kind.Fields().Len() {
		names = append(names, string(kind.Fields().Get(i).Name()))
	}
	return fault.Invalidf("fields", path, "has %q, which is unknown: the fields of %s are %s", path, kind.Name(), strings.Join(names, ", "))
}

// cut returns a message with the fields of a mask. It shares memory with m and leaves it alone: peers share the
// messages of records.
func cut[M proto.Message](keep mask, m M) M {
	if len(keep) == 0 {
		return m
	}
	out, ok := keep.of(m.ProtoReflect()).Interface().(M)
	if !ok {
		panic(fmt.Sprintf("grpcapi: a copy of %T has another type", m)) // impossible
	}
	return out
}

func (m mask) of(from protoreflect.Message) protoreflect.Message {
	to := from.New()
	for i := range from.Descriptor().Fields().Len() {
		field := from.Descriptor().Fields().Get(i)
		below, named := m[field.Name()]
		if !named || !from.Has(field) {
			continue
		}
		value := from.Get(field)
		if len(below) > 0 {
			value = protoreflect.ValueOfMessage(below.of(value.Message()))
		}
		to.Set(field, value)
	}
	return to
}
