package grpcapi

import (
	"context"
	"fmt"

	"google.golang.org/grpc/metadata"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/pkg/fault"
)

// SpokenFor returns the principal that the caller of an agent speaks for; empty for itself.
func SpokenFor(ctx context.Context) string {
	if said := metadata.ValueFromIncomingContext(ctx, coord.PrincipalMetadata); len(said) > 0 {
		return said[0]
	}
	return ""
}

// ownerFor returns the owner of a call. A caller names none, or a peer itself, its callers without a name (of a front, too), or an
// authenticated caller for whom it vouches.
func (c *coordination) ownerFor(ctx context.Context, caller, owner string) (string, error) {
	switch {
	case owner == "" || owner == caller:
		return caller, nil
	case !c.Peers:
		return "", fault.Wrap("grpcapi", fault.Refused(fault.Forbidden, "owner", "only peers speak for others: leave it out"))
	case principals.IsNamelessAt(owner, caller):
		return owner, nil
	case principals.Valid(owner):
		return owner, c.vouched(ctx)
	}
	return "", fault.Wrap("grpcapi", fault.Refused(fault.Forbidden, "owner", "%q is nobody whom peer %s speaks for", owner, caller))
}

// vouched refuses a peer whose word on its applications does not count.
func (c *coordination) vouched(ctx context.Context) error {
	if c.Vouches == nil {
		return nil
	}
	if err := c.Vouches(ctx); err != nil {
		return &fault.Error{Op: "grpcapi", Kind: fault.Forbidden, Field: "principal", Err: fmt.Errorf(
			"only founders, members, listed peers and peers with the key of the network speak for authenticated callers, and take backups: %w", err)}
	}
	return nil
}
