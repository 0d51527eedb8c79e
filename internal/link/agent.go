package link

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/blackhole/blackhole/internal/contract/coord/calls"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// Agent is the contract of the agent plane as served by a peer. It never repeats a request, ends with its Link, and
// is safe for concurrent use.
//
// Agent implements instance.Registrar, and Discover, List, Services and Watch of
// instance.Catalog.
type Agent struct {
	Service agentv1.DiscoveryServiceClient
	watches agentv1.DiscoveryServiceClient // on a separate connection for long calls
}

// Register implements instance.Registrar. The peer sets Local of the registration.
func (a *Agent) Register(ctx context.Context, r instance.Registration) (instances.Registered, error) {
	const op = "client.RegisterInstance"
	resp, err := a.Service.Register(ctx, &agentv1.RegisterRequest{
		Instance: fromRegistration(r), Strict: r.Strict, RequireCommit: r.RequireCommit,
	})
	if err != nil {
		return instances.Registered{}, calls.Fault(op, err)
	}
	i, err := toInstance(op, resp.GetInstance())
	if err != nil {
		return instances.Registered{}, err
	}
	return instances.Registered{
		Instance: i, TTL: i.Spec.UnhealthyAfter, Interval: i.Spec.UnhealthyAfter / 3, Committed: resp.GetCommitted(), Created: resp.GetCreated(),
		Warnings: resp.GetWarnings(),
	}, nil
}

// Deregister implements instance.Registrar. At of the result is zero: the API lacks it.
func (a *Agent) Deregister(ctx context.Context, k instance.Key) (instances.Removal, error) {
	_, err := a.Service.Deregister(ctx, &agentv1.DeregisterRequest{ServiceName: k.Service, InstanceId: k.ID, Namespace: k.Namespace})
	return instances.Removal{}, calls.Fault("client.DeregisterInstance", err)
}

// Heartbeat implements instance.Registrar. Several leases share one request; references
// by key need one request each. With several leases, results lack keys and expiries, and an
// unknown lease means NotFound.
func (a *Agent) Heartbeat(ctx context.Context, refs []instances.Ref) ([]instances.Beat, error) {
	const op = "client.Heartbeat"
	if len(refs) > instances.MaxBeats {
		return nil, fault.Wrap(op, fault.Invalidf("lease_ids", len(refs), "exceeds the maximum of %d per request", instances.MaxBeats))
	}
	beats := make([]instances.Beat, len(refs))
	many, at := &agentv1.HeartbeatRequest{}, []int(nil)
	for i, ref := range refs {
		if ref.Lease != "" && len(refs) > 1 {
			many.LeaseIds, at = append(many.LeaseIds, ref.Lease), append(at, i)
			continue
		}
		var err error
		if beats[i], err = a.beat(ctx, ref); err != nil {
			return nil, err
		}
	}
	if len(at) == 0 {
		return beats, nil
	}
	resp, err := a.Service.Heartbeat(ctx, many)
	if err != nil {
		return nil, calls.Fault(op, err)
	}
	if len(resp.GetBeats()) != len(at) {
		return nil, fault.New(op, fault.Internal, "the peer answered for %d leases instead of %d", len(resp.GetBeats()), len(at))
	}
	for n, b := range resp.GetBeats() {
		beats[at[n]] = toBeat(many.GetLeaseIds()[n], b)
	}
	return beats, nil
}

// beat renews one lease. The result holds an error of the lease, err an error of the call.
func (a *Agent) beat(ctx context.Context, ref instances.Ref) (instances.Beat, error) {
	resp, err := a.Service.Heartbeat(ctx, &agentv1.HeartbeatRequest{
		LeaseId: ref.Lease, ServiceName: ref.Key.Service, InstanceId: ref.Key.ID, Namespace: ref.Key.Namespace,
	})
	if err != nil {
		err = calls.Fault("client.Heartbeat", err)
		if kind := fault.KindOf(err); kind == fault.NotFound || kind == fault.Gone {
			return instances.Beat{Key: ref.Key, Lease: ref.Lease, Err: err}, nil
		}
		return instances.Beat{}, err
	}
	return toSingleBeat(ref, resp)
}

