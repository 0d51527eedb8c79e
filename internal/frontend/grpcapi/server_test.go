package grpcapi_test

import (
	"context"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/discovery/discoverytest"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// conn returns a plain connection, for calls outside the client's API.
func (s served) conn(t testing.TB) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient("passthrough:///peer", s.dialer(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func whole(t testing.TB) (served, *discoverytest.Harness) {
	t.Helper()
	h := discoverytest.New(t)
	return serve(t, grpcapi.Config{Registrar: h, Finder: h, Node: h.Node}), h
}

// failing is a service that answers each call with an error, or with a panic for nil.
type failing struct {
	discovery.Registrar
	discovery.Finder
	err error
}

func (f failing) Query(context.Context, query.Query) (*query.Answer, error) {
	if f.err == nil {
		panic("a bug")
	}
	return nil, f.err
}

func (f failing) Withdraw(context.Context, string) (records.Receipt, error) {
	return records.Receipt{}, f.err
}

func (f failing) Watch(context.Context, query.Query, string) (discovery.Watcher, error) {
	if f.err == nil {
		panic("a bug")
	}
	return nil, f.err
}

func TestErrorTable(t *testing.T) {
	for kind, code := range map[fault.Kind]codes.Code{
		fault.Internal: codes.Internal, fault.Invalid: codes.InvalidArgument, fault.NotFound: codes.NotFound,
		fault.Exists: codes.AlreadyExists, fault.LimitReached: codes.ResourceExhausted,
		fault.Unauthentic: codes.Unauthenticated, fault.Forbidden: codes.PermissionDenied,
		fault.Timeout: codes.DeadlineExceeded, fault.Unavailable: codes.Unavailable,
		fault.Conflict: codes.FailedPrecondition, fault.TooLarge: codes.ResourceExhausted,
		fault.Unsupported: codes.Unimplemented, fault.Canceled: codes.Canceled,
		fault.Gone: codes.NotFound, fault.Unprocessable: codes.FailedPrecondition,
		fault.PoolExhausted: codes.ResourceExhausted, fault.PaymentRequired: codes.FailedPrecondition,
		fault.PaymentRequired + 1: codes.Internal, // a kind without an entry
	} {
		t.Run(kind.String(), func(t *testing.T) {
			bad := failing{err: &fault.Error{Op: "x.Y", Kind: kind, Field: "some.field", Err: io.EOF}}
			s := serve(t, grpcapi.Config{Registrar: bad, Finder: bad})
			_, err := api.NewRecordServiceClient(s.conn(t)).Query(t.Context(), &api.QueryRequest{Query: &pb.Query{}})
			st := status.Convert(err)
			require.Equal(t, code, st.Code())
			require.Len(t, st.Details(), 1)
			detail := st.Details()[0].(*api.Error)
			require.Equal(t, uint32(kind), detail.Kind)
			require.Equal(t, "some.field", detail.Field)
			require.Equal(t, "EOF", detail.Message)
			require.Equal(t, "x.Y", detail.Op)

			c := s.client(t)
			_, err = c.Offers().Query(t.Context(), query.Query{})
			require.ErrorIs(t, err, kind)
			require.Equal(t, "some.field", fault.FieldOf(err))
			require.Equal(t, "EOF", fault.Message(err))
			require.ErrorIs(t, err, &fault.Error{Kind: kind, Op: "x.Y"}, "the peer's operation is kept")
			_, err = c.Offers().Withdraw(t.Context(), "a")
			require.ErrorIs(t, err, kind)
			_, err = c.Offers().Watch(t.Context(), query.Query{}, "")
			require.ErrorIs(t, err, kind)
		})
	}
}

// A request of a later version is refused with the fields that this version does not know. Without them the call
// would do something else than asked.
func TestRequestOfALaterVersion(t *testing.T) {
	s := serve(t, grpcapi.Config{Registrar: failing{}, Finder: failing{}})
	c := api.NewRecordServiceClient(s.conn(t))
	filtered := &pb.Query{Type: "compute"}
	filtered.ProtoReflect().SetUnknown([]byte{0xa0, 0x38, 1}) // field 900
	refused := func(err error, path string) {
		t.Helper()
		require.Equal(t, codes.Unimplemented, status.Code(err), err)
		require.ErrorContains(t, err, path)
	}
	_, err := c.Query(t.Context(), &api.QueryRequest{Query: filtered})
	refused(err, "query.900")
	watch, err := c.Watch(t.Context(), &api.WatchRequest{Query: filtered})
	require.NoError(t, err)
	_, err = watch.Recv()
	refused(err, "query.900")
}

func TestEveryKindIsInTheTable(t *testing.T) {
	for kind := fault.Invalid; !strings.HasPrefix(kind.String(), "kind("); kind++ {
		require.NotEqual(t, codes.Internal, grpcapi.Code(kind), kind)
	}
}

func TestPanicsEndNothing(t *testing.T) {
	s := serve(t, grpcapi.Config{Registrar: failing{}, Finder: failing{}, Node: &discoverytest.Node{}})
	c := s.client(t)
	_, err := c.Offers().Query(t.Context(), query.Query{})
	require.ErrorIs(t, err, fault.Internal)
	require.NotContains(t, err.Error(), "bug", "what went wrong is for the log")
	_, err = c.Offers().Watch(t.Context(), query.Query{}, "")
	require.ErrorIs(t, err, fault.Internal)
	_, err = c.Status(t.Context())
	require.NoError(t, err)
}

// TestPeersFields: what the peer fills in is nobody else's to say, as in the JSON form.
func TestPeersFields(t *testing.T) {
	s, h := whole(t)
	c := api.NewRecordServiceClient(s.conn(t))
	now := timestamppb.Now()
	offers := map[string]*pb.ServiceRecord{
		"provider_id": {ProviderId: "x"}, "created_at": {CreatedAt: now}, "updated_at": {UpdatedAt: now}, "expires_at": {ExpiresAt: now},
		"sequence": {Sequence: 1}, "withdrawn": {Withdrawn: true}, "signature": {Signature: []byte{1}}, "service": nil,
	}
	for field, service := range offers {
		_, err := c.Register(t.Context(), &api.RegisterRequest{Service: service})
		requireDetail(t, err, "discovery.Register", field)
		_, err = c.Update(t.Context(), &api.UpdateRequest{Service: service})
		requireDetail(t, err, "discovery.Update", field)
	}
	good := discoverytest.Offer("good").Service()
	resp, err := c.RegisterBatch(t.Context(), &api.RegisterBatchRequest{Services: []*pb.ServiceRecord{offers["sequence"], good}})
	require.NoError(t, err)
	require.Equal(t, "sequence", resp.GetResults()[0].GetError().GetField())
	require.Equal(t, "good", resp.GetResults()[1].GetReceipt().GetId())
	require.Len(t, h.OwnAll(), 1)
	_, err = c.RegisterBatch(t.Context(), &api.RegisterBatchRequest{Services: slices.Repeat([]*pb.ServiceRecord{{}}, discovery.MaxBatch+1)})
	requireDetail(t, err, "discovery.Register", "records")
	_, err = c.Query(t.Context(), &api.QueryRequest{})
	requireDetail(t, err, "discovery.Query", "query")
}

func requireDetail(t *testing.T, err error, op, field string) {
	t.Helper()
	st := status.Convert(err)
	require.Equal(t, codes.InvalidArgument, st.Code(), "%v", err)
	detail := st.Details()[0].(*api.Error)
	require.Equal(t, []string{op, field}, []string{detail.Op, detail.Field})
}

func TestMessagesAreBounded(t *testing.T) {
	s, h := whole(t)
	_, err := s.client(t).Offers().Register(t.Context(), discoverytest.Offer("a", func(o *records.Offer) {
		o.Metadata.Description = strings.Repeat("x", 33<<20)
	}))
	require.ErrorIs(t, err, fault.TooLarge)
	require.Empty(t, h.OwnAll())
}

func TestStatusAndPeers(t *testing.T) {
	s, h := whole(t)
	h.Node.State = discovery.Status{
		PeerID: "12D3", IdentityNew: true, Name: "host", Network: "office", Profile: "lan", Mode: "client", Listen: []string{"/ip4/127.0.0.1/tcp/1"}, UptimeSeconds: 1.5, Version: "v1",
		Peers: 2, RoutingTable: 3, RecordsKept: 4, RecordsOwn: 5, RecordsUnstored: []string{"a", "b"}, RecordsAnnouncing: 3, Ready: true,
		Conditions: []discovery.Condition{{Name: "joining", Message: "comparing: so. Wait", Problem: fault.Problem{What: "comparing", Effect: "so", Remedy: "Wait", State: fault.Coming, Since: time.Unix(1, 0).UTC()}}},
		Reach: discovery.Reach{
			State: "relayed", Text: "behind NAT", Since: time.Unix(2, 0).UTC(), Relays: []string{"12D5"},
			Direct: 6, Relayed: 7, Punched: 8, Unpunched: 9,
		},
		Group: &discovery.Group{
			ID: "9f", Role: "voter", Term: 3, Leader: "12D5", LeaderName: "other", Survives: 1, Tolerance: "3 of 3 voters: 1 failure", Missing: "x",
		},
	}
	h.Node.Connected = []discovery.PeerInfo{{ID: "12D4", Addrs: []string{"/ip4/127.0.0.1/tcp/2"}, Agent: "a", LatencyMs: 0.5}}
	c := s.client(t)
	state, err := c.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, h.Node.State, state)
	peers, err := c.Peers(t.Context())
	require.NoError(t, err)
	require.Equal(t, h.Node.Connected, peers)
}

func TestHealthAndReflection(t *testing.T) {
	s, _ := whole(t)
	conn := s.conn(t)
	health := healthpb.NewHealthClient(conn)
	for _, service := range []string{"", "blackhole.api.v1.RecordService", "blackhole.api.v1.PeerService"} {
		resp, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		require.NoError(t, err, service)
		require.Equal(t, healthpb.HealthCheckResponse_SERVING, resp.GetStatus())
	}
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
	}))
	resp, err := stream.Recv()
	require.NoError(t, err)
	var names []string
	for _, service := range resp.GetListServicesResponse().GetService() {
		names = append(names, service.GetName())
	}
	require.Subset(t, names, []string{"blackhole.api.v1.RecordService", "blackhole.api.v1.PeerService", "grpc.health.v1.Health"})
	require.NoError(t, stream.CloseSend())
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF)
}

