package client

import (
	"context"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

type (
	// Requirement says that so many instances of a service are needed.
	Requirement = coord.Requirement
	// EvaluatedRequirement is a requirement with its status.
	EvaluatedRequirement = coord.EvaluatedRequirement
)

// Require makes or replaces a requirement, which stays until it is deleted. It tries again while the peer cannot be
// reached, until ctx ends. The requirement of a name stands in for all that others set under it.
//
// Errors: Invalid, with the field, "selector.version" for example; LimitReached for too many; TooLarge.
func (c *Client) Require(ctx context.Context, r Requirement) error {
	const op = "client.Require"
	if _, err := r.Selector.Compile(); err != nil {
		return fault.Wrap(op, fault.In("selector", err))
	}
	_, err := c.do(ctx, &coord.SetRequirement{Requirement: r})
	return fault.Wrap(op, err)
}

// Unrequire deletes a requirement, and tries as Require does. Errors: NotFound, field "name".
func (c *Client) Unrequire(ctx context.Context, name string) error {
	_, err := c.do(ctx, &coord.DeleteRequirement{Name: name})
	return fault.Wrap("client.Unrequire", err)
}

// Required tells how a requirement stands. Errors: NotFound, field "name"; Unavailable.
func (c *Client) Required(ctx context.Context, name string) (EvaluatedRequirement, error) {
	s, _, err := coord.GetRequirement(ctx, c.coordination, name)
	return s, fault.Wrap("client.Required", err)
}

// Requirements tells how all requirements stand, by name. Errors: Unavailable.
func (c *Client) Requirements(ctx context.Context) ([]EvaluatedRequirement, error) {
	all, _, err := coord.ListRequirements(ctx, c.coordination)
	return all, fault.Wrap("client.Requirements", err)
}

// AwaitRequirement waits until a requirement is satisfied, across lost connections and changes of the leader. When ctx
// ends first it tells how the requirement stood when it was last heard of, beside the error; before it was heard of at
// all, nothing.
//
// Errors: Timeout, Canceled; NotFound, field "name", also when the requirement is deleted meanwhile.
func (c *Client) AwaitRequirement(ctx context.Context, name string) (EvaluatedRequirement, error) {
	const op = "client.AwaitRequirement"
	var last EvaluatedRequirement
	for delay := firstPause; ; delay = min(2*delay, lastPause) {
		s, _, err := coord.AwaitRequirement(ctx, c.coordination, name, EvaluatedRequirement.Satisfied)
		if s.Name != "" {
			last, delay = s, firstPause
		}
		switch {
		case err == nil:
			return s, nil
		case ctx.Err() != nil:
			return last, fault.Wrap(op, ctx.Err())
		case !c.passing(ctx, err):
			return last, fault.Wrap(op, err)
		}
		if err := pause(ctx, c.vary(delay)); err != nil {
			return last, fault.Wrap(op, err)
		}
	}
}
