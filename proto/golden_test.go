package proto_test

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	_ "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	_ "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
	_ "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
	_ "github.com/blackhole/blackhole/proto/blackhole/group/v1"
	_ "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
	_ "github.com/blackhole/blackhole/proto/blackhole/network/v1"
	_ "github.com/blackhole/blackhole/proto/blackhole/peer/v1"
	_ "github.com/blackhole/blackhole/proto/blackhole/trade/v1"
	_ "github.com/blackhole/blackhole/proto/blackhole/xds/v1"
)

var update = flag.Bool("update", false, "write the golden files anew")

// Every message has golden instances: its bytes and its JSON, with a value in each field. Today's code reads
// both, and understands every part. A change of a number, a type or a name shows as a difference.
//
// After an intended change run
//
//	go test ./proto -update
func TestMessagesAreGolden(t *testing.T) {
	goldens := make(map[string][]instance)
	for _, d := range messages(t) {
		file := string(d.ParentFile().Package())
		goldens[file] = append(goldens[file], instances(t, d)...)
	}
	packages, err := filepath.Glob("blackhole/*/v*")
	require.NoError(t, err)
	for _, dir := range packages {
		require.Contains(t, goldens, strings.ReplaceAll(filepath.ToSlash(dir), "/", "."), "import the package above")
	}
	for file, want := range goldens {
		path := filepath.Join("testdata", file+".golden")
		if *update {
			write(t, path, want)
		}
		got := read(t, path)
		require.Equal(t, keys(want), keys(got), "%s: a message or a case without a golden instance, or an instance without a message", path)
		for i, g := range got {
			check(t, path, want[i], g)
		}
	}
}

// instance is a message with its encodings, hexadecimal and compact.
type instance struct {
	name    string // full name; with "/field" for a further case of a oneof
	message proto.Message
	hex     string
	json    string
}

func keys(list []instance) []string {
	var all []string
	for _, x := range list {
		all = append(all, x.name)
	}
	return all
}

// check decodes both golden forms and compares them with the instance.
func check(t *testing.T, path string, want, golden instance) {
	t.Helper()
	where := fmt.Sprintf("%s: %s", path, want.name)
	b, err := hex.DecodeString(golden.hex)
	require.NoError(t, err, where)
	m := want.message.ProtoReflect().New().Interface()
	require.NoError(t, proto.Unmarshal(b, m), where)
	require.True(t, proto.Equal(want.message, m), "%s: the bytes mean\n%v\ninstead of\n%v", where, m, want.message)
	m = want.message.ProtoReflect().New().Interface()
	require.NoError(t, protojson.Unmarshal([]byte(golden.json), m), where)
	require.True(t, proto.Equal(want.message, m), "%s: the JSON means\n%v\ninstead of\n%v", where, m, want.message)
}

// messages returns all messages of this module, by name.
func messages(t *testing.T) []protoreflect.MessageDescriptor {
	var all []protoreflect.MessageDescriptor
	var add func(protoreflect.MessageDescriptors)
	add = func(list protoreflect.MessageDescriptors) {
		for i := range list.Len() {
			if d := list.Get(i); !d.IsMapEntry() {
				all = append(all, d)
				add(d.Messages())
			}
		}
	}
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if strings.HasPrefix(string(f.Package()), "blackhole.") {
			add(f.Messages())
		}
		return true
	})
	require.NotEmpty(t, all)
	slices.SortFunc(all, func(a, b protoreflect.MessageDescriptor) int {
		return strings.Compare(string(a.FullName()), string(b.FullName()))
	})
	return all
}

// instances returns an instance with every field, and one more for each further case of a oneof.
func instances(t *testing.T, d protoreflect.MessageDescriptor) []instance {
	base := fill(t, d)
	list := []instance{encode(t, string(d.FullName()), base)}
	for i := range d.Oneofs().Len() {
		o := d.Oneofs().Get(i)
		for j := 1; j < o.Fields().Len() && !o.IsSynthetic(); j++ {
			m, f := proto.Clone(base.Interface()).ProtoReflect(), o.Fields().Get(j)
			set(t, m, f)
			list = append(list, encode(t, string(d.FullName())+"/"+string(f.Name()), m))
		}
	}
	return list
}

func encode(t *testing.T, name string, m protoreflect.Message) instance {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m.Interface())
	require.NoError(t, err)
	loose, err := protojson.Marshal(m.Interface())
	require.NoError(t, err)
	var compact bytes.Buffer // protojson varies its spaces on purpose
	require.NoError(t, json.Compact(&compact, loose))
	return instance{name: name, message: m.Interface(), hex: hex.EncodeToString(b), json: compact.String()}
}

// fill returns a message with every field, and the first case of each oneof.
func fill(t *testing.T, d protoreflect.MessageDescriptor) protoreflect.Message {
	m := blank(t, d)
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if o := f.ContainingOneof(); o == nil || o.IsSynthetic() || o.Fields().Get(0) == f {
			set(t, m, f)
		}
	}
	return m
}

func blank(t *testing.T, d protoreflect.MessageDescriptor) protoreflect.Message {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	require.NoError(t, err)
	return kind.New()
}

// set sets a field to values that follow from its number.
func set(t *testing.T, m protoreflect.Message, f protoreflect.FieldDescriptor) {
	switch {
	case f.IsMap():
		m.Mutable(f).Map().Set(value(t, f.MapKey(), int(f.Number())).MapKey(), value(t, f.MapValue(), int(f.Number())))
	case f.IsList():
		list := m.Mutable(f).List()
		list.Append(value(t, f, int(f.Number())))
		list.Append(value(t, f, int(f.Number())+1))
	default:
		m.Set(f, value(t, f, int(f.Number())))
	}
}

// value returns a value of a field's kind. A message has its first field only: it has golden instances itself.
func value(t *testing.T, f protoreflect.FieldDescriptor, n int) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.MessageKind:
		m := blank(t, f.Message())
		if fields := f.Message().Fields(); fields.Len() > 0 && fields.Get(0).Message() == nil {
			set(t, m, fields.Get(0))
		}
		return protoreflect.ValueOfMessage(m)
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(fmt.Sprintf("text %d", n))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte{0xb0, byte(n)})
	case protoreflect.EnumKind:
		values := f.Enum().Values()
		return protoreflect.ValueOfEnum(values.Get(values.Len() - 1).Number())
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(n) + 0.5)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(n) + 0.5)
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(1000 + n))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(int64(1000 + n))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(1000 + n))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(uint64(1000 + n))
	}
	t.Fatalf("%s: no value for the kind %s", f.FullName(), f.Kind())
	return protoreflect.Value{}
}

const header = "# Messages with a value in each field: name, bytes in hexadecimal (- for none), JSON. Written by: go test ./proto -update\n"

func write(t *testing.T, path string, list []instance) {
	var b strings.Builder
	b.WriteString(header)
	for _, x := range list {
		fmt.Fprintf(&b, "\n%s\n%s\n%s\n", x.name, cmp.Or(x.hex, "-"), x.json)
	}
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o644))
}

func read(t *testing.T, path string) []instance {
	text, err := os.ReadFile(path)
	require.NoError(t, err, "run: go test ./proto -update")
	var lines []string
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		if !strings.HasPrefix(s.Text(), "#") && s.Text() != "" {
			lines = append(lines, s.Text())
		}
	}
	var list []instance
	for x := range slices.Chunk(lines, 3) {
		require.Len(t, x, 3, path)
		list = append(list, instance{name: x[0], hex: strings.TrimPrefix(x[1], "-"), json: x[2]})
	}
	return list
}
