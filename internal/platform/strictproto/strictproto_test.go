package strictproto

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	dpb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// field returns an unknown field of a later version.
func field(n protowire.Number) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, n, protowire.VarintType), 7)
}

func request(edit func(*pb.Request)) *pb.Request {
	m := &pb.Request{TimeoutMs: 9, Op: &pb.Request_Query{Query: &pb.QueryRequest{
		Query: &dpb.Query{Type: "compute", Near: &dpb.Near{Latitude: 1}, Attributes: map[string]string{"a": "b"}}, Cells: []string{"c"},
	}}}
	edit(m)
	return m
}

func TestCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*pb.Request)
		want []string
	}{
		"all known":      {func(*pb.Request) {}, nil},
		"root":           {func(m *pb.Request) { m.ProtoReflect().SetUnknown(field(77)) }, []string{"77"}},
		"an operation":   {func(m *pb.Request) { m.Op = nil; m.ProtoReflect().SetUnknown(field(999)) }, []string{"999"}},
		"optional":       {func(m *pb.Request) { m.ProtoReflect().SetUnknown(append(field(OptionalFrom), field(OptionalTo)...)) }, nil},
		"beyond":         {func(m *pb.Request) { m.ProtoReflect().SetUnknown(field(OptionalTo + 1)) }, []string{"2000"}},
		"a filter":       {func(m *pb.Request) { m.GetQuery().Query.ProtoReflect().SetUnknown(field(825)) }, []string{"query.query.825"}},
		"deep":           {func(m *pb.Request) { m.GetQuery().Query.Near.ProtoReflect().SetUnknown(field(9)) }, []string{"query.query.near.9"}},
		"a later order":  {func(m *pb.Request) { m.GetQuery().Query.Sort = 99 }, []string{"query.query.sort"}},
		"a negative one": {func(m *pb.Request) { m.GetQuery().Query.Health = -3 }, []string{"query.query.health"}},
		"several, once each": {func(m *pb.Request) {
			m.ProtoReflect().SetUnknown(append(field(77), append(field(77), field(76)...)...))
			m.GetQuery().Query.Sort = 99
		}, []string{"76", "77", "query.query.sort"}},
		"in a list": {func(m *pb.Request) {
			item := &pb.StoreItem{}
			item.ProtoReflect().SetUnknown(field(3))
			m.Op = &pb.Request_Store{Store: &pb.StoreRequest{Items: []*pb.StoreItem{{}, item, item}}}
		}, []string{"store.items.3"}},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := proto.Marshal(request(tc.edit))
			require.NoError(t, err)
			m := new(pb.Request)
			require.NoError(t, proto.Unmarshal(b, m))
			err = Check(m)
			require.Equal(t, tc.want, PathsOf(err))
			if tc.want != nil {
				require.ErrorIs(t, err, fault.Unsupported)
				require.Equal(t, tc.want[0], fault.FieldOf(err))
				require.Contains(t, fault.Message(err), tc.want[0])
			}
		})
	}
}

func TestCheckFieldsLeavesEnums(t *testing.T) {
	m := request(func(m *pb.Request) { m.GetQuery().Query.Sort = 99 })
	require.NoError(t, CheckFields(m))
	m.GetQuery().Query.ProtoReflect().SetUnknown(field(825))
	require.Equal(t, []string{"query.query.825"}, PathsOf(CheckFields(m)))
}

func TestPathsAreBounded(t *testing.T) {
	var all []byte
	for n := range protowire.Number(100) {
		all = append(all, field(200+n)...)
	}
	m := new(pb.Request)
	m.ProtoReflect().SetUnknown(all)
	require.Len(t, PathsOf(Check(m)), MaxPaths)
}

// The asker knows names for the numbers that an older peer reports. What no version of the message has is left
// out.
func TestNames(t *testing.T) {
	got := Names(new(pb.Request), []string{
		"query.query.15", "query.query.sort", "10", "query.query.near.3", "query.query.15",
		"query.query.899", "query.type.x", "nothing", "", "query..", "timeout_ms.1", "4294967297",
	})
	require.Equal(t, []string{"query.query.max_error_rate", "query.query.sort", "findings", "query.query.near.radius_km"}, got)
}

func BenchmarkCheck(b *testing.B) {
	m := request(func(*pb.Request) {})
	for b.Loop() {
		if Check(m) != nil {
			b.Fatal("refused")
		}
	}
}
