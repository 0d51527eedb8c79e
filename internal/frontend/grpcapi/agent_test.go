package grpcapi_test

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/blackhole/blackhole/internal/agent/agenttest"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// agents is the wire without the client, and the agent behind it.
func agents(t testing.TB, edits ...func(*grpcapi.Config)) (agentv1.DiscoveryServiceClient, *agenttest.Agent, served) {
	t.Helper()
	a := agenttest.New()
	s := serveAgent(t, a, edits...)
	return agentv1.NewDiscoveryServiceClient(s.conn(t)), a, s
}

// web is an instance as an application sends it.
func web(id string) *agentv1.Instance {
	r := agenttest.Web(id)
	return (&instance.Instance{Key: r.Key, Spec: r.Spec}).Proto()
}

// TestListRemoved: the end of an instance travels with its cause, and without its lease.
func TestListRemoved(t *testing.T) {
	_, a, s := agents(t)
	c := s.client(t).Agent()
	got, err := c.Register(t.Context(), agenttest.Web("a"))
	require.NoError(t, err)
	list, err := c.Removed(t.Context(), got.Name())
	require.NoError(t, err)
	require.Empty(t, list)
	_, err = c.Deregister(t.Context(), got.Key)
	require.NoError(t, err)
	want := a.Removed(got.Name())
	require.Len(t, want, 1)
	want[0].Instance.Lease = ""
	list, err = c.Removed(t.Context(), instance.Name{Namespace: got.Namespace})
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.True(t, want[0].Same(list[0].Instance))
	require.Equal(t, want[0].At, list[0].At)
	require.Equal(t, "deregistered", list[0].Cause)
	_, err = c.Removed(t.Context(), instance.Name{Namespace: "A"})
	require.ErrorIs(t, err, &fault.Error{Kind: fault.Invalid, Field: "namespace"})
}

func TestHeartbeatsAnswerInOrder(t *testing.T) {
	c, a, _ := agents(t)
	var leases []string
	for _, id := range []string{"a", "b", "c"} {
		done, err := a.Register(t.Context(), agenttest.Web(id))
		require.NoError(t, err)
		leases = append(leases, done.Lease)
	}
	beat := func(req *agentv1.HeartbeatRequest) *agentv1.HeartbeatResponse {
		resp, err := c.Heartbeat(t.Context(), req)
		require.NoError(t, err)
		return resp
	}
	one := beat(&agentv1.HeartbeatRequest{LeaseId: leases[0]})
	require.Equal(t, leases[0], one.GetLeaseId())
	require.Equal(t, int64(30), one.GetTtl())
	require.Equal(t, agentv1.HealthStatus_HEALTH_STATUS_UP, one.GetStatus())
	many := beat(&agentv1.HeartbeatRequest{LeaseIds: []string{leases[2], "lease-nobody", leases[1]}})
	var ttls []int64
	for _, b := range many.GetBeats() {
		ttls = append(ttls, b.GetTtlMs())
	}
	require.Equal(t, []int64{30_000, 0, 30_000}, ttls, "no such lease: the others go on")
	require.Zero(t, many.GetTtl())
	named := beat(&agentv1.HeartbeatRequest{ServiceName: "web", InstanceId: "b", LeaseIds: leases[:1]})
	require.Equal(t, leases[1], named.GetLeaseId())
	require.Len(t, named.GetBeats(), 1)
	unknown := beat(&agentv1.HeartbeatRequest{LeaseId: "lease-nobody", LeaseIds: leases[:1]})
	require.Zero(t, unknown.GetTtl())
	require.Len(t, unknown.GetBeats(), 1)
}

func TestHeartbeatsRefused(t *testing.T) {
	c, _, _ := agents(t)
	_, err := c.Heartbeat(t.Context(), &agentv1.HeartbeatRequest{})
	refused(t, err, codes.InvalidArgument, "lease_id")
	_, err = c.Heartbeat(t.Context(), &agentv1.HeartbeatRequest{LeaseIds: make([]string, instances.MaxBeats+1)})
	refused(t, err, codes.InvalidArgument, "lease_ids")
	_, err = c.Heartbeat(t.Context(), &agentv1.HeartbeatRequest{LeaseIds: []string{"a", strings.Repeat("x", 129)}})
	refused(t, err, codes.InvalidArgument, "lease_ids[1]")
	_, err = c.Heartbeat(t.Context(), &agentv1.HeartbeatRequest{LeaseId: strings.Repeat("x", 129)})
	refused(t, err, codes.InvalidArgument, "lease_id")
	_, err = c.Heartbeat(t.Context(), &agentv1.HeartbeatRequest{ServiceName: "web"})
	refused(t, err, codes.InvalidArgument, "id")
}

