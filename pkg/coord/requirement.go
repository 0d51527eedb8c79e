package coord

import (
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Bounds of requirements, part of the log format.
const (
	MaxRequirements = 1024     // in total
	MaxRequired     = 100_000  // instances
	maxQuestion     = 64 << 10 // bytes
)

// Requirement demands a number of instances of a service. It is stored under
// RequirementsPrefix and its name until its deletion.
type Requirement struct {
	Name string // [A-Za-z0-9._:-]{1,128}
	Min  int    // instances, 1 to MaxRequired
	// Question says which instances count: a blackhole.agent.v1.DiscoverRequest.
	// The group does not read it. The front ends accept valid ones only
	// (instance.Query.Question), and the evaluator reports unreadable ones.
	Question []byte
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
// Errors: Invalid, TooLarge.
func (r *Requirement) Validate() error {
	switch {
	case !identifier(r.Name):
		return fault.Invalidf("name", r.Name, "use 1 to 128 letters, digits, ._:-")
	case r.Min < 1 || r.Min > MaxRequired:
		return fault.Invalidf("min", r.Min, "must be 1 to %d", MaxRequired)
	case len(r.Question) > maxQuestion:
		return fault.Refused(fault.TooLarge, "selector", "has %d bytes, at most %d", len(r.Question), maxQuestion)
	}
	return nil
}

// Marshal returns the value of the requirement's key.
func (r *Requirement) Marshal() []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(&coordv1.Requirement{Min: uint32(r.Min), Question: r.Question})
	if err != nil {
		panic("coord: " + err.Error()) // impossible: a number and bytes
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
	r := Requirement{Name: kv.Key[len(RequirementsPrefix):], Min: int(p.GetMin()), Question: p.GetQuestion()}
	return r, fault.Wrap(op, r.Validate())
}
