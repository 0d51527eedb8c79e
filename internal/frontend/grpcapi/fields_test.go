package grpcapi_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/blackhole/blackhole/internal/discovery/discoverytest"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

func fields(paths ...string) *fieldmaskpb.FieldMask { return &fieldmaskpb.FieldMask{Paths: paths} }

// TestFields: a mask keeps the named fields of each entry, and leaves the records of the peer whole.
func TestFields(t *testing.T) {
	s, h := whole(t)
	f := h.Foreign(t, discoverytest.Offer("f"))
	c := api.NewRecordServiceClient(s.conn(t))
	q := &pb.Query{Type: "compute", Near: &pb.Near{Latitude: 52.5, Longitude: 13.4}}
	got, err := c.Query(t.Context(), &api.QueryRequest{Query: q, Fields: fields("record.service.location.country", "distance_km", "record.service.id", "record.service.location.country")})
	require.NoError(t, err)
	require.Equal(t, uint64(1), got.Total)
	want := &api.QueryResult{DistanceKm: got.Results[0].DistanceKm, Record: &api.Record{Service: &pb.ServiceRecord{Id: "f", Location: &pb.GeoLocation{Country: "DE"}}}}
	require.NotNil(t, want.DistanceKm)
	require.True(t, proto.Equal(want, got.Results[0]), "%v", got.Results[0])

	all, err := c.Query(t.Context(), &api.QueryRequest{Query: q, Fields: fields("record.service.id", "record")})
	require.NoError(t, err)
	require.Equal(t, f.Envelope(), all.Results[0].Record.Envelope, "the parent keeps everything")
	require.True(t, proto.Equal(f.Service(), all.Results[0].Record.Service))

	key := f.Key().String()
	resolved, err := c.Resolve(t.Context(), &api.ResolveRequest{Key: key, Fields: fields("key")})
	require.NoError(t, err)
	require.True(t, proto.Equal(&api.Record{Key: key}, resolved.Record), "%v", resolved.Record)
	watch, err := c.Watch(t.Context(), &api.WatchRequest{Query: q, Fields: fields("service.id")})
	require.NoError(t, err)
	ev, err := watch.Recv()
	require.NoError(t, err)
	require.True(t, proto.Equal(&api.Record{Service: &pb.ServiceRecord{Id: "f"}}, ev.Record), "%v", ev.Record)
}

func TestFieldsOfOwnRecords(t *testing.T) {
	s, h := whole(t)
	receipt, err := h.Register(t.Context(), discoverytest.Offer("mine"))
	require.NoError(t, err)
	c := api.NewRecordServiceClient(s.conn(t))
	want := &api.Record{Key: receipt.Key}
	list, err := c.List(t.Context(), &api.ListRequest{Fields: fields("key")})
	require.NoError(t, err)
	require.Len(t, list.Records, 1)
	require.True(t, proto.Equal(want, list.Records[0]), "%v", list.Records[0])
	one, err := c.Get(t.Context(), &api.GetRequest{Id: "mine", Fields: fields("key")})
	require.NoError(t, err)
	require.True(t, proto.Equal(want, one.Record), "%v", one.Record)
}

func TestFieldsUnknown(t *testing.T) {
	s, _ := whole(t)
	c := api.NewRecordServiceClient(s.conn(t))
	for path, why := range map[string]string{
		"id":                                  "the fields of QueryResult are record, distance_km, score, explain",
		"":                                    "the fields of QueryResult are",
		"record.Key":                          "the fields of Record are service, envelope, key",
		"score.x":                             "goes below a field",
		"explain.x":                           "goes below a field",
		"record.service.metadata.endpoints.x": "goes below a field",
		strings.Repeat("x", 10_000):           "...",
	} {
		_, err := c.Query(t.Context(), &api.QueryRequest{Query: &pb.Query{Type: "compute"}, Fields: fields("record", path)})
		require.Equal(t, codes.InvalidArgument, status.Code(err), path)
		require.ErrorContains(t, err, why, path)
		require.Equal(t, "fields", status.Convert(err).Details()[0].(*api.Error).Field)
	}
	for _, call := range []func() error{
		func() error { _, err := c.List(t.Context(), &api.ListRequest{Fields: fields("x")}); return err },
		func() error { _, err := c.Get(t.Context(), &api.GetRequest{Fields: fields("x")}); return err },
		func() error { _, err := c.Resolve(t.Context(), &api.ResolveRequest{Fields: fields()}); return err },
		func() error {
			w, err := c.Watch(t.Context(), &api.WatchRequest{Query: &pb.Query{Type: "compute"}, Fields: fields("x")})
			require.NoError(t, err)
			_, err = w.Recv()
			return err
		},
		func() error {
			_, err := c.List(t.Context(), &api.ListRequest{Fields: fields(make([]string, 257)...)})
			return err
		},
	} {
		require.Equal(t, codes.InvalidArgument, status.Code(call()))
	}
}