// TestCloseEndsWatches: they end at once, and with a reason that tells the client to come back.
func TestCloseEndsWatches(t *testing.T) {
	s, _ := whole(t)
	w, err := s.client(t).Offers().Watch(t.Context(), query.Query{Type: "compute"}, "")
	require.NoError(t, err)
	ev, err := w.Next()
	require.NoError(t, err)
	require.Equal(t, query.Progress, ev.Kind)
	s.Close()
	_, err = w.Next()
	require.ErrorIs(t, err, fault.Unavailable)
	require.ErrorContains(t, err, "shutting down", "and not by the connection's end")
}

func TestWatchesAreBounded(t *testing.T) {
	h := discoverytest.New(t)
	s := serve(t, grpcapi.Config{Registrar: h, Finder: h, Node: h.Node, Places: grpcapi.Places{MaxWatches: 2}})
	c := s.client(t)
	ctx, cancel := context.WithCancel(t.Context())
	for range 2 {
		_, err := c.Offers().Watch(ctx, query.Query{Type: "compute"}, "")
		require.NoError(t, err)
	}
	_, err := c.Offers().Watch(t.Context(), query.Query{Type: "compute"}, "")
	require.ErrorIs(t, err, fault.PoolExhausted)
	cancel()
	require.Eventually(t, func() bool {
		_, err := c.Offers().Watch(t.Context(), query.Query{Type: "compute"}, "")
		return err == nil
	}, time.Minute, time.Millisecond, "a watch that ended makes room")
}

