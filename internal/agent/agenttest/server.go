package agenttest

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Server serves an Agent like a peer, for tests of clients. It does not implement
// the streams of registrations and heartbeats. Register it with agentv1.RegisterDiscoveryServiceServer.
type Server struct {
	agentv1.UnimplementedDiscoveryServiceServer
	*Agent
	// Before is called before each call. An error becomes the answer. Nil means no check.
	Before func(ctx context.Context, method string) error
}

func (s *Server) before(ctx context.Context, method string) error {
	if s.Before == nil {
		return nil
	}
	return toStatus(s.Before(ctx, method))
}

// toStatus converts an error to a status like a peer.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	st, _ := status.New(codes.Unknown, err.Error()).WithDetails(&api.Error{
		Kind: uint32(fault.KindOf(err)), Field: fault.FieldOf(err), Message: fault.Message(err), Op: fault.OpOf(err),
	})
	switch v := fault.ValueOf(err).(type) {
	case time.Time:
		st, _ = st.WithDetails(timestamppb.New(v))
	case time.Duration:
		st, _ = st.WithDetails(durationpb.New(v))
	}
	return st.Err()
}

func key(service, id, namespace string) instance.Key {
	return instance.Key{Service: service, ID: id, Namespace: namespace}.WithDefaults()
}

// Register implements agentv1.DiscoveryServiceServer.
func (s *Server) Register(ctx context.Context, req *agentv1.RegisterRequest) (*agentv1.RegisterResponse, error) {
	if err := s.before(ctx, "Register"); err != nil {
		return nil, err
	}
	r, err := instance.RegistrationFromProto(req.GetInstance())
	if err != nil {
		return nil, toStatus(err)
	}
	r.Strict, r.RequireCommit = req.GetStrict(), req.GetRequireCommit()
	done, err := s.Agent.Register(ctx, r)
	if err != nil {
		return nil, toStatus(err)
	}
	own := done.Instance.Proto()
	own.LeaseId = done.Lease
	return &agentv1.RegisterResponse{
		InstanceId: done.ID, LeaseId: done.Lease, LeaseTtl: int64(done.TTL / time.Second), Instance: own,
		Revision: done.Revision, Created: done.Created,
	}, nil
}

// Deregister implements agentv1.DiscoveryServiceServer.
func (s *Server) Deregister(ctx context.Context, req *agentv1.DeregisterRequest) (*emptypb.Empty, error) {
	if err := s.before(ctx, "Deregister"); err != nil {
		return nil, err
	}
	_, err := s.Agent.Deregister(ctx, key(req.GetServiceName(), req.GetInstanceId(), req.GetNamespace()))
	return &emptypb.Empty{}, toStatus(err)
}

// SetStatus implements agentv1.DiscoveryServiceServer.
func (s *Server) SetStatus(ctx context.Context, req *agentv1.SetStatusRequest) (*agentv1.SetStatusResponse, error) {
	if err := s.before(ctx, "SetStatus"); err != nil {
		return nil, err
	}
	to, err := instance.StatusFromProto(req.GetStatus())
	if err != nil {
		return nil, toStatus(err)
	}
	i, err := s.Agent.SetStatus(ctx, key(req.GetServiceName(), req.GetInstanceId(), req.GetNamespace()), to)
	if err != nil {
		return nil, toStatus(err)
	}
	return &agentv1.SetStatusResponse{Instance: i.Proto()}, nil
}

// Heartbeat implements agentv1.DiscoveryServiceServer.
func (s *Server) Heartbeat(ctx context.Context, req *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
	if err := s.before(ctx, "Heartbeat"); err != nil {
		return nil, err
	}
	resp, err := s.renew(ctx, req)
	return resp, toStatus(err)
}

func (s *Server) renew(ctx context.Context, req *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
	var refs []instances.Ref
	single := len(req.GetLeaseIds()) == 0
	if single {
		refs = append(refs, instances.Ref{Lease: req.GetLeaseId(), Key: key(req.GetServiceName(), req.GetInstanceId(), req.GetNamespace())})
	}
	for _, lease := range req.GetLeaseIds() {
		refs = append(refs, instances.Ref{Lease: lease})
	}
	beats, err := s.Agent.Heartbeat(ctx, refs)
	switch {
	case err != nil:
		return nil, err
	case single && beats[0].Err != nil:
		return nil, beats[0].Err
	case single:
		b := beats[0]
		return &agentv1.HeartbeatResponse{
			LeaseId: b.Lease, Ttl: int64(b.TTL / time.Second), ExpiresAt: timestamppb.New(b.Expires), Status: b.Status.Proto(),
		}, nil
	}
	resp := &agentv1.HeartbeatResponse{}
	for _, b := range beats {
		resp.Beats = append(resp.Beats, &agentv1.Beat{TtlMs: b.TTL.Milliseconds(), Status: b.Status.Proto()})
	}
	return resp, nil
}