// TestGoneSaysWhen, and what is missing is listed.
func TestGoneSaysWhen(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	broken := &refusing{err: fault.Wrap("outer", &fault.Error{Kind: fault.Gone, Value: at, Err: errors.New("gone")})}
	s := serve(t, grpcapi.Config{Agent: &grpcapi.Agent{Registrar: broken, Catalog: agenttest.New()}})
	_, err := agentv1.NewDiscoveryServiceClient(s.conn(t)).Deregister(t.Context(), &agentv1.DeregisterRequest{ServiceName: "web", InstanceId: "a"})
	require.Equal(t, codes.NotFound, status.Code(err))
	require.True(t, at.Equal(status.Convert(err).Details()[1].(*timestamppb.Timestamp).AsTime()))
	_, err = s.client(t).Agent().Deregister(t.Context(), agenttest.Web("a").Key)
	require.ErrorIs(t, err, fault.Gone)
	require.Equal(t, at, valueIn(err))

	broken.err = &fault.Error{Kind: fault.Unprocessable, Field: "metadata.dependencies", Value: []string{"db", "mq"}, Err: errors.New("are not registered")}
	_, err = agentv1.NewDiscoveryServiceClient(s.conn(t)).Deregister(t.Context(), &agentv1.DeregisterRequest{ServiceName: "web", InstanceId: "a"})
	refused(t, err, codes.FailedPrecondition, "metadata.dependencies")
	require.Len(t, status.Convert(err).Details()[1].(*structpb.ListValue).GetValues(), 2)
	_, err = s.client(t).Agent().Deregister(t.Context(), agenttest.Web("a").Key)
	require.Equal(t, []string{"db", "mq"}, valueIn(err))
}

// valueIn is the innermost value of an error.
func valueIn(err error) (value any) {
	var e *fault.Error
	for errors.As(err, &e) {
		value, err = e.Value, e.Err
	}
	return value
}

// refusing refuses what it is asked.
type refusing struct {
	instances.Registrar
	err error
}

func (r *refusing) Deregister(context.Context, instance.Key) (instances.Removal, error) {
	return instances.Removal{}, r.err
}

// TestRegisterStream: a stream registers new instances, renews known ones, and refuses invalid
// ones individually.
func TestRegisterStream(t *testing.T) {
	asked := 0
	c, a, _ := agents(t, func(c *grpcapi.Config) {
		c.Limit = func(context.Context) error { asked++; return nil }
	})
	stream, err := c.RegisterStream(t.Context())
	require.NoError(t, err)
	tell := func(i *agentv1.Instance) *agentv1.Event {
		t.Helper()
		require.NoError(t, stream.Send(i))
		e, err := stream.Recv()
		require.NoError(t, err)
		return e
	}
	const added, modified, renewed = agentv1.EventType_EVENT_TYPE_ADDED, agentv1.EventType_EVENT_TYPE_MODIFIED, agentv1.EventType_EVENT_TYPE_PROGRESS
	first := tell(web("a"))
	require.Equal(t, added, first.GetType())
	require.Equal(t, int64(30), first.GetLeaseTtl())
	again := tell(first.GetInstance())
	require.Equal(t, renewed, again.GetType(), "what the peer has filled in is of no account")
	require.Equal(t, first.GetLeaseId(), again.GetLeaseId())
	other := web("a")
	other.Port = 1
	require.Equal(t, modified, tell(other).GetType())
	require.Equal(t, modified, tell(web("a")).GetType(), "back to the first")

	bad := web("b")
	bad.Port = 99_999
	e := tell(bad)
	require.Equal(t, "port", e.GetField())
	require.NotEmpty(t, e.GetError())
	nameless := tell(web(""))
	require.Equal(t, added, nameless.GetType())
	require.Equal(t, nameless.GetLeaseId(), tell(web("")).GetLeaseId(), "the same words are the same instance")
	a.Vanish(agenttest.Web("a").Key)
	require.Equal(t, added, tell(web("a")).GetType(), "the lease is gone")
	require.Equal(t, 5, asked, "renewals are not limited")

	require.NoError(t, stream.CloseSend())
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF)
	require.Len(t, a.Instances(), 2, "the end of the stream deregisters nothing")
}

