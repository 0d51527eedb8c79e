package records

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// NewsWithin bounds the time until all keepers of an offer have its amounts: see News.
const NewsWithin = time.Minute

// News reports whether a live version differs from another one of the same offer in amounts alone: of price, capacity, load, and of equal
// GPUs. Such changes are frequent and worth little a minute later, so a provider gathers them for most of its keepers.
func (r *Record) News(before *Record) bool {
	return r.name == before.name && !r.withdrawn && !before.withdrawn &&
		proto.Equal(r.withoutAmounts(), before.withoutAmounts())
}

func (r *Record) withoutAmounts() *pb.ServiceRecord {
	s := r.Service()
	s.Signature, s.UpdatedAt, s.ExpiresAt, s.Sequence = nil, nil, nil, 0
	clearNumbers(s.GetCapabilities().ProtoReflect())
	clearNumbers(s.GetPricing().ProtoReflect())
	clearNumbers(s.GetHealth().ProtoReflect())
	if s.Health != nil {
		s.Health.LastCheck = nil
	}
	if c := s.GetCapabilities().GetCompute(); c != nil {
		c.Gpus = slices.CompactFunc(c.Gpus, func(a, b *pb.GPUInfo) bool { return proto.Equal(a, b) })
	}
	return s
}

// clearNumbers removes the numbers of a message and of those in it. Enumerations, truth values and keys of maps stay.
func clearNumbers(m protoreflect.Message) {
	number := func(f protoreflect.FieldDescriptor) bool {
		switch f.Kind() {
		case protoreflect.BoolKind, protoreflect.EnumKind, protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind, protoreflect.GroupKind:
			return false
		}
		return true
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap() && number(f.MapValue()):
			zero := f.MapValue().Default()
			v.Map().Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
				v.Map().Set(k, zero)
				return true
			})
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				clearNumbers(v.List().Get(i).Message())
			}
		case f.IsMap() || f.IsList():
		case f.Message() != nil:
			clearNumbers(v.Message())
		case number(f):
			m.Clear(f)
		}
		return true
	})
}
