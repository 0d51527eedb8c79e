package keepertest

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/multiformats/go-varint"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/blackhole/blackhole/internal/platform/strictproto"
)

// Future turns messages of today into messages of a later version. Its bytes decide: an unknown field for some
// messages, an unknown value for some enums, an unknown operation.
type Future struct {
	Bytes    []byte
	Must     bool // something was added that a reader has to understand
	Replaced bool // an operation became a later one
}

func (f *Future) next() byte {
	if len(f.Bytes) == 0 {
		return 0
	}
	b := f.Bytes[0]
	f.Bytes = f.Bytes[1:]
	return b
}

// change edits a message and all messages in it.
func (f *Future) change(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() { // in the order of the schema: Range has none
		fd := fields.Get(i)
		switch v := m.Get(fd); {
		case !m.Has(fd) || fd.IsMap():
		case fd.Kind() == protoreflect.EnumKind && !fd.IsList():
			if n := f.next(); n%4 == 1 {
				m.Set(fd, protoreflect.ValueOfEnum(protoreflect.EnumNumber(1000+int(n))))
				f.Must = true
			}
		case fd.Message() == nil:
		case fd.IsList():
			for j := range v.List().Len() {
				f.change(v.List().Get(j).Message())
			}
		case fd.ContainingOneof() != nil && f.next()%16 == 7: // another operation
			m.Clear(fd)
			m.SetUnknown(append(m.GetUnknown(), UnknownField(400, "a later operation")...))
			f.Must, f.Replaced = true, true
		default:
			f.change(v.Message())
		}
	}
	if n := f.next(); n%2 == 1 {
		number := strictproto.OptionalFrom + protowire.Number(n)
		if n%4 == 1 {
			number = 300 + protowire.Number(n)
			f.Must = true
		}
		kinds := [][]byte{
			UnknownField(number, "of a later version"),
			protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), 1<<63),
			protowire.AppendFixed64(protowire.AppendTag(nil, number, protowire.Fixed64Type), 7),
			protowire.AppendTag(protowire.AppendTag(nil, number, protowire.StartGroupType), number, protowire.EndGroupType),
		}
		m.SetUnknown(append(m.GetUnknown(), kinds[int(f.next())%len(kinds)]...))
	}
}

// Later returns the encoding of a message of a later version.
func (f *Future) Later(t testing.TB, m proto.Message) []byte {
	m = proto.Clone(m)
	f.change(m.ProtoReflect())
	b, err := proto.Marshal(m)
	require.NoError(t, err)
	return b
}

// AddFutures adds seeds for some kinds of messages.
func AddFutures(f *testing.F, kinds int) {
	random := rand.New(rand.NewPCG(13, 3))
	for i := range kinds {
		f.Add(byte(i), []byte{})
		f.Add(byte(i), bytes.Repeat([]byte{1}, 40))
		f.Add(byte(i), bytes.Repeat([]byte{3}, 40))
		for range 200 { // without -fuzz too
			choices := make([]byte, 40)
			for j := range choices {
				choices[j] = byte(random.Uint32())
			}
			f.Add(byte(i), choices)
		}
	}
}

// UnknownField returns an encoded field with a text.
func UnknownField(n protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, n, protowire.BytesType), text)
}

// Delimited returns a message with its length, as on the wire.
func Delimited(b []byte) []byte { return append(varint.ToUvarint(uint64(len(b))), b...) }