func TestRegistrationsAreLimited(t *testing.T) {
	c, _, _ := agents(t, func(c *grpcapi.Config) {
		c.Limit = func(context.Context) error { return fault.New("test", fault.LimitReached, "100 a minute") }
	})
	_, err := c.Register(t.Context(), &agentv1.RegisterRequest{Instance: web("a")})
	refused(t, err, codes.ResourceExhausted, "")
	_, err = c.Register(t.Context(), &agentv1.RegisterRequest{})
	refused(t, err, codes.InvalidArgument, "instance")
	stream, err := c.RegisterStream(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(web("a")))
	e, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, "100 a minute", e.GetError())
	_, err = c.Discover(t.Context(), &agentv1.DiscoverRequest{ServiceName: "web"})
	require.NoError(t, err, "reads are never limited")
}

// TestLimitsSayWhen to try again.
func TestLimitsSayWhen(t *testing.T) {
	limiter, now := access.NewLimiter(6, 0), time.Now()
	_, _, s := agents(t, func(c *grpcapi.Config) {
		c.Limit = func(context.Context) error { return limiter.Take("alice", 1, now) }
	})
	c := s.client(t).Agent()
	for range 6 {
		_, err := c.Register(t.Context(), agenttest.Web("a"))
		require.NoError(t, err)
	}
	_, err := c.Register(t.Context(), agenttest.Web("a"))
	require.ErrorIs(t, err, fault.LimitReached)
	require.Equal(t, 10*time.Second, valueIn(err))
}

// TestOwnServicesOnly: a caller without permission to change a service can read it.
func TestOwnServicesOnly(t *testing.T) {
	c, _, _ := agents(t, func(c *grpcapi.Config) {
		c.May = func(_ context.Context, service string) error {
			return fault.New("test", fault.Forbidden, "%s is not yours", service)
		}
	})
	ctx := t.Context()
	_, err := c.Register(ctx, &agentv1.RegisterRequest{Instance: web("a")})
	refused(t, err, codes.PermissionDenied, "")
	_, err = c.Deregister(ctx, &agentv1.DeregisterRequest{ServiceName: "web", InstanceId: "a"})
	refused(t, err, codes.PermissionDenied, "")
	_, err = c.SetStatus(ctx, &agentv1.SetStatusRequest{ServiceName: "web", InstanceId: "a"})
	refused(t, err, codes.PermissionDenied, "")
	_, err = c.SetStatus(ctx, &agentv1.SetStatusRequest{ServiceName: "web", InstanceId: "a", Status: 77})
	refused(t, err, codes.InvalidArgument, "status")
	_, err = c.Heartbeat(ctx, &agentv1.HeartbeatRequest{ServiceName: "web", InstanceId: "a"})
	refused(t, err, codes.PermissionDenied, "")
	_, err = c.Heartbeat(ctx, &agentv1.HeartbeatRequest{LeaseId: "lease-x"})
	refused(t, err, codes.NotFound, "lease_id") // the agent checks the owner of a lease
	_, err = c.Discover(ctx, &agentv1.DiscoverRequest{ServiceName: "web"})
	require.NoError(t, err)
	_, err = c.Discover(ctx, &agentv1.DiscoverRequest{ServiceName: "web", Health: []agentv1.HealthStatus{99}})
	refused(t, err, codes.InvalidArgument, "status")
}

// TestWatchesEndWithTheServer, with a reason to come back, and are bounded.
func TestWatchesEndWithTheServer(t *testing.T) {
	c, _, s := agents(t, func(c *grpcapi.Config) { c.Places.MaxWatches = 1 })
	req := &agentv1.WatchRequest{Query: &agentv1.DiscoverRequest{ServiceName: "web"}}
	w, err := c.Watch(t.Context(), req)
	require.NoError(t, err)
	first, err := w.Recv()
	require.NoError(t, err)
	require.Equal(t, agentv1.EventType_EVENT_TYPE_INITIAL, first.GetType())
	require.True(t, first.GetReset_(), "an empty present voids the past, too")
	second, err := c.Watch(t.Context(), req)
	require.NoError(t, err)
	_, err = second.Recv()
	refused(t, err, codes.ResourceExhausted, "pool.watches")
	bad, err := c.Watch(t.Context(), &agentv1.WatchRequest{Query: &agentv1.DiscoverRequest{ServiceName: "web", Health: []agentv1.HealthStatus{99}}})
	require.NoError(t, err)
	_, err = bad.Recv()
	refused(t, err, codes.InvalidArgument, "query.status")
	registers, err := c.RegisterStream(t.Context())
	require.NoError(t, err)
	require.NoError(t, registers.Send(web("a"))) // streams begin with what is sent
	_, err = registers.Recv()
	require.NoError(t, err)
	s.Close()
	_, err = registers.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	for err = nil; err == nil; _, err = w.Recv() { // the registration above comes first
	}
	refused(t, err, codes.Unavailable, "")
}

