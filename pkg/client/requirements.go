package client

import (
	"context"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

type (
	// Requirement asks for a number of instances of a service.
	Requirement = coord.Requirement
	// EvaluatedRequirement is a requirement with its status.
	EvaluatedRequirement = coord.EvaluatedRequirement
)

// Require sets a requirement, which stays until its deletion. It replaces the requirement with the
// same name of any client. It retries until ctx ends while the peer is unreachable.
//
// Errors: Invalid, with a field such as "selector.version"; LimitReached for too many requirements;
// TooLarge.
func (c *Client) Require(ctx context.Context, r Requirement) error {
	const op = "client.Require"
	if _, err := r.Selector.Compile(); err != nil {
		return fault.Wrap(op, fault.In("selector", err))
	}
	_, err := c.do(ctx, &coord.SetRequirement{Requirement: r})
	return fault.Wrap(op, err)
}

// Unrequire deletes a requirement, with the retries of Require. Errors: NotFound, field "name".
func (c *Client) Unrequire(ctx context.Context, name string) error {
	_, err := c.do(ctx, &coord.DeleteRequirement{Name: name})
	return fault.Wrap("client.Unrequire", err)
}

// Required returns a requirement with its status. Errors: NotFound, field "name"; Unavailable.
func (c *Client) Required(ctx context.Context, name string) (EvaluatedRequirement, error) {
	s, _, err := coord.GetRequirement(ctx, c.coordination, name)
	return s, fault.Wrap("client.Required", err)
}

// Requirements returns all requirements with their status, sorted by name. Errors: Unavailable.
func (c *Client) Requirements(ctx context.Context) ([]EvaluatedRequirement, error) {
	all, _, err := coord.ListRequirements(ctx, c.coordination)
	return all, fault.Wrap("client.Requirements", err)
}

// AwaitRequirement waits for a satisfied requirement, across lost connections and leader changes.
// Beside an error it returns the last known status, or the zero value before the first status.
//
// Errors: Timeout, Canceled; NotFound, field "name", also after a deletion during the wait.
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
