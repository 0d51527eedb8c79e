package records

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/blackhole/blackhole/pkg/fault"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// Later versions may add fields, values of enumerations and critical features. Records with
// additions stay verified records here. A change of the core needs a new major version.

// Limits of the critical features of a record.
const (
	maxCritical = 8
	maxFeature  = 32 // bytes
)

// features lists the critical features of this version.
func features() []string { return nil }

// needs returns the critical features of a validated record that this version lacks. A tombstone
// has none: it consists of the core, which all versions understand.
func needs(s *pb.ServiceRecord) string {
	if s.Withdrawn {
		return ""
	}
	var lacking []string
	for _, feature := range s.Critical {
		if !slices.Contains(features(), feature) {
			lacking = append(lacking, feature)
		}
	}
	return intern(strings.Join(lacking, ", "))
}

func validateCritical(critical []string) error {
	if n := len(critical); n > maxCritical {
		return fault.Invalidf("critical", n, "must be at most %d", maxCritical)
	}
	for i, feature := range critical {
		if err := token("", feature, maxFeature, lower+digits+".-"); err != nil {
			return fault.In("critical", fault.In(index(i), err))
		}
	}
	return nil
}

// understood refuses content that this version cannot understand.
func understood(s *pb.ServiceRecord) error {
	if lacking := needs(s); lacking != "" {
		return fault.Invalidf("critical", lacking, "names features that this version lacks")
	}
	if !proto.Equal(s, withoutUnknown(s)) {
		return fault.Invalidf("", nil, "the record has fields that this version does not know")
	}
	return validateStatus(s.Health)
}

// validateStatus requires a known status. Readers take other values for UNKNOWN.
func validateStatus(h *pb.HealthStatus) error {
	if h == nil || claimed(h.Status) == h.Status {
		return nil
	}
	return fault.In("health", fault.Invalidf("status", int32(h.Status), "must be UNKNOWN, HEALTHY, DEGRADED or UNHEALTHY"))
}

// claimed returns a status that this version knows: UNKNOWN in place of others.
func claimed(s pb.HealthStatus_Status) pb.HealthStatus_Status {
	if _, ok := pb.HealthStatus_Status_name[int32(s)]; !ok {
		return pb.HealthStatus_UNKNOWN
	}
	return s
}

// withoutUnknown returns a copy without the fields outside the schema, those of nested messages
// included.
func withoutUnknown(s *pb.ServiceRecord) *pb.ServiceRecord {
	known := proto.CloneOf(s)
	dropUnknown(known.ProtoReflect())
	return known
}

func dropUnknown(m protoreflect.Message) {
	m.SetUnknown(nil)
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil || f.IsMap(): // the schema has maps of scalars only
		case f.IsList():
			for i := range v.List().Len() {
				dropUnknown(v.List().Get(i).Message())
			}
		default:
			dropUnknown(v.Message())
		}
		return true
	})
}