func TestClosedBeforeServed(t *testing.T) {
	s := grpcapi.New(grpcapi.Config{})
	s.Close()
	l := bufconn.Listen(1)
	require.NoError(t, s.Serve(l))
	_, err := l.Accept()
	require.Error(t, err, "the listener was taken over")
}

// TestHealthBesideThePool: a caller with its share of connections, each with a call, still asks for health, and for nothing else.
func TestHealthBesideThePool(t *testing.T) {
	h := discoverytest.New(t)
	s := grpcapi.New(grpcapi.Config{Registrar: h, Finder: h, Node: h.Node})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(access.NewConnections(4, nil).Listener(l)) }()
	t.Cleanup(func() {
		s.Close()
		require.NoError(t, <-ended)
	})
	dial := func() *grpc.ClientConn {
		c, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	for range 3 {
		w, err := api.NewRecordServiceClient(dial()).Watch(t.Context(), &api.WatchRequest{Query: &pb.Query{Types: []string{"storage"}}})
		require.NoError(t, err)
		_, err = w.Header()
		require.NoError(t, err)
	}
	resp, err := healthpb.NewHealthClient(dial()).Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, resp.GetStatus())
	_, err = api.NewPeerServiceClient(dial()).Status(t.Context(), &api.StatusRequest{})
	require.Equal(t, codes.ResourceExhausted, status.Code(err), err)
}

// expensive asks for a payment.
type expensive struct {
	api.UnimplementedTradeServiceServer
}

func (expensive) Reserve(context.Context, *api.ReserveRequest) (*api.ReserveResponse, error) {
	return nil, fault.Wrap("trade.Reserve", &fault.Error{Kind: fault.PaymentRequired, Field: "proof", Value: []byte("1 USDC"), Err: io.EOF})
}

func TestTerms(t *testing.T) {
	s := serve(t, grpcapi.Config{Registrar: failing{}, Finder: failing{}, Node: &discoverytest.Node{}, Trade: expensive{}})
	_, err := s.client(t).Offers().Reserve(t.Context(), client.Reservation{})
	require.ErrorIs(t, err, fault.PaymentRequired)
	require.Equal(t, "1 USDC", string(fault.ValueOf(err).([]byte)))
}
