// Package requirements has the requirements of a group: numbers of instances that applications need, and whether they are there.
package requirements

import (
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Prefix is the prefix of the keys of requirements, followed by the name. Only the commands for requirements write them.
const Prefix = "requirements/"

// Bounds of requirements, part of the log format.
const (
	Max          = 1024     // in total
	MaxInstances = 100_000  // of one
	maxQuestion  = 64 << 10 // bytes
)

// Requirement demands a number of instances of a service. It is stored under Prefix and its name until its deletion.
type Requirement struct {
	Name string // [A-Za-z0-9._:-]{1,128}
	Min  int    // instances, 1 to MaxInstances
	// Question says which instances count: a blackhole.agent.v1.DiscoverRequest.
	// The group does not read it. The front ends accept valid ones only
	// (instance.Query.Question), and the evaluator reports unreadable ones.
	Question []byte
}

// Key returns the key of a requirement.
func Key(name string) string { return Prefix + name }

// Validate checks the rules common to all versions of this package.
//
// Errors: Invalid, TooLarge.
func (r *Requirement) Validate() error {
	switch {
	case !directory.IsID(r.Name):
		return fault.Invalidf("name", r.Name, "use 1 to 128 letters, digits, ._:-")
	case r.Min < 1 || r.Min > MaxInstances:
		return fault.Invalidf("min", r.Min, "must be 1 to %d", MaxInstances)
	case len(r.Question) > maxQuestion:
		return fault.Refused(fault.TooLarge, "selector", "has %d bytes, at most %d", len(r.Question), maxQuestion)
	}
	return nil
}

// Marshal returns the value of the requirement's key.
func (r *Requirement) Marshal() []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(&coordv1.Requirement{Min: uint32(r.Min), Question: r.Question})
	if err != nil {
		panic("requirements: " + err.Error()) // impossible: a number and bytes
	}
	return b
}

// Of decodes the value of a requirement's key. Errors: Invalid.
func Of(key string, value []byte) (Requirement, error) {
	const op = "requirements.Of"
	if !coord.Under(Prefix).Contains(key) {
		return Requirement{}, fault.Wrap(op, fault.Invalidf("key", nil, "is no requirement's"))
	}
	var p coordv1.Requirement
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(value, &p); err != nil {
		return Requirement{}, fault.As(op, fault.Invalid, err)
	}
	r := Requirement{Name: key[len(Prefix):], Min: int(p.GetMin()), Question: p.GetQuestion()}
	return r, fault.Wrap(op, r.Validate())
}