// TestLastHeartbeat: the peer that receives the heartbeats reports the last one.
func TestLastHeartbeat(t *testing.T) {
	c, a, _ := agents(t)
	done, err := c.Register(t.Context(), &agentv1.RegisterRequest{Instance: web("a")})
	require.NoError(t, err)
	a.Pass(5 * time.Second)
	_, err = c.Heartbeat(t.Context(), &agentv1.HeartbeatRequest{LeaseId: done.GetLeaseId()})
	require.NoError(t, err)
	r, err := c.Discover(t.Context(), &agentv1.DiscoverRequest{ServiceName: "web"})
	require.NoError(t, err)
	seen := r.GetInstances()[0]
	require.Equal(t, 5*time.Second, seen.GetLastHeartbeat().AsTime().Sub(seen.GetRegisteredAt().AsTime()))
}

// calling notes where a registration comes from.
type calling struct {
	instances.Registrar
	local bool
}

func (c *calling) Register(ctx context.Context, r instance.Registration) (instances.Registered, error) {
	c.local = r.Local
	return c.Registrar.Register(ctx, r)
}

// TestLocal: the remote address tells whether a call comes from this host.
func TestLocal(t *testing.T) {
	for network, local := range map[string]bool{"tcp": true, "unix": true, "bufconn": false} {
		t.Run(network, func(t *testing.T) {
			a := agenttest.New()
			noting := &calling{Registrar: a}
			config := grpcapi.Config{Agent: &grpcapi.Agent{Registrar: noting, Catalog: a}}
			var c *operator.Client
			if network == "bufconn" {
				c = serve(t, config).client(t)
			} else {
				address := map[string]string{"tcp": "127.0.0.1:0", "unix": filepath.Join(t.TempDir(), "s")}[network]
				l, err := net.Listen(network, address)
				require.NoError(t, err)
				s := grpcapi.New(config)
				done := make(chan error, 1)
				go func() { done <- s.Serve(l) }()
				t.Cleanup(func() { s.Close(); require.NoError(t, <-done) })
				c = dial(t, map[string]string{"tcp": l.Addr().String(), "unix": "unix://" + address}[network])
			}
			_, err := c.Agent().Register(t.Context(), agenttest.Web("a"))
			require.NoError(t, err)
			require.Equal(t, local, noting.local)
		})
	}
}

func TestWithoutAnAgentItIsNotServed(t *testing.T) {
	s, _ := whole(t)
	c := agentv1.NewDiscoveryServiceClient(s.conn(t))
	_, err := c.Discover(t.Context(), &agentv1.DiscoverRequest{ServiceName: "web"})
	require.Equal(t, codes.Unimplemented, status.Code(err))
	_, err = s.client(t).Agent().Discover(t.Context(), agenttest.Up())
	require.ErrorIs(t, err, fault.Unsupported)
}

// everything serves all there is.
func everything(t testing.TB, edits ...func(*grpcapi.Config)) served {
	a, solo := agenttest.New(), coordtest.New(coordtest.Config{})
	h := &grpcapi.Config{Agent: &grpcapi.Agent{Registrar: a, Catalog: a}, Coordination: plane(solo)}
	_, harness := whole(t)
	h.Registrar, h.Finder, h.Node = harness, harness, harness.Node
	for _, edit := range edits {
		edit(h)
	}
	return serve(t, *h)
}

// TestReflectionListsTheAgent: and describes each service that it lists.
func TestReflectionListsTheAgent(t *testing.T) {
	s := everything(t)
	stream, err := reflectionpb.NewServerReflectionClient(s.conn(t)).ServerReflectionInfo(t.Context())
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
	require.Contains(t, names, "blackhole.agent.v1.DiscoveryService")
	require.Contains(t, names, "blackhole.api.v1.LockService")
	require.Contains(t, names, "envoy.service.discovery.v3.AggregatedDiscoveryService")
	for _, name := range names {
		require.NoError(t, stream.Send(&reflectionpb.ServerReflectionRequest{
			MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: name},
		}))
		resp, err = stream.Recv()
		require.NoError(t, err)
		require.NotEmpty(t, resp.GetFileDescriptorResponse().GetFileDescriptorProto(), "%s: %s", name, resp)
	}
}

// TestNamesWithoutPackage: the specifications name no package, so a client made from their text calls services without one. Such a call
// needs the same role.
func TestNamesWithoutPackage(t *testing.T) {
	s := everything(t)
	conn := s.conn(t)
	var got agentv1.ListServicesResponse
	require.NoError(t, conn.Invoke(t.Context(), "/DiscoveryService/ListServices", &agentv1.ListServicesRequest{}, &got))
	require.Equal(t, codes.Unimplemented, status.Code(conn.Invoke(t.Context(), "/RecordService/List", &agentv1.ListServicesRequest{}, &got)))
	for _, service := range []string{"DiscoveryService/Watch", "DiscoveryService/Heartbeat", "LockService/Lock", "LockService/ListLocks"} {
		whole := map[byte]string{'D': "/blackhole.agent.v1.", 'L': "/blackhole.api.v1."}[service[0]]
		require.Equal(t, grpcapi.Need(whole+service), grpcapi.Need("/"+service), service)
	}
}

// TestNeed: each served method has an explicit role, so that RoleAdmin is never an oversight.
func TestNeed(t *testing.T) {
	admin := []string{
		"/blackhole.api.v1.RecordService/Register", "/blackhole.api.v1.RecordService/RegisterBatch", "/blackhole.api.v1.RecordService/Update",
		"/blackhole.api.v1.RecordService/Withdraw", "/blackhole.api.v1.RecordService/Pause", "/blackhole.api.v1.RecordService/Resume",
		"/blackhole.api.v1.CoordinationService/PublishInstances", "/blackhole.api.v1.CoordinationService/ChangeMembers",
		"/blackhole.api.v1.CoordinationService/Backup",
	}
	count := map[access.Role]int{}
	for _, method := range everything(t).Methods() {
		role := grpcapi.Need(method)
		count[role]++
		require.Equal(t, slices.Contains(admin, method), role == access.RoleAdmin, method)
	}
	require.Len(t, count, 4)
	require.Equal(t, access.RoleAdmin, grpcapi.Need("/x.Y/Z"))
	require.Equal(t, access.RoleAdmin, grpcapi.Need(""))
	require.Equal(t, access.RoleService, grpcapi.Need("/blackhole.agent.v1.DiscoveryService/Heartbeat"))
	require.Equal(t, access.RoleReadOnly, grpcapi.Need("/blackhole.agent.v1.DiscoveryService/Watch"))
	require.Equal(t, access.RoleNone, grpcapi.Need("/grpc.health.v1.Health/Check"))
}

// TestInterceptors run around every call, in bundles too, in their order, and may refuse.
func TestInterceptors(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	note := func(text string) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, text)
	}
	s := everything(t, func(c *grpcapi.Config) {
		first := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, call grpc.UnaryHandler) (any, error) {
			note("first " + info.FullMethod)
			return call(ctx, req)
		}
		second := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, call grpc.UnaryHandler) (any, error) {
			note("second")
			if grpcapi.Need(info.FullMethod) == access.RoleAdmin {
				return nil, fault.New("test", fault.Forbidden, "not for you")
			}
			return call(ctx, req)
		}
		c.Unary = []grpc.UnaryServerInterceptor{first, second}
		c.Stream = []grpc.StreamServerInterceptor{func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, call grpc.StreamHandler) error {
			note("stream " + info.FullMethod)
			if info.FullMethod == "/blackhole.agent.v1.DiscoveryService/Watch" {
				return fault.New("test", fault.Unauthentic, "who are you")
			}
			return call(srv, ss)
		}}
	})
	conn := s.conn(t)
	_, err := agentv1.NewDiscoveryServiceClient(conn).ListServices(t.Context(), &agentv1.ListServicesRequest{})
	require.NoError(t, err)
	_, err = api.NewCoordinationServiceClient(conn).ChangeMembers(t.Context(), &api.ChangeMembersRequest{})
	refused(t, err, codes.PermissionDenied, "")
	w, err := agentv1.NewDiscoveryServiceClient(conn).Watch(t.Context(), &agentv1.WatchRequest{})
	require.NoError(t, err)
	_, err = w.Recv()
	refused(t, err, codes.Unauthenticated, "")
	_, _, err = ops.Of(s.client(t).Coordination()).Do(t.Context(), ops.Command{Op: &ops.RegisterBatch{}}) // on a stream of calls
	require.ErrorIs(t, err, fault.Forbidden)
	require.Equal(t, []string{
		"first /blackhole.agent.v1.DiscoveryService/ListServices", "second",
		"first /blackhole.api.v1.CoordinationService/ChangeMembers", "second",
		"stream /blackhole.agent.v1.DiscoveryService/Watch",
		"stream /blackhole.coord.v1.CallService/Calls",
		"first /blackhole.api.v1.CoordinationService/PublishInstances", "second",
	}, seen)
}
