package coord

import (
	"fmt"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Bounds of requirements, part of the log format.
const (
	MaxRequirements = 1024    // in total
	MaxRequired     = 100_000 // instances
	maxSelected     = 64      // tags and statuses of a selector
	maxSelector     = 8 << 10 // bytes of a text of a selector
)

// Requirement demands a number of instances of a service. It is stored under
// RequirementsPrefix and its name until its deletion.
type Requirement struct {
	Name    string // [A-Za-z0-9._:-]{1,128}
	Service instance.Name
	Min     int // instances, 1 to MaxRequired
	// Selector selects the counted instances, by default those with StatusUp.
	// PreferZone must be empty. The group does not parse the version range:
	// call instance.Selector.Compile before.
	Selector instance.Selector
}

// SetRequirement creates or replaces a requirement. An equal one makes no
// event.
//
// Errors: Invalid, TooLarge, LimitReached.
type SetRequirement struct{ Requirement Requirement }

// DeleteRequirement deletes a requirement.
//
// Errors: NotFound.
type DeleteRequirement struct{ Name string }

// RequirementKey returns the key of a requirement.
func RequirementKey(name string) string { return RequirementsPrefix + name }

// Validate checks the rules common to all versions of this package.
//
// Errors: Invalid, TooLarge, LimitReached.
func (r *Requirement) Validate() error {
	switch {
	case !identifier(r.Name):
		return fault.Invalidf("name", r.Name, "use 1 to 128 letters, digits, ._:-")
	case !label(r.Service.Namespace, 63):
		return fault.Invalidf("namespace", r.Service.Namespace, "use 1 to 63 characters of a-z, 0-9, -")
	case !label(r.Service.Service, 64):
		return fault.Invalidf("service", r.Service.Service, "use 1 to 64 characters of a-z, 0-9, -")
	case r.Min < 1 || r.Min > MaxRequired:
		return fault.Invalidf("min", r.Min, "must be 1 to %d", MaxRequired)
	}
	return fault.In("selector", checkSelector(&r.Selector))
}

func checkSelector(s *instance.Selector) error {
	switch {
	case s.PreferZone != "":
		return fault.Invalidf("prefer_zone", s.PreferZone, "orders and does not select")
	case len(s.Tags) > maxSelected:
		return fault.Refused(fault.LimitReached, "tags", "too many tags: at most %d", maxSelected)
	case len(s.Statuses) > maxSelected:
		return fault.Refused(fault.LimitReached, "statuses", "too many statuses: at most %d", maxSelected)
	}
	fields := [...]string{"id", "zone", "version", "environment", "dependency"}
	for i, value := range [...]string{s.ID, s.Zone, s.Version, s.Environment, s.Dependency} {
		if err := checkText(fields[i], value); err != nil {
			return err
		}
	}
	for i, tag := range s.Tags {
		if err := checkText(fmt.Sprintf("tags[%d]", i), tag); err != nil {
			return err
		}
	}
	return nil
}

func checkText(field, value string) error {
	if len(value) > maxSelector {
		return fault.Refused(fault.TooLarge, field, "has %d bytes, at most %d", len(value), maxSelector)
	}
	if !utf8.ValidString(value) {
		return fault.Invalidf(field, nil, "must be UTF-8")
	}
	return nil
}

// Marshal returns the value of the requirement's key.
func (r *Requirement) Marshal() []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(encodeRequirement(r))
	if err != nil {
		panic("coord: " + err.Error()) // impossible: Validate accepts UTF-8 only
	}
	return b
}

// RequirementOf decodes the version of a requirement's key. Errors: Invalid.
func RequirementOf(kv *KeyValue) (Requirement, error) {
	const op = "coord.RequirementOf"
	if !Under(RequirementsPrefix).Contains(kv.Key) {
		return Requirement{}, fault.Wrap(op, fault.Invalidf("key", nil, "is no requirement's"))
	}
	var p coordv1.Requirement
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(kv.Value, &p); err != nil {
		return Requirement{}, fault.As(op, fault.Invalid, err)
	}
	r := decodeRequirement(kv.Key[len(RequirementsPrefix):], &p)
	return r, fault.Wrap(op, r.Validate())
}

func encodeRequirement(r *Requirement) *coordv1.Requirement {
	s := &r.Selector
	p := &coordv1.Selector{
		AnyStatus: s.AnyStatus, Id: s.ID, Zone: s.Zone, Version: s.Version, Tags: s.Tags,
		Environment: s.Environment, Dependency: s.Dependency,
	}
	for _, status := range s.Statuses {
		p.Statuses = append(p.Statuses, uint32(status))
	}
	return &coordv1.Requirement{Namespace: r.Service.Namespace, Service: r.Service.Service, Min: uint32(r.Min), Selector: p}
}

func decodeRequirement(name string, p *coordv1.Requirement) Requirement {
	s := p.GetSelector()
	r := Requirement{
		Name: name, Service: instance.Name{Namespace: p.GetNamespace(), Service: p.GetService()}, Min: int(p.GetMin()),
		Selector: instance.Selector{
			AnyStatus: s.GetAnyStatus(), ID: s.GetId(), Zone: s.GetZone(), Version: s.GetVersion(), Tags: s.GetTags(),
			Environment: s.GetEnvironment(), Dependency: s.GetDependency(),
		},
	}
	for _, status := range s.GetStatuses() {
		r.Selector.Statuses = append(r.Selector.Statuses, instance.Status(min(status, math.MaxUint8)))
	}
	return r
}
