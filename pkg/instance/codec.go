package instance

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// Marshal encodes an instance. Equal instances have equal bytes within one
// build of the program.
func (i *Instance) Marshal() []byte {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(i.whole())
	if err != nil {
		panic("instance: " + err.Error()) // impossible: Normalize and Unmarshal accept valid UTF-8 only
	}
	return data
}

// Unmarshal decodes and validates the bytes of Marshal. Fields of a later version and a health check of a later type
// stay in its Spec, and Marshal writes them again. Errors: as FromProto; TooLarge above MaxSize; Unauthentic for
// bytes that are not a message.
func Unmarshal(data []byte) (*Instance, error) {
	const op = "instance.Unmarshal"
	if len(data) > MaxSize {
		return nil, fault.New(op, fault.TooLarge, "%d bytes exceed the limit of %d", len(data), MaxSize)
	}
	var p agentv1.Instance
	if err := proto.Unmarshal(data, &p); err != nil {
		return nil, fault.As(op, fault.Unauthentic, err)
	}
	i, err := FromProto(&p)
	return i, fault.Wrap(op, err)
}

// Proto converts an instance for callers: without its lease, which is a credential, the name of the caller who registered
// it, the note of a front end, and last_heartbeat. Maps and lists are shared. Marshal alone writes the whole, for
// peers and for disk.
func (i *Instance) Proto() *agentv1.Instance {
	p := i.whole()
	p.LeaseId, p.Principal, p.Note = "", "", ""
	return p
}

func (i *Instance) whole() *agentv1.Instance {
	p := &agentv1.Instance{
		Id:             i.ID,
		ServiceName:    i.Service,
		Host:           i.Spec.Host,
		Port:           int32(i.Spec.Port),
		Health:         i.Status.Proto(),
		Metadata:       i.Spec.Metadata,
		Namespace:      i.Namespace,
		Version:        i.Spec.Version,
		Interfaces:     i.Spec.Interfaces,
		Tags:           i.Spec.Tags,
		Dependencies:   i.Spec.Dependencies,
		Environment:    i.Spec.Environment,
		Region:         i.Spec.Region,
		Owner:          i.Spec.Owner,
		Description:    i.Spec.Description,
		Zone:           i.Spec.Zone,
		Weight:         uint32(i.Spec.Weight),
		UnhealthyAfter: durationToProto(i.Spec.UnhealthyAfter),
		RemoveAfter:    durationToProto(i.Spec.RemoveAfter),
		Lasting:        i.Spec.Lasting,
		Offer:          i.Spec.Offer,
		Note:           i.Spec.Note,
		Override:       i.Override.Proto(),
		LeaseId:        i.Lease,
		Peer:           i.Peer,
		Principal:      i.Principal,
		Revision:       i.Revision,
	}
	if !i.RegisteredAt.IsZero() {
		p.RegisteredAt = timestamppb.New(i.RegisteredAt)
	}
	if c := i.Spec.Check; c != nil {
		p.HealthCheck = &agentv1.HealthCheck{
			Type:               string(c.Type),
			Endpoint:           c.Endpoint,
			Interval:           durationToProto(c.Interval),
			Timeout:            durationToProto(c.Timeout),
			HealthyThreshold:   uint32(c.HealthyThreshold),
			UnhealthyThreshold: uint32(c.UnhealthyThreshold),
		}
	}
	if len(i.Spec.later) > 0 {
		p.ProtoReflect().SetUnknown(i.Spec.later)
	}
	return p
}

// FromProto converts an instance and validates it like Normalize. A status of a
// later version becomes UNKNOWN. Nothing is shared with p. Errors: as Normalize;
// Invalid, field "id", "registered_at", "lease_id", "principal" or "peer".
func FromProto(p *agentv1.Instance) (*Instance, error) {
	r, err := RegistrationFromProto(p)
	if err != nil {
		return nil, err
	}
	r.Status = StatusUnknown // an instance may have any status, read below
	r.Spec.Note = p.GetNote()
	if r.Spec.later, err = laterFields(p); err != nil {
		return nil, fault.As("instance.FromProto", fault.Invalid, err)
	}
	if r.Spec.Check != nil && !r.Spec.Check.Type.known() {
		r.Spec.Check = nil // laterFields has it
	}
	if err := r.Normalize(); err != nil {
		return nil, err
	}
	i := &Instance{Key: r.Key, Spec: r.Spec, Lease: p.GetLeaseId(), Peer: shared(p.GetPeer()), Principal: shared(p.GetPrincipal()), Revision: p.GetRevision()}
	var known error
	if i.Status, known = StatusFromProto(p.GetHealth()); known == nil {
		i.Override, known = StatusFromProto(p.GetOverride())
	}
	if known != nil { // a status or an override of a later version: the instance exists, and this version cannot say how it is
		i.Status, i.Override = StatusUnknown, StatusUnknown
	}
	if t := p.GetRegisteredAt(); t != nil {
		if err := t.CheckValid(); err != nil {
			return nil, fault.Invalidf("registered_at", nil, "%w", err)
		}
		i.RegisteredAt = t.AsTime()
	}
	if err := validateID(i.ID); err != nil {
		return nil, err
	}
	if err := fault.Text("lease_id", i.Lease, maxName); err != nil {
		return nil, err
	}
	if err := fault.Text("principal", i.Principal, maxOwner); err != nil {
		return nil, err
	}
	return i, fault.Text("peer", i.Peer, maxName)
}

