package client

import (
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

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
func toBeat(lease string, p *agentv1.Beat) instance.Beat {
	b := instance.Beat{Lease: lease, TTL: time.Duration(p.GetTtlMs()) * time.Millisecond}
	if p.GetTtlMs() <= 0 {
		b.TTL, b.Err = 0, noLease(lease)
		return b
	}
	b.Status, b.Err = instance.StatusFromProto(p.GetStatus())
	return b
}

// toSingleBeat reads the result of a single lease.
func toSingleBeat(ref instance.Ref, resp *agentv1.HeartbeatResponse) (instance.Beat, error) {
	b := instance.Beat{
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

func toEventType(t agentv1.EventType) instance.EventType {
	switch t {
	case agentv1.EventType_EVENT_TYPE_ADDED:
		return instance.Added
	case agentv1.EventType_EVENT_TYPE_MODIFIED:
		return instance.Modified
	case agentv1.EventType_EVENT_TYPE_DELETED:
		return instance.Removed
	default:
		return 0
	}
}
