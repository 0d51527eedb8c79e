package grpcapi

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc/metadata"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// principalKey is the context key of the principal of a call in a bundle.
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

// renewing are the requests of a caller on a stream of keepalives that share a call.
type renewing struct {
	c      *coordination
	caller string
	batch  []*api.LeaseKeepAliveRequest
}

// answers renews the leases of the batch, for each of its principals at once, and returns the answers in order.
func (r renewing) answers(ctx context.Context) ([]*api.LeaseKeepAliveResponse, error) {
	groups := make(map[string][]int) // positions in the batch, by principal
	for i, req := range r.batch {
		groups[req.GetPrincipal()] = append(groups[req.GetPrincipal()], i)
	}
	answers := make([]*api.LeaseKeepAliveResponse, len(r.batch))
	failed := make(chan error, len(groups))
	var calls sync.WaitGroup
	for principal, at := range groups {
		owner, err := r.c.ownerFor(ctx, r.caller, principal)
		if err != nil {
			failed <- err
			continue
		}
		calls.Go(func() { failed <- r.renew(ctx, owner, at, answers) })
	}
	calls.Wait()
	for range groups {
		if err := <-failed; err != nil {
			return nil, err
		}
	}
	return answers, nil
}

// renew answers the requests of one owner in a batch.
func (r renewing) renew(ctx context.Context, owner string, at []int, answers []*api.LeaseKeepAliveResponse) error {
	mine := make([]*api.LeaseKeepAliveRequest, len(at))
	for i, n := range at {
		mine[i] = r.batch[n]
	}
	renewals, h, err := r.c.Writer.KeepAlive(ctx, owner, asked(mine))
	if err != nil {
		return err
	}
	for i, n := range at {
		answers[n], renewals = renewed(mine[i], renewals)
		answers[n].Header = fromHeader(h)
	}
	return nil
}
