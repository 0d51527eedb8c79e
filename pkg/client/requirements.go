package client

import (
	"context"

	"github.com/blackhole/blackhole/internal/contract/coord/attempt"
	"github.com/blackhole/blackhole/internal/contract/coord/requirements"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Requirement asks for a number of instances of a service.
type Requirement struct {
	Name    string // [A-Za-z0-9._:-]{1,128}
	Service instance.Name
	Min     int // instances, 1 to requirements.MaxInstances
	// Selector selects the counted instances, by default those with StatusUp.
	// PreferZone must be empty.
	Selector instance.Selector
}

// EvaluatedRequirement is a requirement with its status.
type EvaluatedRequirement struct {
	Requirement
	// State is "satisfied", "insufficient_nodes", or "pending" before the first evaluation.
	State     string
	Available int      // instances
	Revision  Revision // of the change to State
	// Problem explains why the group cannot count, for example an unreadable version range. The state is then
	// insufficient_nodes.
	Problem string
}

// Satisfied reports whether enough instances are available.
func (e EvaluatedRequirement) Satisfied() bool { return e.State == string(requirements.Satisfied) }

// toEvaluated decodes a requirement. Problem reports a selector of a later version.
func toEvaluated(e requirements.Evaluated) EvaluatedRequirement {
	q, err := instances.ParseQuestion(e.Question)
	if err != nil && e.Problem == "" {
		e.Problem = fault.Message(err)
	}
	return EvaluatedRequirement{
		Requirement: Requirement{Name: e.Name, Service: q.Name, Min: e.Min, Selector: q.Selector},
		State:       string(e.State), Available: e.Available, Revision: Revision(e.Revision), Problem: e.Problem,
	}
}

// Requirements are the requirements of the group.
type Requirements struct{ client *Client }

// Requirements returns the requirements of the group. They are safe for concurrent use and end with the client.
func (s *Services) Requirements() Requirements { return Requirements{s.client} }

// Set sets a requirement, which stays until its deletion. It replaces the requirement with the
// same name of any client. It retries until ctx ends while the peer is unreachable.
//
// Errors: Invalid, with a field such as "selector.version"; LimitReached for too many requirements;
// TooLarge.
func (q Requirements) Set(ctx context.Context, r Requirement) error {
	const op = "client.Requirements.Set"
	question := instance.Query{Name: r.Service, Selector: r.Selector}
	_, err := instances.Question(question)
	if err == nil && (r.Min < 1 || r.Min > requirements.MaxInstances) {
		err = fault.Invalidf("min", r.Min, "must be 1 to %d", requirements.MaxInstances)
	}
	if err == nil {
		_, err = q.client.do(ctx, &api.SetRequirementRequest{Name: r.Name, Min: uint32(r.Min), Query: question.Proto()})
	}
	return fault.Wrap(op, err)
}

// Delete deletes a requirement, with the retries of Set. Errors: NotFound, field "name".
func (q Requirements) Delete(ctx context.Context, name string) error {
	_, err := q.client.do(ctx, &api.DeleteRequirementRequest{Name: name})
	return fault.Wrap("client.Requirements.Delete", err)
}

// Get returns a requirement with its status. Errors: NotFound, field "name"; Unavailable.
func (q Requirements) Get(ctx context.Context, name string) (EvaluatedRequirement, error) {
	s, _, err := requirements.Get(ctx, q.client.link.Coordination, name)
	if err != nil {
		return EvaluatedRequirement{}, fault.Wrap("client.Requirements.Get", err)
	}
	return toEvaluated(s), nil
}

// List returns all requirements with their status, sorted by name. Errors: Unavailable.
func (q Requirements) List(ctx context.Context) ([]EvaluatedRequirement, error) {
	stored, _, err := requirements.List(ctx, q.client.link.Coordination)
	var all []EvaluatedRequirement
	for _, s := range stored {
		all = append(all, toEvaluated(s))
	}
	return all, fault.Wrap("client.Requirements", err)
}

// Await waits for a satisfied requirement, across lost connections and leader changes.
// Beside an error it returns the last known status, or the zero value before the first status.
//
// Errors: Timeout, Canceled; NotFound, field "name", also after a deletion during the wait.
func (q Requirements) Await(ctx context.Context, name string) (EvaluatedRequirement, error) {
	const op = "client.Requirements.Await"
	var last EvaluatedRequirement
	err := q.client.repeat(ctx, func(run *attempt.Run) error {
		s, _, err := requirements.Await(ctx, q.client.link.Coordination, name, requirements.Evaluated.Satisfied)
		if s.Name != "" {
			last = toEvaluated(s)
			run.Progress()
		}
		return err
	})
	return last, fault.Wrap(op, ended(ctx, err))
}
