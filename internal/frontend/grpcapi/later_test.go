package grpcapi_test

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/discovery/recordstest"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// one is a finder of one record.
type one struct {
	discovery.Registrar
	record *records.Record
}

func (o one) Own(string) (*records.Record, error) { return o.record, nil }

func (o one) Query(context.Context, query.Query) (*query.Answer, error) {
	return &query.Answer{Results: []query.Result{{Record: o.record}}}, nil
}

func (o one) Resolve(context.Context, string) (*records.Record, error) { return o.record, nil }

func (o one) Watch(context.Context, query.Query, string) (discovery.Watcher, error) { return o, nil }

func (o one) Next(context.Context) (query.Event, error) {
	return query.Event{Kind: query.Added, Record: o.record}, nil
}

func (one) Close() {}

// TestRecordsOfALaterVersion: callers of the API get the signed bytes of a record with fields that nobody on the way knows.
func TestRecordsOfALaterVersion(t *testing.T) {
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	require.NoError(t, err)
	id, err := peer.IDFromPrivateKey(key)
	require.NoError(t, err)
	now := time.Now()
	plain, err := records.Open("test", recordstest.Sign(t, "test", key, &pb.ServiceRecord{
		Id: "a", ProviderId: id.String(), Metadata: &pb.ServiceMetadata{Type: "oracle"}, Sequence: 1,
		CreatedAt: timestamppb.New(now), UpdatedAt: timestamppb.New(now), ExpiresAt: timestamppb.New(now.Add(time.Hour)),
	}), now)
	require.NoError(t, err)
	later := recordstest.Later(t, key, plain)
	require.NotEqual(t, plain.Envelope(), later.Envelope())

	o := one{record: later}
	s := serve(t, grpcapi.Config{Registrar: o, Finder: o})
	c := s.client(t)
	answer, err := api.NewRecordServiceClient(s.conn(t)).Query(t.Context(), &api.QueryRequest{Query: &pb.Query{Type: "oracle"}})
	require.NoError(t, err)
	found, err := c.Offers().Resolve(t.Context(), later.Key().String())
	require.NoError(t, err)
	own, err := c.Offers().Get(t.Context(), "a")
	require.NoError(t, err)
	w, err := c.Offers().Watch(t.Context(), query.Query{Type: "oracle"}, "")
	require.NoError(t, err)
	event, err := w.Next()
	require.NoError(t, err)
	for _, r := range [][]byte{answer.GetResults()[0].GetRecord().GetEnvelope(), found.Envelope, own.Envelope, event.Record.Envelope} {
		require.Equal(t, later.Envelope(), r)
	}
}