// laterFields returns what only a later version knows of an instance, as fields of its message: unknown fields, and its
// health check if that has unknown fields or another type. A decoder merges the two parts of such a check.
func laterFields(p *agentv1.Instance) ([]byte, error) {
	later := bytes.Clone(p.ProtoReflect().GetUnknown())
	check := p.GetHealthCheck()
	if check == nil {
		return later, nil
	}
	some := []byte(check.ProtoReflect().GetUnknown())
	if !CheckType(check.GetType()).known() {
		var err error
		if some, err = proto.Marshal(check); err != nil {
			return nil, err
		}
	}
	if len(some) == 0 {
		return later, nil
	}
	number := p.ProtoReflect().Descriptor().Fields().ByName("health_check").Number()
	return protowire.AppendBytes(protowire.AppendTag(later, number, protowire.BytesType), some), nil
}

// RegistrationFromProto converts the fields of an application and ignores the
// others. Maps and lists are shared with p. Errors: Invalid for values out of
// range; Normalize validates the rest.
func RegistrationFromProto(p *agentv1.Instance) (Registration, error) {
	r := Registration{
		Key: Key{Namespace: p.GetNamespace(), Service: p.GetServiceName(), ID: p.GetId()},
		Spec: Spec{
			Host:         p.GetHost(),
			Port:         int(p.GetPort()),
			Version:      p.GetVersion(),
			Interfaces:   p.GetInterfaces(),
			Metadata:     p.GetMetadata(),
			Tags:         p.GetTags(),
			Dependencies: p.GetDependencies(),
			Environment:  p.GetEnvironment(),
			Region:       p.GetRegion(),
			Owner:        p.GetOwner(),
			Description:  p.GetDescription(),
			Zone:         p.GetZone(),
			Weight:       int(p.GetWeight()),
			Lasting:      p.GetLasting(),
			Offer:        p.GetOffer(),
		},
	}
	if p.GetHealth() == agentv1.HealthStatus_HEALTH_STATUS_STARTING {
		r.Status = StatusStarting
	}
	var err error
	if r.Spec.UnhealthyAfter, err = durationFromProto("unhealthy_after", p.GetUnhealthyAfter()); err != nil {
		return Registration{}, err
	}
	if r.Spec.RemoveAfter, err = durationFromProto("remove_after", p.GetRemoveAfter()); err != nil {
		return Registration{}, err
	}
	if r.Spec.RemoveAfter < 0 {
		r.Spec.RemoveAfter = Never
	}
	r.Spec.Check, err = checkFromProto(p.GetHealthCheck())
	return r, fault.In("health_check", err)
}

func checkFromProto(p *agentv1.HealthCheck) (*Check, error) {
	if p == nil {
		return nil, nil
	}
	interval, err := durationFromProto("interval", p.GetInterval())
	if err != nil {
		return nil, err
	}
	timeout, err := durationFromProto("timeout", p.GetTimeout())
	if err != nil {
		return nil, err
	}
	return &Check{
		Type:               CheckType(p.GetType()),
		Endpoint:           p.GetEndpoint(),
		Interval:           interval,
		Timeout:            timeout,
		HealthyThreshold:   int(p.GetHealthyThreshold()),
		UnhealthyThreshold: int(p.GetUnhealthyThreshold()),
	}, nil
}

// Proto returns the wire form.
func (s Status) Proto() agentv1.HealthStatus { return agentv1.HealthStatus(s) }

// StatusFromProto reads the wire form. Errors: Invalid, field "status".
func StatusFromProto(p agentv1.HealthStatus) (Status, error) {
	if p < 0 || p >= agentv1.HealthStatus(statuses) {
		return StatusUnknown, fault.Invalidf("status", int32(p), "is not a known status")
	}
	return Status(p), nil
}

func durationToProto(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// durationFromProto returns 0 for nil. A value outside time.Duration exceeds
// all bounds.
func durationFromProto(field string, p *durationpb.Duration) (time.Duration, error) {
	if p == nil {
		return 0, nil
	}
	if err := p.CheckValid(); err != nil {
		return 0, fault.Invalidf(field, nil, "%w", err)
	}
	return p.AsDuration(), nil
}

// Same reports whether two instances are equal, Revision aside. Nil equals only nil.
func (i *Instance) Same(o *Instance) bool {
	if i == nil || o == nil || i == o {
		return i == o
	}
	return i.Key == o.Key &&
		i.Status == o.Status &&
		i.Override == o.Override &&
		i.RegisteredAt.Equal(o.RegisteredAt) &&
		i.Lease == o.Lease &&
		i.Peer == o.Peer &&
		i.Principal == o.Principal &&
		i.Spec.Equal(o.Spec)
}

// Equal reports whether two specifications are equal.
func (s Spec) Equal(o Spec) bool {
	return s.Host == o.Host && s.Port == o.Port && s.Version == o.Version &&
		maps.Equal(s.Interfaces, o.Interfaces) &&
		maps.Equal(s.Metadata, o.Metadata) &&
		slices.Equal(s.Tags, o.Tags) &&
		slices.Equal(s.Dependencies, o.Dependencies) &&
		s.Environment == o.Environment && s.Region == o.Region && s.Owner == o.Owner &&
		s.Description == o.Description && s.Zone == o.Zone && s.Weight == o.Weight &&
		equalChecks(s.Check, o.Check) &&
		s.UnhealthyAfter == o.UnhealthyAfter && s.RemoveAfter == o.RemoveAfter && s.Lasting == o.Lasting &&
		bytes.Equal(s.Offer, o.Offer) && s.Note == o.Note && bytes.Equal(s.later, o.later)
}

func equalChecks(a, b *Check) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
