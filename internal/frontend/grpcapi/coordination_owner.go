package grpcapi

import (
	"context"
	"fmt"

	"google.golang.org/grpc/metadata"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// principalKey is the context key of the principal of a call on a stream.
type principalKey struct{}

// SpokenFor returns the principal that the caller speaks for; empty for itself.
func SpokenFor(ctx context.Context) string {
	if said, ok := ctx.Value(principalKey{}).(string); ok {
		return said
	}
	if said := metadata.ValueFromIncomingContext(ctx, coord.PrincipalMetadata); len(said) > 0 {
		return said[0]
	}
	return ""
}

// owner returns the owner that a call acts for. A peer speaks for itself and for its applications; the group
// trusts its word. An application speaks for itself alone.
func (c *coordination) owner(ctx context.Context) (string, error) {
	caller, err := c.Owner(ctx)
	if err != nil {
		return "", err
	}
	return c.ownerFor(ctx, caller, SpokenFor(ctx))
}

// ownerFor returns the owner of a principal that a caller, a peer or an application, speaks for.
func (c *coordination) ownerFor(ctx context.Context, caller, principal string) (string, error) {
	if principal == "" {
		return caller, nil
	}
	if !c.Peers {
		return "", fault.Wrap("grpcapi", fault.Refused(fault.Forbidden, "principal", "only peers speak for others: leave it out"))
	}
	owner, ok := coord.OwnerOf(principal, caller)
	if !ok {
		return "", fault.Wrap("grpcapi", fault.Invalidf("principal", principal, "must be empty, ~ or @ and a name"))
	}
	if coord.IsNamed(owner) {
		return owner, c.vouched(ctx)
	}
	return owner, nil
}

// vouched refuses a peer whose word on its applications does not count.
func (c *coordination) vouched(ctx context.Context) error {
	if c.Vouches == nil {
		return nil
	}
	if err := c.Vouches(ctx); err != nil {
		return &fault.Error{Op: "grpcapi", Kind: fault.Forbidden, Field: "principal", Err: fmt.Errorf(
			"only founders, members, listed peers and peers with the key of the network speak for authenticated callers: %w", err)}
	}
	return nil
}