// Discover implements agentv1.DiscoveryServiceServer.
func (s *Server) Discover(ctx context.Context, req *agentv1.DiscoverRequest) (*agentv1.DiscoverResponse, error) {
	if err := s.before(ctx, "Discover"); err != nil {
		return nil, err
	}
	r, err := s.Agent.Discover(ctx, query(req))
	if err != nil {
		return nil, toStatus(err)
	}
	resp := &agentv1.DiscoverResponse{
		Service: req.GetServiceName(), Revision: r.Index, Stale: r.Stale, Reason: r.Reason, Age: durationpb.New(r.Age),
	}
	for _, i := range r.Instances {
		resp.Instances = append(resp.Instances, i.Proto())
	}
	return resp, nil
}

func query(req *agentv1.DiscoverRequest) instance.Query {
	q := instance.Query{
		Name: key(req.GetServiceName(), "", req.GetNamespace()).Name(),
		Selector: instance.Selector{
			AnyStatus: req.GetAnyHealth(), ID: req.GetInstanceId(), Zone: req.GetZone(), Version: req.GetVersion(), Tags: req.GetTags(),
			Environment: req.GetEnvironment(), Dependency: req.GetDependency(), PreferZone: req.GetPreferZone(),
		},
	}
	if req.GetLinearizable() {
		q.Consistency = instance.Linearizable
	}
	for _, h := range req.GetHealth() {
		q.Statuses = append(q.Statuses, instance.Status(h))
	}
	return q
}

// ListInstances implements agentv1.DiscoveryServiceServer. A token is the number of earlier
// instances.
func (s *Server) ListInstances(ctx context.Context, req *agentv1.ListInstancesRequest) (*agentv1.ListInstancesResponse, error) {
	if err := s.before(ctx, "ListInstances"); err != nil {
		return nil, err
	}
	q := query(req.GetQuery())
	r, err := s.List(ctx, instances.ListQuery{Namespace: q.Namespace, Selector: q.Selector, Consistency: q.Consistency})
	if err != nil {
		return nil, toStatus(err)
	}
	from, _ := strconv.Atoi(req.GetPageToken())
	to := min(from+max(1, int(req.GetPageSize())), len(r.Instances))
	resp := &agentv1.ListInstancesResponse{
		Total: uint32(len(r.Instances)), Revision: r.Index, Stale: r.Stale, Reason: r.Reason, Age: durationpb.New(r.Age),
	}
	for _, i := range r.Instances[min(from, to):to] {
		resp.Instances = append(resp.Instances, i.Proto())
	}
	if to < len(r.Instances) {
		resp.NextPageToken = strconv.Itoa(to)
	}
	return resp, nil
}

// ListServices implements agentv1.DiscoveryServiceServer.
func (s *Server) ListServices(ctx context.Context, req *agentv1.ListServicesRequest) (*agentv1.ListServicesResponse, error) {
	if err := s.before(ctx, "ListServices"); err != nil {
		return nil, err
	}
	all, err := s.Services(ctx, key("", "", req.GetNamespace()).Namespace)
	if err != nil {
		return nil, toStatus(err)
	}
	resp := &agentv1.ListServicesResponse{Revision: all.Index}
	for _, one := range all.Services {
		resp.Services = append(resp.Services, &agentv1.ServiceSummary{
			Name: one.Name, Instances: uint32(one.Instances), Up: uint32(one.Up), Tags: one.Tags,
		})
	}
	return resp, nil
}

// Watch implements agentv1.DiscoveryServiceServer.
func (s *Server) Watch(req *agentv1.WatchRequest, out grpc.ServerStreamingServer[agentv1.WatchResponse]) error {
	if err := s.before(out.Context(), "Watch"); err != nil {
		return err
	}
	types := map[instance.EventType]agentv1.EventType{
		instance.Added: agentv1.EventType_EVENT_TYPE_ADDED, instance.Modified: agentv1.EventType_EVENT_TYPE_MODIFIED,
		instance.Removed: agentv1.EventType_EVENT_TYPE_DELETED,
	}
	return toStatus(s.Agent.Watch(out.Context(), query(req.GetQuery()), req.GetRevision(), func(b instance.Batch) error {
		for n, e := range b.Events {
			if err := out.Send(&agentv1.WatchResponse{
				Type: types[e.Type], Instance: e.Instance.Proto(), Revision: e.Revision, Reset_: b.Reset && n == 0,
			}); err != nil {
				return err
			}
		}
		end := &agentv1.WatchResponse{
			Type: agentv1.EventType_EVENT_TYPE_PROGRESS, Revision: b.Index, Reset_: b.Reset && len(b.Events) == 0,
			Stale: b.Stale, Reason: b.Reason, Age: durationpb.New(b.Age),
		}
		if b.Reset {
			end.Type = agentv1.EventType_EVENT_TYPE_INITIAL
		}
		return out.Send(end)
	}))
}