// SetStatus implements instance.Registrar.
func (a *Agent) SetStatus(ctx context.Context, k instance.Key, s instance.Status) (*instance.Instance, error) {
	const op = "client.SetStatus"
	resp, err := a.Service.SetStatus(ctx, &agentv1.SetStatusRequest{
		ServiceName: k.Service, InstanceId: k.ID, Namespace: k.Namespace, Status: s.Proto(),
	})
	if err != nil {
		return nil, calls.Fault(op, err)
	}
	return toInstance(op, resp.GetInstance())
}

// Discover returns the instances of a service, as instance.Catalog.
func (a *Agent) Discover(ctx context.Context, q instance.Query) (instance.Result, error) {
	const op = "client.Discover"
	resp, err := a.Service.Discover(ctx, q.Proto())
	if err != nil {
		return instance.Result{}, calls.Fault(op, err)
	}
	return toResult(op, resp)
}

// pageSize is the number of instances in one answer to List.
const pageSize = 1000

// List returns the instances of all services of a namespace, as instance.Catalog. PreferZone
// must be empty. List reads pages: the result may miss changes during the call, and has the
// Index of the first page. Errors: Invalid, field "query.prefer_zone" or as for Discover;
// Unsupported by an old peer.
func (a *Agent) List(ctx context.Context, q instances.ListQuery) (instance.Result, error) {
	const op = "client.List"
	req := &agentv1.ListInstancesRequest{PageSize: pageSize, Query: instance.Query{
		Name: instance.Name{Namespace: q.Namespace}, Selector: q.Selector, Consistency: q.Consistency,
	}.Proto()}
	var all instance.Result
	for {
		resp, err := a.Service.ListInstances(ctx, req)
		if err != nil {
			return instance.Result{}, calls.Fault(op, err)
		}
		page, err := toResult(op, resp)
		switch {
		case err != nil:
			return instance.Result{}, err
		case all.View == nil:
			all = page
		default:
			all.Instances = append(all.Instances, page.Instances...)
			all.Contact = mergeContacts(all.Contact, page.Contact)
		}
		switch next := resp.GetNextPageToken(); {
		case next == "":
			return all, nil
		case len(page.Instances) == 0 || next == req.GetPageToken():
			return instance.Result{}, fault.New(op, fault.Internal, "the peer returned the same page twice")
		default:
			req.PageToken = next
		}
	}
}

// mergeContacts returns the contact of a result that was read in two parts.
func mergeContacts(first, second instance.Contact) instance.Contact {
	if second.Stale {
		first.Stale, first.Reason, first.Age = true, second.Reason, second.Age
	}
	return first
}

// Services returns the services of a namespace that have instances, as instance.Catalog.
func (a *Agent) Services(ctx context.Context, namespace string) (instance.Services, error) {
	resp, err := a.Service.ListServices(ctx, &agentv1.ListServicesRequest{Namespace: namespace})
	if err != nil {
		return instance.Services{}, calls.Fault("client.Services", err)
	}
	s := instance.Services{Index: resp.GetRevision(), Services: make([]instance.Summary, len(resp.GetServices()))}
	for i, p := range resp.GetServices() {
		s.Services[i] = instance.Summary{Name: p.GetName(), Instances: int(p.GetInstances()), Up: int(p.GetUp()), Tags: p.GetTags()}
	}
	return s, nil
}

// Removed returns the instances of a service, or of a namespace without a service, that ended within the last hour
// and did not return, the last end first. Errors: Invalid; Unsupported by an old peer.
func (a *Agent) Removed(ctx context.Context, n instance.Name) ([]instances.Removal, error) {
	const op = "client.RemovedInstances"
	resp, err := a.Service.ListRemoved(ctx, &agentv1.ListRemovedRequest{Namespace: n.Namespace, ServiceName: n.Service})
	if err != nil {
		return nil, calls.Fault(op, err)
	}
	list := make([]instances.Removal, len(resp.GetRemovals()))
	for at, p := range resp.GetRemovals() {
		i, err := toInstance(op, p.GetInstance())
		if err != nil {
			return nil, err
		}
		list[at] = instances.Removal{Instance: i, At: p.GetRemovedAt().AsTime(), Cause: p.GetCause()}
	}
	return list, nil
}

