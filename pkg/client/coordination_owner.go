package client

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/blackhole/blackhole/pkg/coord"
)

// SpeakForOwners is an option of New for peers of a group, which pass on the calls of their applications: the
// owners of commands and keepalives travel with them. A peer refuses it from an application.
func SpeakForOwners() grpc.DialOption { return speakOption{} }

// speakOption is an option for New; gRPC ignores it.
type speakOption struct{ grpc.EmptyDialOption }

// principalKey is the context key of the principal of a call.
type principalKey struct{}

// principal returns the principal that a call names for an owner.
func (p *Coordination) principal(owner string) string {
	if !p.speaks {
		return ""
	}
	return coord.Principal(owner)
}

// speakFor returns the context of a call for an owner.
func (p *Coordination) speakFor(ctx context.Context, owner string) context.Context {
	if said := p.principal(owner); said != "" {
		return context.WithValue(ctx, principalKey{}, said)
	}
	return ctx
}

// principalIn returns the principal of a call, and the context for the call outside a bundle.
func principalIn(ctx context.Context) (string, context.Context) {
	said, _ := ctx.Value(principalKey{}).(string)
	if said == "" {
		return "", ctx
	}
	return said, metadata.AppendToOutgoingContext(ctx, coord.PrincipalMetadata, said)
}

// visibleTo returns the restriction of a list. A peer restricts the lists of applications by itself.
func (p *Coordination) visibleTo(q coord.LeaseQuery) string {
	if !p.speaks {
		return ""
	}
	return q.VisibleTo
}
