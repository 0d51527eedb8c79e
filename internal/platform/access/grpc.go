package access

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// Unary admits only callers that fulfil the need of the method. It fails with Unauthentic or
// Forbidden as *fault.Error, so an interceptor in front of it must turn faults into statuses.
func (g *Guard) Unary(need func(fullMethod string) Need) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, call grpc.UnaryHandler) (any, error) {
		c, err := g.enter(credentialsOf(ctx), need(info.FullMethod))
		if err != nil {
			return nil, err
		}
		ctx, cancel := g.admit(ctx, c)
		defer cancel()
		return call(ctx, req)
	}
}

// Stream is Unary for streams. A stream ends when the credentials of its caller expire.
func (g *Guard) Stream(need func(fullMethod string) Need) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, call grpc.StreamHandler) error {
		c, err := g.enter(credentialsOf(ss.Context()), need(info.FullMethod))
		if err != nil {
			return err
		}
		ctx, cancel := g.admit(ss.Context(), c)
		defer cancel()
		return call(srv, &stream{ServerStream: ss, ctx: ctx})
	}
}

// Name returns the context of a call that is not admitted yet with the name that its credentials prove, for its shares; see Client. It
// gives no rights.
func (g *Guard) Name(ctx context.Context) context.Context {
	c, err := g.identify(credentialsOf(ctx))
	if err != nil {
		return ctx
	}
	return context.WithValue(ctx, callerKey{}, caller{Principal: Principal{Name: c.Name}, client: c.client})
}

func credentialsOf(ctx context.Context) callCredentials {
	e := callCredentials{authorization: metadata.ValueFromIncomingContext(ctx, "authorization")}
	if p, ok := peer.FromContext(ctx); ok {
		e.remote = p.Addr
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			e.chains = info.State.VerifiedChains
		}
	}
	return e
}

func (g *Guard) now() time.Time {
	if g == nil {
		return time.Now()
	}
	return g.options.Now()
}

// stream is a stream with the caller in its context.
type stream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s *stream) Context() context.Context { return s.ctx }

// RecvMsg implements grpc.ServerStream. It fails after the credentials have expired.
func (s *stream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	return nil
}