// Watch calls send for the changes of a result, as instance.Catalog, until the context ends,
// send fails, or the stream is lost.
func (a *Agent) Watch(ctx context.Context, q instance.Query, after uint64, send func(instance.Batch) error) error {
	const op = "client.WatchInstances"
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := a.watches.Watch(ctx, &agentv1.WatchRequest{Query: q.Proto(), Revision: after})
	if err != nil {
		return calls.Fault(op, err)
	}
	for {
		b, err := receiveBatch(op, stream)
		if err != nil {
			return err
		}
		if err := send(b); err != nil {
			return err
		}
	}
}

// receiveBatch receives one complete batch.
func receiveBatch(op string, stream grpc.ServerStreamingClient[agentv1.WatchResponse]) (instance.Batch, error) {
	var b instance.Batch
	for {
		resp, err := stream.Recv()
		if err != nil {
			return instance.Batch{}, calls.Fault(op, err)
		}
		if resp.GetReset_() {
			b = instance.Batch{Reset: true}
		}
		switch resp.GetType() {
		case agentv1.EventType_EVENT_TYPE_ADDED, agentv1.EventType_EVENT_TYPE_MODIFIED, agentv1.EventType_EVENT_TYPE_DELETED:
			i, err := toInstance(op, resp.GetInstance())
			if err != nil {
				return instance.Batch{}, err
			}
			b.Events = append(b.Events, instance.Event{Type: instance.EventType(resp.GetType()), Instance: i, Revision: resp.GetRevision()})
		case agentv1.EventType_EVENT_TYPE_INITIAL, agentv1.EventType_EVENT_TYPE_PROGRESS:
			b.Index = resp.GetRevision()
			b.Contact = instance.Contact{
				Stale: resp.GetStale(), Reason: resp.GetReason(), Age: resp.GetAge().AsDuration(), Revision: b.Index,
			}
			return b, nil
		}
	}
}

func fromRegistration(r instance.Registration) *agentv1.Instance {
	return (&instance.Instance{Key: r.Key, Spec: r.Spec, Status: r.Status}).Proto()
}

// toInstance reads an instance. An unreadable instance is a fault of the peer: Internal.
func toInstance(op string, p *agentv1.Instance) (*instance.Instance, error) {
	i, err := instance.FromProto(p)
	if err != nil {
		return nil, fault.As(op, fault.Internal, errors.Join(errors.New("the peer sent an unreadable instance"), err))
	}
	return i, nil
}

// queryResponse is the common part of answers to queries.
type queryResponse interface {
	GetInstances() []*agentv1.Instance
	GetRevision() uint64
	GetStale() bool
	GetReason() string
	GetAge() *durationpb.Duration
}

func toResult(op string, resp queryResponse) (instance.Result, error) {
	list := make([]*instance.Instance, len(resp.GetInstances()))
	for i, p := range resp.GetInstances() {
		var err error
		if list[i], err = toInstance(op, p); err != nil {
			return instance.Result{}, err
		}
	}
	return instance.Result{View: &instance.View{Index: resp.GetRevision(), Instances: list}, Contact: instance.Contact{
		Stale: resp.GetStale(), Reason: resp.GetReason(), Age: resp.GetAge().AsDuration(), Revision: resp.GetRevision(),
	}}, nil
}

// toBeat reads the result of one of several leases.
func toBeat(lease string, p *agentv1.Beat) instances.Beat {
	b := instances.Beat{Lease: lease, TTL: time.Duration(p.GetTtlMs()) * time.Millisecond}
	if p.GetTtlMs() <= 0 {
		b.TTL, b.Err = 0, noLease(lease)
		return b
	}
	b.Status, b.Err = instance.StatusFromProto(p.GetStatus())
	return b
}

// toSingleBeat reads the result of a single lease.
func toSingleBeat(ref instances.Ref, resp *agentv1.HeartbeatResponse) (instances.Beat, error) {
	b := instances.Beat{
		Key: ref.Key, Lease: resp.GetLeaseId(), TTL: time.Duration(resp.GetTtl()) * time.Second, Expires: resp.GetExpiresAt().AsTime(),
	}
	b.At = b.Expires.Add(-b.TTL)
	var err error
	b.Status, err = instance.StatusFromProto(resp.GetStatus())
	return b, fault.As("client.Heartbeat", fault.Internal, err)
}

func noLease(lease string) error {
	return &fault.Error{Op: "client.Heartbeat", Kind: fault.NotFound, Field: "lease_id", Value: lease, Err: errors.New("the peer does not know the lease")}
}
