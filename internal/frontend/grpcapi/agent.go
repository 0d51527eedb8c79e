package grpcapi

import (
	"cmp"
	"context"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/frontend/budget"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// Agent holds the parts of the agent plane. Registrar and Catalog are required.
type Agent struct {
	Registrar instances.Registrar
	Catalog   instances.Catalog
	// Removed returns the last ends of instances, the last one first. Nil means that none are known.
	Removed func(instance.Name) []instances.Removal
}

// agent serves DiscoveryService.
type agent struct {
	agentv1.UnimplementedDiscoveryServiceServer
	Agent
	limit   func(context.Context) error
	may     func(ctx context.Context, service string) error
	watches *access.Pool
	closing context.Context
}

// Register implements agentv1.DiscoveryServiceServer.
func (a *agent) Register(ctx context.Context, req *agentv1.RegisterRequest) (*agentv1.RegisterResponse, error) {
	r, err := toRegistration(ctx, req.GetInstance())
	if err != nil {
		return nil, fault.Wrap("grpcapi.Register", err)
	}
	r.Strict, r.RequireCommit = req.GetStrict(), req.GetRequireCommit()
	done, err := a.register(ctx, r)
	if err != nil {
		return nil, err
	}
	own := a.known(done.Instance)
	own.LeaseId = done.Lease
	return &agentv1.RegisterResponse{
		InstanceId: done.ID, LeaseId: done.Lease, LeaseTtl: seconds(done.TTL), Instance: own,
		Revision: done.Revision, Committed: done.Committed, Created: done.Created, Warnings: done.Warnings,
	}, nil
}

// register checks the permission and the rate limit of the caller, and registers.
func (a *agent) register(ctx context.Context, r instance.Registration) (instances.Registered, error) {
	if err := a.allowed(ctx, r.WithDefaults().Name()); err != nil {
		return instances.Registered{}, err
	}
	if err := a.limit(ctx); err != nil {
		return instances.Registered{}, err
	}
	return a.Registrar.Register(ctx, r)
}

// allowed refuses a caller without permission to change a service.
func (a *agent) allowed(ctx context.Context, n instance.Name) error {
	return a.may(ctx, n.Namespace+"/"+n.Service)
}

// Deregister implements agentv1.DiscoveryServiceServer.
func (a *agent) Deregister(ctx context.Context, req *agentv1.DeregisterRequest) (*emptypb.Empty, error) {
	if err := a.allowed(ctx, toKey(req).Name()); err != nil {
		return nil, err
	}
	if _, err := a.Registrar.Deregister(ctx, toKey(req)); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

// SetStatus implements agentv1.DiscoveryServiceServer.
func (a *agent) SetStatus(ctx context.Context, req *agentv1.SetStatusRequest) (*agentv1.SetStatusResponse, error) {
	status, err := instance.StatusFromProto(req.GetStatus())
	if err != nil {
		return nil, fault.Wrap("grpcapi.SetStatus", err)
	}
	if err := a.allowed(ctx, toKey(req).Name()); err != nil {
		return nil, err
	}
	changed, err := a.Registrar.SetStatus(ctx, toKey(req), status)
	if err != nil {
		return nil, err
	}
	return &agentv1.SetStatusResponse{Instance: a.known(changed)}, nil
}

// Discover implements agentv1.DiscoveryServiceServer.
func (a *agent) Discover(ctx context.Context, req *agentv1.DiscoverRequest) (*agentv1.DiscoverResponse, error) {
	q, err := toQuery(req)
	if err != nil {
		return nil, fault.Wrap("grpcapi.Discover", err)
	}
	r, err := a.Catalog.Discover(ctx, q)
	if err != nil {
		return nil, err
	}
	if err := budget.Grow(ctx, r.Bytes()); err != nil {
		return nil, err
	}
	resp := &agentv1.DiscoverResponse{
		Service: req.GetServiceName(), Instances: convert(r.Instances, a.known), Revision: r.Index,
		Stale: r.Stale, Reason: r.Reason,
	}
	if r.Stale {
		resp.Age = durationpb.New(r.Age)
	}
	return resp, nil
}

// ListServices implements agentv1.DiscoveryServiceServer.
func (a *agent) ListServices(ctx context.Context, req *agentv1.ListServicesRequest) (*agentv1.ListServicesResponse, error) {
	s, err := a.Catalog.Services(ctx, cmp.Or(req.GetNamespace(), instance.DefaultNamespace))
	if err != nil {
		return nil, err
	}
	if err := growFor(ctx, s.Services, instance.Summary.Bytes); err != nil {
		return nil, err
	}
	return &agentv1.ListServicesResponse{
		Revision: s.Index,
		Services: convert(s.Services, func(s instance.Summary) *agentv1.ServiceSummary {
			return &agentv1.ServiceSummary{Name: s.Name, Instances: uint32(s.Instances), Up: uint32(s.Up), Tags: s.Tags}
		}),
	}, nil
}

// ListRemoved implements agentv1.DiscoveryServiceServer.
func (a *agent) ListRemoved(ctx context.Context, req *agentv1.ListRemovedRequest) (*agentv1.ListRemovedResponse, error) {
	n := instance.Name{Namespace: cmp.Or(req.GetNamespace(), instance.DefaultNamespace), Service: req.GetServiceName()}
	if err := (instance.Name{Namespace: n.Namespace, Service: cmp.Or(n.Service, "any")}).Validate(); err != nil {
		return nil, fault.Wrap("grpcapi.ListRemoved", err)
	}
	resp := new(agentv1.ListRemovedResponse)
	if a.Removed != nil {
		list := a.Removed(n)
		if err := growFor(ctx, list, func(r instances.Removal) int { return r.Bytes() + len(r.Cause) }); err != nil {
			return nil, err
		}
		resp.Removals = convert(list, func(r instances.Removal) *agentv1.Removal {
			return &agentv1.Removal{Instance: r.Proto(), RemovedAt: timestamppb.New(r.At), Cause: r.Cause}
		})
	}
	return resp, nil
}

// known converts an instance with the time of the last heartbeat, if this peer knows it.
func (a *agent) known(i *instance.Instance) *agentv1.Instance {
	out := i.Proto()
	if at, ok := a.Catalog.LastBeat(i.Key); ok && !at.IsZero() {
		out.LastHeartbeat = timestamppb.New(at)
	}
	return out
}

// toRegistration converts a registration. It ignores the fields that the peer sets, so that clients
// can send a received instance again.
func toRegistration(ctx context.Context, i *agentv1.Instance) (instance.Registration, error) {
	if i == nil {
		return instance.Registration{}, fault.Invalidf("instance", nil, "is required: send the instance to register")
	}
	r, err := instance.RegistrationFromProto(i)
	r.Local = access.Local(ctx)
	return r, err
}

// named is a request about one instance.
type named interface {
	GetNamespace() string
	GetServiceName() string
	GetInstanceId() string
}

func toKey(req named) instance.Key {
	return instance.Key{Namespace: req.GetNamespace(), Service: req.GetServiceName(), ID: req.GetInstanceId()}.WithDefaults()
}

func toQuery(req *agentv1.DiscoverRequest) (instance.Query, error) {
	q, err := instance.QueryFromProto(req)
	q.Namespace = cmp.Or(q.Namespace, instance.DefaultNamespace)
	return q, err
}

// seconds rounds up to whole seconds.
func seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }
